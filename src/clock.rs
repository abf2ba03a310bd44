//! Time from outside, so that a simulation replays exactly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a server asks for the time, to know when a deadline has passed.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment. Never goes back.
    fn now(&self) -> Duration;

    /// Lets time pass, at most `time`, while [`drain`](crate::Server::drain) waits for a handler.
    fn sleep(&self, time: Duration);
}

/// The operating system's monotonic clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A clock that stands still until somebody moves it.
///
/// ```
/// use hostcall::{Clock, ManualClock};
/// use std::time::Duration;
/// let clock = ManualClock::default();
/// clock.advance(Duration::from_secs(3));
/// assert_eq!(clock.now(), Duration::from_secs(3));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves time forward.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.advance(time);
        std::thread::yield_now();
    }
}
