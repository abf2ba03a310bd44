//! Counters of a server.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::error::Cause;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a server has done so far.
        ///
        /// Every conversation is counted in `accepted`, and when it is over in `completed` or in
        /// one of the counters of failures.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, written by the one thread that polls a shard and read by all.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Stats {
            pub(crate) fn sum<'a>(shards: impl Iterator<Item = &'a CachePadded<Counters>>) -> Self {
                let mut stats = Stats::default();
                for shard in shards {
                    $(stats.$name += shard.$name.get();)*
                }
                stats
            }
        }
    };
}

counters! {
    /// Conversations that clients began.
    accepted,
    /// Conversations whose handler finished its work.
    completed,
    /// Conversations that no handler was registered for.
    unknown_opcodes,
    /// Conversations whose handler returned an error.
    handler_errors,
    /// Conversations whose handler panicked.
    panics,
    /// Conversations whose deadline passed.
    expired,
    /// Conversations whose handler went on after its client had finished.
    read_too_much,
    /// Conversations that the server's shutdown ended, or that began after it.
    shut_down,
    /// Packets that came after their conversation was over. Each was answered and dropped.
    strays,
    /// Passes over the mailboxes.
    passes,
}

impl Stats {
    /// Conversations that ended by failure.
    pub fn failed(&self) -> u64 {
        self.unknown_opcodes
            + self.handler_errors
            + self.panics
            + self.expired
            + self.read_too_much
            + self.shut_down
    }

    /// Conversations that have begun and not ended.
    pub fn in_flight(&self) -> u64 {
        // One may begin and end while another thread gathers the counters.
        self.accepted.saturating_sub(self.completed + self.failed())
    }
}

/// A number that one thread at a time counts up.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        // The shard's lock makes this thread the only writer.
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn count(&self, cause: &Cause) {
        let counter = match cause {
            Cause::UnknownOpcode => &self.unknown_opcodes,
            Cause::Handler(_) => &self.handler_errors,
            Cause::Panicked(_) => &self.panics,
            Cause::DeadlineExpired { .. } => &self.expired,
            Cause::ReadTooMuch => &self.read_too_much,
            // The conversation itself has been counted as completed.
            Cause::ReadTooLittle => return,
            Cause::ShutDown => &self.shut_down,
        };
        counter.add(1);
    }
}
