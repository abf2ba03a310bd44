//! What a server shares with the calls it has given to handlers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::backend::ChannelOwner;
use crate::clock::Clock;
use crate::protocol::atomic::AtomicU32;
use crate::protocol::{Channel, Doorbell, LaneMask, LaneWidth, Opcode, PortState};

/// The part of a server that outlives a poll. Calls hold it; the server owns it.
pub(crate) struct Core {
    /// Gone once the server has been dropped, so that a forgotten call keeps no device memory.
    pub(crate) memory: Weak<dyn ChannelOwner>,
    pub(crate) slots: Box<[Mutex<Slot>]>,
    /// Every client mailbox as it was seen last, or as it is while the device has nothing new. What
    /// differs is news. With a conversation in flight it is written under the slot's lock.
    pub(crate) seen: Box<[AtomicU32]>,
    pub(crate) lanes: LaneWidth,
    pub(crate) stream_limit: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bell: Bell,
    pub(crate) closed: AtomicBool,
    exit: Mutex<Option<ExitRequest>>,
}

/// Where the conversation of a port stands while a handler has it.
#[derive(Default)]
pub(crate) struct Slot {
    /// Counts beginnings and ends, so that a call of an earlier conversation is recognised.
    pub(crate) generation: u64,
    pub(crate) state: Option<PortState>,
    /// Who wants to know when the device hands the port over.
    pub(crate) waker: Option<Waker>,
    /// Whether the port changed hands since the server last looked.
    pub(crate) moved: bool,
}

impl Slot {
    /// Begins a conversation and returns its generation.
    pub(crate) fn begin(&mut self, state: PortState) -> u64 {
        self.generation += 1;
        self.state = Some(state);
        self.moved = true;
        self.generation
    }

    /// Whether the device has the port and has not handed it over yet.
    pub(crate) fn waits_for_device(&self, channel: &Channel<'_>, port: u32) -> bool {
        let mailbox = channel.secondary()[port as usize].load(Ordering::Relaxed);
        self.state
            .is_some_and(|state| state.is_waiting() && !channel.is_hosts(mailbox, state.out()))
    }
}

/// A device program's wish to end, with the status it chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRequest {
    /// The exit status.
    pub status: i32,
    /// Whether the program aborted instead of exiting.
    pub aborted: bool,
    /// The port that asked.
    pub port: u32,
    /// The lane whose status it is.
    pub lane: u32,
}

impl Core {
    pub(crate) fn new(
        memory: Weak<dyn ChannelOwner>,
        ports: u32,
        lanes: LaneWidth,
        stream_limit: u64,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Core {
            memory,
            slots: (0..ports).map(|_| Mutex::default()).collect(),
            seen: (0..ports).map(|_| AtomicU32::new(0)).collect(),
            lanes,
            stream_limit,
            clock,
            bell: Bell::default(),
            closed: AtomicBool::new(false),
            exit: Mutex::new(None),
        }
    }

    /// Ends the conversation of a port: its calls can do nothing any more. A thread of the pool that
    /// waits in one is woken, to learn that.
    pub(crate) fn end(&self, port: u32) -> Option<PortState> {
        let mut slot = self.slots[port as usize].lock();
        slot.generation += 1;
        let (state, waker) = (slot.state.take(), slot.waker.take());
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
        state
    }

    /// Keeps the first request.
    pub(crate) fn request_exit(&self, request: ExitRequest) {
        self.exit.lock().get_or_insert(request);
        self.bell.ring();
    }

    pub(crate) fn exit_request(&self) -> Option<ExitRequest> {
        *self.exit.lock()
    }
}

/// What a handler may know of its conversation besides the packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) opcode: Opcode,
    pub(crate) port: u32,
    pub(crate) mask: LaneMask,
}

/// Wakes sleeping workers. Each hears every ring, also those from before it went to sleep.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rings: AtomicU64,
    /// Threads that sleep, or are about to: with none, a ring is one addition.
    asleep: AtomicUsize,
    place: Mutex<Place>,
    heard: Condvar,
}

/// The one place to sleep at the device's doorbell. Other sleepers are woken by who had it.
#[derive(Debug, Default)]
struct Place {
    taken: Option<Arc<dyn Doorbell>>,
    /// Whether the host has rung it too, which has to be counted off.
    rung: bool,
}

impl Bell {
    pub(crate) fn ring(&self) {
        // Sequentially consistent, as in `wait`: either this sees the sleeper or that sees the ring.
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) == 0 {
            return;
        }
        // With the lock held, a sleeper is either before its look at `rings` or asleep.
        let mut place = self.place.lock();
        if let Some(doorbell) = &place.taken
            && !place.rung
        {
            doorbell.ring();
            place.rung = true;
        }
        drop(place);
        self.heard.notify_all();
    }

    /// Sleeps until there are more rings than the caller had `heard`, at most `time`; at a doorbell
    /// also until a device rings it.
    pub(crate) fn wait(
        &self,
        heard: &mut u64,
        time: Duration,
        doorbell: Option<&Arc<dyn Doorbell>>,
    ) {
        let mut place = self.place.lock();
        self.asleep.fetch_add(1, Ordering::SeqCst);
        if self.rings.load(Ordering::SeqCst) == *heard {
            match doorbell {
                Some(doorbell) if place.taken.is_none() => {
                    place.taken = Some(doorbell.clone());
                    MutexGuard::unlocked(&mut place, || doorbell.wait(time));
                    place.taken = None;
                    if std::mem::take(&mut place.rung) {
                        doorbell.unring();
                    }
                    // It may be another's shard that the device rang for, and somebody has to wait here.
                    self.heard.notify_all();
                }
                _ => {
                    self.heard.wait_for(&mut place, time);
                }
            }
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        *heard = self.rings.load(Ordering::SeqCst);
    }
}

/// The conversations of one shard that somebody has woken.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    any: AtomicBool,
    ports: Mutex<Vec<u32>>,
}

impl ReadyQueue {
    fn push(&self, port: u32) {
        self.ports.lock().push(port);
        self.any.store(true, Ordering::Release);
    }

    /// Moves all woken ports into `into`.
    pub(crate) fn take(&self, into: &mut Vec<u32>) {
        if self.any.swap(false, Ordering::AcqRel) {
            into.append(&mut self.ports.lock());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
}

/// The waker of a port's conversation. One for each port, made when it is first needed.
pub(crate) struct PortWaker {
    port: u32,
    queued: AtomicBool,
    ready: Arc<ReadyQueue>,
    core: Weak<Core>,
}

impl PortWaker {
    pub(crate) fn new(port: u32, ready: Arc<ReadyQueue>, core: &Arc<Core>) -> Arc<Self> {
        Arc::new(PortWaker {
            port,
            queued: AtomicBool::new(false),
            ready,
            core: Arc::downgrade(core),
        })
    }

    /// Takes the port off the queue: a wake from here on queues it again.
    pub(crate) fn unqueue(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for PortWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.port);
            if let Some(core) = self.core.upgrade() {
                core.bell.ring();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_heard_by_each_sleeper() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        for mut heard in [0, 0, 1] {
            bell.wait(&mut heard, Duration::from_secs(3600), None);
            assert_eq!(heard, 2);
        }
    }

    #[test]
    fn a_ring_ends_a_wait() {
        let bell = Bell::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| bell.wait(&mut 0, Duration::from_secs(3600), None));
            }
            bell.ring();
        });
    }
}
