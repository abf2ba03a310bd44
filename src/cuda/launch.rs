//! Launching a kernel, serving it, and telling how it ended.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaStream, DriverError};

use crate::backend::SharedAllocator;
use crate::backend::cuda::{CudaError, has_ended, record};
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
    /// It asked to [exit](Launcher::exit_grace) and then went on. **Do not drop its server**: that
    /// waits for the kernel. End the process, or wait for the stream first.
    StillRuns,
}

/// Why a launch did not end as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The kernel did not start.
    #[error("the kernel was not launched")]
    NotLaunched(#[source] CudaError),
    /// The kernel faulted or was killed. What it had sent before has been served; the conversations
    /// that it was in have been dropped, and the server is shut down. The context can do nothing any
    /// more where the error [says so](CudaError::breaks_context): drop all that belongs to it; the
    /// device can be used again by a new process.
    #[error("the kernel failed{}", during(.dropped))]
    Failed {
        /// What the driver says.
        source: CudaError,
        /// The conversations that the kernel was in.
        dropped: Vec<Conversation>,
    },
    /// The kernel ran longer than the [time limit](Launcher::timeout). The server is shut down, its
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

/// Launches a kernel and serves its calls until it ends.
///
/// Starts polling threads for `server`, calls `launch`, waits until what it put on `stream` has
/// ended, serves what the kernel had sent by then, and stops the threads. The calling thread does not
/// block in the driver. Nothing that the kernel sent before its end is lost.
///
/// # Errors
/// [`LaunchError`]; [`LaunchError::Failed`] where the kernel faulted.
pub fn serve_launch<A: SharedAllocator + 'static, R>(
    server: &Arc<Server<A>>,
    stream: &Arc<CudaStream>,
    launch: impl FnOnce() -> Result<R, DriverError>,
) -> Result<Served, LaunchError> {
    Launcher::new(server).launch(stream, launch)
}

/// Waits for all work that `stream` has now, which `worker` serves meanwhile.
///
/// For programs whose [`Worker`] runs all the time. What the kernels sent before their end has been
/// served when this returns.
///
/// # Errors
/// As [`serve_launch`].
pub fn wait<A: SharedAllocator + 'static>(
    worker: &Worker<A>,
    stream: &Arc<CudaStream>,
) -> Result<Served, LaunchError> {
    let launcher = Launcher::new(worker.server());
    let event = mark(stream)?;
    let ended = match record(&event, stream) {
        Ok(()) => launcher.watch(worker, &event),
        Err(error) => End::Failed(error),
    };
    // What a failed conversation says is the server's to keep.
    let _ = worker.server().drain();
    launcher.conclude(ended)
}

/// Settings of a served launch. [`serve_launch`] has the defaults.
pub struct Launcher<'s, A: SharedAllocator + 'static> {
    server: &'s Arc<Server<A>>,
    threads: usize,
    idle: IdlePolicy,
    timeout: Option<Duration>,
    exit_grace: Option<Duration>,
}

impl<'s, A: SharedAllocator + 'static> Launcher<'s, A> {
    /// Launches for this server: a polling thread for each shard, no time limit.
    pub fn new(server: &'s Arc<Server<A>>) -> Self {
        let (threads, idle) = (server.shards(), IdlePolicy::default());
        Launcher { server, threads, idle, timeout: None, exit_grace: None }
    }

    /// How many threads poll.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// How they wait for a silent device.
    #[must_use]
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// How long a kernel may run. The driver has no way to end one kernel: after this time the wait
    /// ends, not the kernel.
    #[must_use]
    pub fn timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.timeout = limit.into();
        self
    }

    /// How long to wait for the kernel's end once it has asked to exit. Without it, until it ends.
    #[must_use]
    pub fn exit_grace(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.exit_grace = limit.into();
        self
    }

    /// Launches and serves, as [`serve_launch`] does.
    ///
    /// # Errors
    /// As [`serve_launch`].
    pub fn launch<R>(
        &self,
        stream: &Arc<CudaStream>,
        launch: impl FnOnce() -> Result<R, DriverError>,
    ) -> Result<Served, LaunchError> {
        self.run(stream, || launch().map(drop).map_err(|error| CudaError::new("the launch", error)))
    }

    pub(crate) fn run(
        &self,
        stream: &Arc<CudaStream>,
        launch: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Served, LaunchError> {
        // Made first: what fails after the launch leaves a kernel behind.
        let event = mark(stream)?;
        let worker = Worker::builder(self.server.clone()).threads(self.threads).idle(self.idle);
        let worker = worker.start().map_err(LaunchError::Worker)?;
        launch().map_err(LaunchError::NotLaunched)?;
        let end = match record(&event, stream) {
            Ok(()) => self.watch(&worker, &event),
            Err(error) => End::Failed(error),
        };
        if let End::TimedOut(after) = end {
            let conversations = self.server.conversations();
            self.server.shutdown();
            // The worker still polls: clients that call now are told, and the kernel may end.
            let kernel = match ends_within(Duration::from_secs(1), &event) {
                Ok(false) => KernelState::StillRuns,
                Ok(true) | Err(_) => KernelState::Ended,
            };
            return Err(LaunchError::TimedOut { after, kernel, conversations });
        }
        match (end, worker.stop()) {
            (End::Ended | End::Exited, Err(WorkerError::Conversation(error))) => {
                Err(LaunchError::ServerStopped(Some(error)))
            }
            (End::Ended | End::Exited, Err(error)) => Err(LaunchError::Worker(error)),
            (end, _) => self.conclude(end),
        }
    }

    /// Waits for the work that an event marks. Never blocks in the driver, which holds locks there
    /// that other threads' calls need.
    fn watch(&self, worker: &Worker<A>, event: &CudaEvent) -> End {
        let (pace, mut exit_seen) = (Pace::new(), None);
        loop {
            match has_ended(event) {
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
    fn conclude(&self, end: End) -> Result<Served, LaunchError> {
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

/// Whether the work that an event marks ends within some time.
fn ends_within(limit: Duration, event: &CudaEvent) -> Result<bool, CudaError> {
    let pace = Pace::new();
    while !has_ended(event)? {
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
enum End {
    Ended,
    Exited,
    Failed(CudaError),
    TimedOut(Duration),
    ServerStopped,
}

/// An event for the end of what is on a stream.
fn mark(stream: &Arc<CudaStream>) -> Result<CudaEvent, LaunchError> {
    let event = stream.context().new_event(None);
    event.map_err(|error| LaunchError::NotLaunched(CudaError::new("cuEventCreate", error)))
}

impl<A: SharedAllocator + 'static> fmt::Debug for Launcher<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher")
            .field("threads", &self.threads)
            .field("idle", &self.idle)
            .field("timeout", &self.timeout)
            .field("exit_grace", &self.exit_grace)
            .finish_non_exhaustive()
    }
}
