//! The doorbell of LLVM's main branch: what a silent server can sleep at.
//!
//! A client that opens a port counts it, in a counter that both sides see, and the server counts it
//! off when the conversation ends. The client that counts the first one also sends an interrupt, where
//! its device can. So a server may sleep while the counter is zero.
//!
//! The interrupt is said before the first message is: a server that wakes may find nothing yet.

use core::fmt;
use core::time::Duration;

use super::atomic::{AtomicU64, Ordering};

/// Where a device rings: addresses in its own view of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellPointers {
    /// The counter of open ports, eight bytes.
    pub counter: u64,
    /// Eight bytes that take the event's number before the interrupt. Clients write there without a look.
    pub mailbox: u64,
    /// The number that the interrupt carries.
    pub event_id: u32,
}

/// A counter that a device raises and a thread of the host can wait for.
pub trait Doorbell: fmt::Debug + Send + Sync {
    /// The counter, as the host sees it. Zero at first.
    fn counter(&self) -> &AtomicU64;

    /// What the device needs to ring: its own addresses, valid for as long as the doorbell exists.
    fn pointers(&self) -> DoorbellPointers;

    /// Counts one, as a device does, and wakes who waits.
    fn ring(&self);

    /// Waits until the counter is not zero, at most about `limit`. It may return earlier. One thread
    /// waits at a time.
    fn wait(&self, limit: Duration);
}

impl dyn Doorbell + '_ {
    /// Whether no port is open, as far as clients have said.
    pub fn is_silent(&self) -> bool {
        self.counter().load(Ordering::Acquire) == 0
    }

    /// Counts one off. A device that opened without ringing cannot make it wrap.
    pub(crate) fn unring(&self) {
        let counter = self.counter();
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}
