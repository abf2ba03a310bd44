//! An allocator that keeps a ledger, fails when told to, and whose device addresses differ from the
//! host's.
#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hostcall::backend::host::{HostAllocator, HostAllocatorError};
use hostcall::{DeviceAddress, Doorbell, DoorbellPointers, Purpose, SharedAllocator, SharedBlock};
use parking_lot::{Condvar, Mutex};

/// How far device addresses are from host addresses.
pub(crate) const AWAY: u64 = 1 << 60;

/// What an allocator has given out, taken back and been asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    requests: Vec<Purpose>,
    /// By device address: purpose, host address, size and alignment.
    live: BTreeMap<u64, (Purpose, usize, Layout)>,
    returned: usize,
    /// Blocks that came back and were not given out like that.
    strangers: Vec<SharedBlock>,
    fail_at: Option<usize>,
    doorbell: Option<Arc<TestDoorbell>>,
}

/// A doorbell that interrupts as a device does: when the counter leaves zero, once, before the message is
/// there. The interrupt is kept for a sleeper who comes late.
#[derive(Debug, Default)]
pub(crate) struct TestDoorbell {
    counter: AtomicU64,
    interrupted: Mutex<bool>,
    rung: Condvar,
    waits: AtomicUsize,
    waiting: AtomicUsize,
    /// Whether rings are counted, and wake nobody.
    pub(crate) mute: AtomicBool,
}

impl TestDoorbell {
    /// How often somebody came to wait.
    pub(crate) fn waits(&self) -> usize {
        self.waits.load(Ordering::Acquire)
    }

    /// Whether somebody waits.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 1
    }
}

impl Doorbell for TestDoorbell {
    fn counter(&self) -> &AtomicU64 {
        &self.counter
    }

    fn pointers(&self) -> DoorbellPointers {
        let counter = AWAY + (&raw const self.counter) as u64;
        DoorbellPointers { counter, mailbox: 0x1234, event_id: 7 }
    }

    fn ring(&self) {
        if self.counter.fetch_add(1, Ordering::AcqRel) == 0 && !self.mute.load(Ordering::Acquire) {
            *self.interrupted.lock() = true;
            self.rung.notify_all();
        }
    }

    fn wait(&self, limit: Duration) {
        let mut interrupted = self.interrupted.lock();
        self.waits.fetch_add(1, Ordering::AcqRel);
        assert_eq!(self.waiting.fetch_add(1, Ordering::AcqRel), 0, "one at a time");
        if self.counter.load(Ordering::Acquire) == 0 && !*interrupted {
            self.rung.wait_for(&mut interrupted, limit);
        }
        *interrupted = false;
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

// SAFETY: addresses of the strangers are only printed.
unsafe impl Send for Entries {}

#[derive(Debug)]
pub(crate) struct LedgerAllocator(Ledger);

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoMemory {
    #[error("request {0} was to fail")]
    Planned(usize),
    #[error("the doorbell was to fail")]
    Doorbell,
    #[error(transparent)]
    Host(#[from] HostAllocatorError),
}

impl Ledger {
    pub(crate) fn allocator(&self) -> LedgerAllocator {
        LedgerAllocator(self.clone())
    }

    /// Lets the n-th request fail, counted from zero.
    pub(crate) fn failing_at(request: usize) -> Self {
        let ledger = Ledger::default();
        ledger.0.lock().fail_at = Some(request);
        ledger
    }

    /// With a doorbell.
    pub(crate) fn with_doorbell(doorbell: Arc<TestDoorbell>) -> Self {
        let ledger = Ledger::default();
        ledger.0.lock().doorbell = Some(doorbell);
        ledger
    }

    /// With a doorbell that cannot be had.
    pub(crate) fn failing_at_its_doorbell() -> Self {
        Ledger::failing_at(usize::MAX)
    }

    /// What requests were for, in order, with the one that failed.
    pub(crate) fn purposes(&self) -> Vec<Purpose> {
        self.0.lock().requests.clone()
    }

    /// Live blocks.
    pub(crate) fn live(&self) -> usize {
        self.0.lock().live.len()
    }

    /// Blocks that came back just as they were given out, and all others.
    pub(crate) fn returned(&self) -> (usize, usize) {
        let entries = self.0.lock();
        (entries.returned, entries.strangers.len())
    }

    /// The device address of the one live block for this.
    pub(crate) fn address(&self, purpose: Purpose) -> u64 {
        self.find(purpose).0
    }

    /// Eight bytes of the live block for this, as a device sees them.
    pub(crate) fn word(&self, purpose: Purpose, index: usize) -> u64 {
        self.with_word(purpose, index, |word| word.load(Ordering::Acquire))
    }

    /// Writes eight bytes as a device would, also against the rules.
    pub(crate) fn set_word(&self, purpose: Purpose, index: usize, value: u64) {
        self.with_word(purpose, index, |word| {
            word.store(value, Ordering::Release);
        });
    }

    fn with_word<T>(&self, purpose: Purpose, index: usize, f: impl FnOnce(&AtomicU64) -> T) -> T {
        let entries = self.0.lock();
        let mut live = entries.live.values();
        let (_, host, layout) = live.find(|block| block.0 == purpose).expect("a live block");
        assert!(8 * index < layout.size());
        // SAFETY: the block is live while the ledger is locked, large enough, aligned to 128, and
        // everybody accesses it through atomics.
        f(unsafe { &*(*host as *const AtomicU64).add(index) })
    }

    fn find(&self, purpose: Purpose) -> (u64, Layout) {
        let entries = self.0.lock();
        let mut found = entries.live.iter().filter(|(_, block)| block.0 == purpose);
        let (&device, &(_, _, layout)) = found.next().expect("a live block");
        assert!(found.next().is_none(), "only one is for {purpose:?}");
        (device, layout)
    }
}

// SAFETY: as HostAllocator, which it asks; the device address is never dereferenced in this process.
unsafe impl SharedAllocator for LedgerAllocator {
    type Error = NoMemory;

    fn allocate(&self, layout: Layout, purpose: Purpose) -> Result<SharedBlock, NoMemory> {
        let mut entries = self.0.0.lock();
        let request = entries.requests.len();
        entries.requests.push(purpose);
        if entries.fail_at == Some(request) {
            return Err(NoMemory::Planned(request));
        }
        let block = HostAllocator.allocate(layout, purpose)?;
        let device = DeviceAddress(block.device.0 + AWAY);
        entries.live.insert(device.0, (purpose, block.host.as_ptr() as usize, layout));
        Ok(SharedBlock { device, ..block })
    }

    unsafe fn deallocate(&self, block: SharedBlock) {
        let mut entries = self.0.0.lock();
        match entries.live.remove(&block.device.0) {
            Some((_, host, layout))
                if (host, layout) == (block.host.as_ptr() as usize, block.layout) =>
            {
                entries.returned += 1;
                // SAFETY: the block came from there as it is, and is given back once.
                unsafe { HostAllocator.deallocate(block) }
            }
            _ => entries.strangers.push(block),
        }
    }

    fn doorbell(&self) -> Result<Option<Arc<dyn Doorbell>>, NoMemory> {
        let entries = self.0.0.lock();
        match &entries.doorbell {
            _ if entries.fail_at == Some(usize::MAX) => Err(NoMemory::Doorbell),
            Some(doorbell) => Ok(Some(doorbell.clone())),
            None => Ok(None),
        }
    }
}
