//! Memory for device programs: what `MALLOC` hands out and `FREE` takes back.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::{Purpose, SharedAllocator, SharedBox};

/// The alignment of small allocations, as of C's `malloc` on 64-bit systems.
const SMALL_ALIGN: u64 = 16;
/// The device library's slab allocator asks for slabs of this size and wants them aligned to it.
const SLAB: u64 = 2 << 20;

/// Memory that device code allocates, from an allocator of the host's choice.
///
/// - [`Heap::pool`] takes all its memory when it is made and gives out parts of it. Use it on
///   NVIDIA: there the driver may wait for the running kernel before it maps anything, and the
///   kernel waits for its `malloc`.
/// - [`Heap::growing`] asks the allocator each time, up to a cap.
///
/// Allocations of 2 MiB and more are aligned to 2 MiB on the device, smaller ones to 16 bytes. When
/// nothing is left the device gets null. An address that is not a live allocation of this heap
/// (freed twice, forged) is refused and counted. Dropping the heap gives everything back.
#[derive(Clone)]
pub struct Heap(Arc<Mutex<State>>);

/// What a heap has given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Live allocations.
    pub live: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// The most bytes that were live at once.
    pub peak_bytes: u64,
    /// Allocations that were refused because nothing was left.
    pub exhausted: u64,
    /// Frees of addresses that are not live allocations.
    pub bad_frees: u64,
}

struct State {
    source: Box<dyn Source>,
    /// Size of each live allocation by its device address.
    live: BTreeMap<u64, u64>,
    stats: HeapStats,
}

/// Where a heap's memory comes from.
trait Source: Send {
    fn take(&mut self, size: u64, align: u64) -> Option<u64>;
    fn give(&mut self, address: u64, size: u64);
}

impl Heap {
    /// A heap of `size` bytes, all taken from the allocator now, with 2 MiB more for alignment where
    /// it has room for a slab.
    ///
    /// # Errors
    /// The allocator's.
    pub fn pool<A: SharedAllocator + 'static>(allocator: A, size: u64) -> Result<Self, A::Error> {
        // Room to begin at a slab's boundary, so that as many slabs fit as the size says.
        let padding = if size >= SLAB { SLAB } else { 0 };
        let whole = layout(size.saturating_add(padding));
        let block = SharedBox::new(Arc::new(allocator), whole, Purpose::Heap)?;
        let start = match padding {
            0 => block.device().0,
            _ => block.device().0.next_multiple_of(SLAB),
        };
        Ok(Self::of(start, size, block))
    }

    /// A heap of the `size` bytes at a device address, for memory that the host does not reach. `owner`
    /// is dropped with the heap. Slabs of 2 MiB fit where the memory has their boundaries.
    pub fn of(address: u64, size: u64, owner: impl Send + 'static) -> Self {
        let free = BTreeMap::from([(address, size)]);
        Self::new(Pool { free, _owner: Box::new(owner) })
    }

    /// A heap that asks the allocator for every allocation, `cap` bytes at most.
    pub fn growing<A: SharedAllocator + 'static>(allocator: A, cap: u64) -> Self {
        let allocator = Arc::new(allocator);
        Self::new(Growing { allocator, blocks: BTreeMap::new(), left: cap })
    }

    fn new(source: impl Source + 'static) -> Self {
        let (live, stats) = (BTreeMap::new(), HeapStats::default());
        Heap(Arc::new(Mutex::new(State { source: Box::new(source), live, stats })))
    }

    /// Allocates; the device address, or `None` when nothing is left. Zero bytes are as one.
    pub fn allocate(&self, size: u64) -> Option<u64> {
        let state = &mut *self.0.lock();
        let align = if size >= SLAB { SLAB } else { SMALL_ALIGN };
        let rounded = size.max(1).checked_next_multiple_of(SMALL_ALIGN);
        let Some(address) = rounded.and_then(|size| state.source.take(size, align)) else {
            state.stats.exhausted += 1;
            return None;
        };
        let size = rounded.unwrap_or(size);
        state.live.insert(address, size);
        state.stats.live += 1;
        state.stats.live_bytes += size;
        state.stats.peak_bytes = state.stats.peak_bytes.max(state.stats.live_bytes);
        Some(address)
    }

    /// Frees an allocation; says whether the address was one. Null is, as in C.
    pub fn free(&self, address: u64) -> bool {
        let state = &mut *self.0.lock();
        if address == 0 {
            return true;
        }
        let Some(size) = state.live.remove(&address) else {
            state.stats.bad_frees += 1;
            return false;
        };
        state.source.give(address, size);
        state.stats.live -= 1;
        state.stats.live_bytes -= size;
        true
    }

    /// What has been given out so far.
    pub fn stats(&self) -> HeapStats {
        self.0.lock().stats
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn layout(size: u64) -> Layout {
    let size = usize::try_from(size).unwrap_or(usize::MAX).min(isize::MAX as usize - 4095);
    Layout::from_size_align(size, 256).expect("cut to what a layout can say")
}

/// First fit in one block, neighbours joined when they are given back.
struct Pool {
    /// Size of each free piece by its device address.
    free: BTreeMap<u64, u64>,
    _owner: Box<dyn Send>,
}

impl Source for Pool {
    fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let (start, length, address) = self.free.iter().find_map(|(&start, &length)| {
            let address = start.checked_next_multiple_of(align)?;
            let end = address.checked_add(size)?;
            (end <= start + length).then_some((start, length, address))
        })?;
        self.free.remove(&start);
        if address > start {
            self.free.insert(start, address - start);
        }
        let behind = start + length - (address + size);
        if behind > 0 {
            self.free.insert(address + size, behind);
        }
        Some(address)
    }

    fn give(&mut self, address: u64, size: u64) {
        let (mut start, mut length) = (address, size);
        if let Some((&before, &its_length)) = self.free.range(..address).next_back()
            && before + its_length == address
        {
            self.free.remove(&before);
            start = before;
            length += its_length;
        }
        if let Some(behind) = self.free.remove(&(address + size)) {
            length += behind;
        }
        self.free.insert(start, length);
    }
}

/// One block for each allocation.
struct Growing<A: SharedAllocator> {
    allocator: Arc<A>,
    blocks: BTreeMap<u64, SharedBox<A>>,
    left: u64,
}

impl<A: SharedAllocator> Source for Growing<A> {
    fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let left = self.left.checked_sub(size)?;
        // Allocators promise small alignments only, and for the host's address.
        let padded = size.checked_add(align)?;
        if isize::try_from(padded).is_err() {
            return None;
        }
        let block = SharedBox::new(self.allocator.clone(), layout(padded), Purpose::Heap).ok()?;
        let address = block.device().0.checked_next_multiple_of(align)?;
        self.blocks.insert(address, block);
        self.left = left;
        Some(address)
    }

    fn give(&mut self, address: u64, size: u64) {
        self.blocks.remove(&address);
        self.left += size;
    }
}

#[cfg(all(test, feature = "host", unix))]
mod tests {
    use super::*;
    use crate::backend::host::HostAllocator;

    fn heaps() -> [Heap; 2] {
        [Heap::pool(HostAllocator, 8 << 20).unwrap(), Heap::growing(HostAllocator, 8 << 20)]
    }

    #[test]
    fn slabs_are_aligned_and_small_ones_do_not_overlap() {
        for heap in heaps() {
            let slab = heap.allocate(SLAB).unwrap();
            assert_eq!(slab % SLAB, 0);
            let mut small: Vec<_> = (1..100).map(|n| (heap.allocate(n).unwrap(), n)).collect();
            small.sort_unstable();
            assert!(small.iter().all(|(address, _)| address % 16 == 0));
            assert!(small.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert!(small.iter().all(|(at, n)| at + n <= slab || *at >= slab + SLAB));
        }
    }

    #[test]
    fn what_is_freed_can_be_had_again() {
        for heap in heaps() {
            for round in 0..100 {
                let all: Vec<_> =
                    (0..50).map(|n| heap.allocate(100_000 + n * 16).unwrap()).collect();
                let (even, odd): (Vec<_>, Vec<_>) = all.iter().partition(|at| *at / 16 % 2 == 0);
                assert!(even.iter().chain(&odd).all(|&at| heap.free(at)), "round {round}");
                assert_eq!((heap.stats().live, heap.stats().live_bytes), (0, 0));
            }
            let slabs: Vec<_> = (0..4).map(|_| heap.allocate(SLAB)).collect();
            assert!(slabs.iter().all(Option::is_some), "the pieces were joined");
        }
    }

    #[test]
    fn an_empty_heap_answers_null_and_counts() {
        for heap in heaps() {
            assert_eq!(heap.allocate(u64::MAX), None);
            assert_eq!(heap.allocate(i64::MAX as u64), None);
            assert_eq!(heap.allocate(9 << 20), None);
            assert_eq!(heap.stats().exhausted, 3);
            assert!(heap.allocate(0).is_some(), "nothing was lost");
        }
    }

    #[test]
    fn addresses_that_are_not_allocations_are_refused() {
        for heap in heaps() {
            let address = heap.allocate(64).unwrap();
            assert!(!heap.free(address + 16));
            assert!(heap.free(address));
            assert!(!heap.free(address), "twice");
            assert!(heap.free(0), "null is nothing");
            assert_eq!(heap.stats().bad_frees, 2);
        }
    }
}
