//! Serving a kernel while it runs, and telling how it ended, whatever the runtime that launched it.

use std::error::Error;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::backend::SharedAllocator;
use crate::error::ConversationError;
use crate::server::{Conversation, Server};
use crate::state::ExitRequest;
use crate::worker::{IdlePolicy, Worker, WorkerError};

/// How a served launch went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// Whether the kernel has ended.
    pub kernel: KernelState,
    /// The device program's wish to end, where it had one.
    pub exit: Option<ExitRequest>,
    /// Conversations that the kernel left in the middle, and handlers that took longer than the
    /// server's drain limit. Most kernels leave none.
    pub unfinished: Vec<Conversation>,
}

/// Whether a kernel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelState {
    /// All threads have.
    Ended,
    /// It asked to exit and then went on. **Do not drop its server**: that
    /// waits for the kernel. End the process, or wait for the stream first.
    StillRuns,
}

/// Why a launch did not end as it should; `E` is the runtime's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError<E: Error + 'static> {
    /// The kernel did not start.
    #[error("the kernel was not launched")]
    NotLaunched(#[source] E),
    /// The kernel faulted or was killed. What it had sent before has been served; the conversations
    /// that it was in have been dropped, and the server is shut down. After most faults the runtime
    /// can do nothing more with what belongs to the kernel's context or queue: drop all of that; a
    /// new process can use the device again.
    #[error("the kernel failed{}", during(.dropped))]
    Failed {
        /// What the runtime says.
        source: E,
        /// The conversations that the kernel was in.
        dropped: Vec<Conversation>,
    },
    /// The kernel ran longer than the time limit. The server is shut down, its
    /// clients have been told so. Look at `kernel` before you drop the server.
    #[error("the kernel has run for more than {after:?}{}", during(.conversations))]
    TimedOut {
        /// The limit.
        after: Duration,
        /// Whether it ended once its calls were refused.
        kernel: KernelState,
        /// The conversations that the kernel is in.
        conversations: Vec<Conversation>,
    },
    /// The server stopped serving, as its [policy](crate::ErrorPolicy::Stop) says. The kernel may
    /// still run and wait for it: **do not drop the server** then, that waits for the kernel.
    #[error("the server stopped while the kernel ran")]
    ServerStopped(#[source] Option<ConversationError>),
    /// The polling threads did not start or not stop.
    #[error(transparent)]
    Worker(WorkerError),
}

/// What a kernel was in, for an error message.
fn during(conversations: &[Conversation]) -> String {
    let Some(first) = conversations.first() else {
        return String::new();
    };
    let more = match conversations.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(", in a conversation with opcode {} on port {}{more}", first.opcode, first.port)
}

/// How a kernel is served and waited for.
pub(crate) struct Watch<'s, A: SharedAllocator + 'static> {
    pub(crate) server: &'s Arc<Server<A>>,
    /// How many threads poll.
    pub(crate) threads: usize,
    /// How they wait for a silent device.
    pub(crate) idle: IdlePolicy,
    /// How long the kernel may run.
    pub(crate) timeout: Option<Duration>,
    /// How long to wait for the kernel's end once it has asked to exit; until it ends where `None`.
    pub(crate) exit_grace: Option<Duration>,
}

impl<'s, A: SharedAllocator + 'static> Watch<'s, A> {
    /// A polling thread for each shard, no time limit.
    pub(crate) fn new(server: &'s Arc<Server<A>>) -> Self {
        let (threads, idle) = (server.shards(), IdlePolicy::default());
        Watch { server, threads, idle, timeout: None, exit_grace: None }
    }

    /// Serves while `launch` starts a kernel and until the kernel has ended, which the function that
    /// `launch` returns tells. That one must not block: runtimes hold locks then that other threads'
    /// calls need. It is dropped once it has said so, and never before: what it owns the kernel may use.
    pub(crate) fn serve<E, F>(
        &self,
        launch: impl FnOnce() -> Result<F, E>,
    ) -> Result<Served, LaunchError<E>>
    where
        E: Error + 'static,
        F: FnMut() -> Result<bool, E>,
    {
        let worker = Worker::builder(self.server.clone()).threads(self.threads).idle(self.idle);
        let mut worker = worker.start().map_err(LaunchError::Worker)?;
        let mut ended = launch().map_err(LaunchError::NotLaunched)?;
        let end = self.watch(&worker, &mut ended);
        if let End::TimedOut(after) = end {
            let conversations = self.server.conversations();
            // What is late is not waited for twice: a handler that blocks its thread may be why.
            self.server.shutdown_within(Duration::from_millis(100));
            // The worker still polls: clients that call now are told, and the kernel may end.
            let kernel = match ends_within(Duration::from_secs(1), &mut ended) {
                Ok(false) => KernelState::StillRuns,
                Ok(true) | Err(_) => KernelState::Ended,
            };
            if kernel == KernelState::StillRuns {
                mem::forget(ended);
            }
            let _ = worker.end_within(Duration::from_secs(1));
            return Err(LaunchError::TimedOut { after, kernel, conversations });
        }
        match end {
            End::Ended | End::Failed(_) => drop(ended),
            End::Exited | End::TimedOut(_) | End::ServerStopped => mem::forget(ended),
        }
        match (end, worker.stop()) {
            (End::Ended | End::Exited, Err(WorkerError::Conversation(error))) => {
                Err(LaunchError::ServerStopped(Some(error)))
            }
            (End::Ended | End::Exited, Err(error)) => Err(LaunchError::Worker(error)),
            (end, _) => self.conclude(end),
        }
    }

    /// Waits until a kernel that `worker` serves has ended.
    pub(crate) fn watch<E>(
        &self,
        worker: &Worker<A>,
        mut ended: impl FnMut() -> Result<bool, E>,
    ) -> End<E> {
        let (pace, mut exit_seen) = (Pace::new(), None);
        loop {
            match ended() {
                Ok(true) => return End::Ended,
                Ok(false) => {}
                Err(error) => return End::Failed(error),
            }
            if !worker.is_running() {
                return End::ServerStopped;
            }
            if let Some(limit) = self.timeout
                && pace.began.elapsed() >= limit
            {
                return End::TimedOut(limit);
            }
            if let Some(grace) = self.exit_grace
                && self.server.exit_request().is_some()
                && exit_seen.get_or_insert_with(Instant::now).elapsed() >= grace
            {
                return End::Exited;
            }
            pace.step();
        }
    }

    /// Reports an end, after all that the kernel sent has been served.
    pub(crate) fn conclude<E: Error>(&self, end: End<E>) -> Result<Served, LaunchError<E>> {
        let conversations = self.server.conversations();
        let kernel = match end {
            End::Ended => KernelState::Ended,
            End::Exited => KernelState::StillRuns,
            End::Failed(source) => {
                self.server.shutdown();
                return Err(LaunchError::Failed { source, dropped: conversations });
            }
            End::ServerStopped => {
                self.server.shutdown();
                return Err(LaunchError::ServerStopped(self.server.first_error()));
            }
            End::TimedOut(after) => {
                let kernel = KernelState::StillRuns;
                return Err(LaunchError::TimedOut { after, kernel, conversations });
            }
        };
        Ok(Served { kernel, exit: self.server.exit_request(), unfinished: conversations })
    }
}

/// Whether a kernel ends within some time.
fn ends_within<E>(limit: Duration, mut ended: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let pace = Pace::new();
    while !ended()? {
        if pace.began.elapsed() >= limit {
            return Ok(false);
        }
        pace.step();
    }
    Ok(true)
}

/// How often to look: at first all the time, later every 200 µs.
struct Pace {
    began: Instant,
}

impl Pace {
    fn new() -> Self {
        Pace { began: Instant::now() }
    }

    fn step(&self) {
        let waited = self.began.elapsed();
        if waited < Duration::from_micros(100) {
            thread::yield_now();
        } else {
            thread::sleep((waited / 16).min(Duration::from_micros(200)));
        }
    }
}

/// How a wait ended.
pub(crate) enum End<E> {
    Ended,
    Exited,
    Failed(E),
    TimedOut(Duration),
    ServerStopped,
}

impl<A: SharedAllocator + 'static> fmt::Debug for Watch<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("threads", &self.threads)
            .field("idle", &self.idle)
            .field("timeout", &self.timeout)
            .field("exit_grace", &self.exit_grace)
            .finish_non_exhaustive()
    }
}
