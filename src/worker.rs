//! Threads that poll a server, and how they idle.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::backend::SharedAllocator;
use crate::error::ConversationError;
use crate::server::{Conversation, Drained, Server};

/// How a worker waits for a silent device.
///
/// First it spins, which answers fastest. Then it lets other threads run between its looks. Then it
/// sleeps, longer and longer up to a maximum, and looks again after each sleep, so a wake-up that
/// gets lost costs one sleep and no more. [`Server::wake`] and finished blocking work end a sleep.
///
/// Where the device can wake the host ([`SharedAllocator::doorbell`]) and no conversation is open, the
/// sleep is at its doorbell, and longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// How long to spin after the last work.
    pub spin: Duration,
    /// How long to yield to other threads after that.
    pub pause: Duration,
    /// The longest sleep after that.
    pub max_sleep: Duration,
    /// The longest sleep at a doorbell; none there if it is zero.
    pub doorbell: Duration,
}

impl Default for IdlePolicy {
    /// Spins for 50 µs, yields for 200 µs, sleeps for at most 500 µs, and 100 ms at a doorbell.
    fn default() -> Self {
        IdlePolicy {
            spin: Duration::from_micros(50),
            pause: Duration::from_micros(200),
            max_sleep: Duration::from_micros(500),
            doorbell: Duration::from_millis(100),
        }
    }
}

impl IdlePolicy {
    /// Never sleeps: the fastest answers, for a core of its own.
    pub const BUSY: IdlePolicy = IdlePolicy {
        spin: Duration::MAX,
        pause: Duration::ZERO,
        max_sleep: Duration::ZERO,
        doorbell: Duration::ZERO,
    };
}

/// Why a worker did not stop as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The server stopped at a failed conversation, as its policy says.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// A handler that blocks its thread has not returned. The thread was left behind.
    #[error(
        "a handler has blocked its worker for {waited:?}{}; handlers that wait belong on the pool",
        named(*.handler)
    )]
    Stuck {
        /// How long its end was waited for.
        waited: Duration,
        /// The conversation that it is in.
        handler: Option<Conversation>,
    },
    /// The operating system has no thread.
    #[error("cannot start a worker thread")]
    Spawn(#[source] std::io::Error),
}

/// What blocks a worker, for its error message.
fn named(handler: Option<Conversation>) -> String {
    let Some(Conversation { opcode, port, .. }) = handler else {
        return String::new();
    };
    format!(", in a conversation with opcode {opcode} on port {port}")
}

/// Threads that poll a server until they are stopped or dropped.
///
/// The thread that launches a kernel and waits for it must not be the one that serves its calls:
/// neither would go on. A worker is a thread of its own for that.
///
/// ```
/// use hostcall::{LaneMask, Opcode, Registry, Server, Worker, backend::host::HostAllocator};
/// const DOUBLE: Opcode = Opcode::new(b'x', 1);
/// let registry = Registry::new();
/// registry.unary(DOUBLE, |_, number: u64| 2 * number)?;
/// let worker = Worker::start(Server::builder(HostAllocator).registry(&registry).build()?)?;
/// let mut replies = 0;
/// let lanes = LaneMask(0xff);
/// worker.server().client().call(DOUBLE, lanes, |lane| lane as u64, |_, n: u64| replies += n)?;
/// assert_eq!(replies, 56);
/// worker.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker<A: SharedAllocator + 'static> {
    server: Arc<Server<A>>,
    control: Arc<Control>,
    threads: Vec<JoinHandle<()>>,
    /// Whether the end was waited for in vain.
    stuck: bool,
}

/// Settings of a [`Worker`].
pub struct WorkerBuilder<A: SharedAllocator + 'static> {
    server: Arc<Server<A>>,
    threads: usize,
    idle: IdlePolicy,
    name: String,
}

#[derive(Default)]
struct Control {
    stop: AtomicBool,
    running: Mutex<usize>,
    ended: Condvar,
    error: Mutex<Option<ConversationError>>,
}

impl<A: SharedAllocator + 'static> WorkerBuilder<A> {
    /// How many threads poll. They share the server's [shards](crate::Builder::shards), so more
    /// threads than shards are not started. 1 by default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// How to wait for a silent device.
    #[must_use]
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// The threads' name. `hostcall` by default.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// [`WorkerError::Spawn`]; threads that did start have ended then.
    pub fn start(self) -> Result<Worker<A>, WorkerError> {
        let count = self.threads.clamp(1, self.server.shards());
        let control = Arc::<Control>::default();
        let mut worker = Worker { server: self.server, control, threads: Vec::new(), stuck: false };
        for number in 0..count {
            let shards: Vec<_> = (number..worker.server.shards()).step_by(count).collect();
            let (server, control) = (worker.server.clone(), worker.control.clone());
            let idle = self.idle;
            // Counted before it runs, so that a stop before its first instruction waits for it.
            let running = Running::new(&control);
            let handle = thread::Builder::new()
                .name(self.name.clone())
                .spawn(move || {
                    let _running = running;
                    serve(&server, &shards, idle, &control);
                })
                .map_err(WorkerError::Spawn)?;
            worker.threads.push(handle);
        }
        Ok(worker)
    }
}

/// One of the running threads, until it is dropped: also when the thread panics or never starts.
struct Running(Arc<Control>);

impl Running {
    fn new(control: &Arc<Control>) -> Self {
        *control.running.lock() += 1;
        Running(control.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.ended.notify_all();
    }
}

fn serve<A: SharedAllocator + 'static>(
    server: &Server<A>,
    shards: &[usize],
    idle: IdlePolicy,
    control: &Control,
) {
    let (mut idle_since, mut heard) = (None, 0);
    let own_doorbell = server.doorbell().filter(|_| !idle.doorbell.is_zero());
    while !control.stop.load(Ordering::Acquire) {
        let mut served = 0;
        for &shard in shards {
            match server.poll_shard(shard) {
                Ok(n) => served += n,
                Err(error) => {
                    control.error.lock().get_or_insert(error);
                    return;
                }
            }
        }
        if served > 0 {
            idle_since = None;
            continue;
        }
        let silent = idle_since.get_or_insert_with(Instant::now).elapsed();
        if silent < idle.spin {
            std::hint::spin_loop();
        } else if silent < idle.spin.saturating_add(idle.pause) || idle.max_sleep.is_zero() {
            thread::yield_now();
        } else {
            // With a port open, the doorbell does not tell of the next message.
            let doorbell = own_doorbell.filter(|doorbell| doorbell.is_silent());
            let time = match doorbell {
                Some(_) => idle.doorbell,
                None => (silent / 4).min(idle.max_sleep),
            };
            server.core().bell.wait(&mut heard, time, doorbell);
            if doorbell.is_some_and(|doorbell| !doorbell.is_silent()) {
                // Devices ring before their message is there.
                idle_since = None;
            }
        }
    }
}

impl<A: SharedAllocator + 'static> Worker<A> {
    /// Starts one thread with the default idle policy.
    ///
    /// # Errors
    /// [`WorkerError::Spawn`].
    pub fn start(server: impl Into<Arc<Server<A>>>) -> Result<Self, WorkerError> {
        Self::builder(server).start()
    }

    /// Settings of a worker for this server.
    pub fn builder(server: impl Into<Arc<Server<A>>>) -> WorkerBuilder<A> {
        WorkerBuilder {
            server: server.into(),
            threads: 1,
            idle: IdlePolicy::default(),
            name: "hostcall".to_owned(),
        }
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server<A>> {
        &self.server
    }

    /// Whether all threads poll. They end by themselves under
    /// [`ErrorPolicy::Stop`](crate::ErrorPolicy::Stop).
    pub fn is_running(&self) -> bool {
        *self.control.running.lock() == self.threads.len()
    }

    /// Ends the threads, then serves what clients had sent by then. Clients that call later find
    /// nobody: [shut the server down](Server::shutdown) to have them told.
    ///
    /// # Errors
    /// [`WorkerError`]. A thread whose handler does not return within the server's drain limit is
    /// left behind.
    pub fn stop(mut self) -> Result<Drained, WorkerError> {
        self.end()?;
        if let Some(error) = self.control.error.lock().take() {
            return Err(error.into());
        }
        Ok(self.server.drain()?)
    }

    fn end(&mut self) -> Result<(), WorkerError> {
        self.end_within(self.server.drain_limit())
    }

    /// Ends the threads, and waits for that at most so long, also when it is dropped later.
    pub(crate) fn end_within(&mut self, limit: Duration) -> Result<(), WorkerError> {
        self.control.stop.store(true, Ordering::Release);
        self.server.wake();
        let end = Instant::now() + limit;
        let own = thread::current().id();
        // Dropped by one of its handlers, a worker cannot wait for itself.
        let own = usize::from(self.threads.iter().any(|thread| thread.thread().id() == own));
        let mut running = self.control.running.lock();
        while *running > own {
            self.server.wake();
            let woken = self.control.ended.wait_for(&mut running, Duration::from_millis(10));
            if woken.timed_out() && Instant::now() >= end {
                self.stuck = true;
                let handler = self.server.running_handlers().next();
                return Err(WorkerError::Stuck { waited: limit, handler });
            }
        }
        drop(running);
        if own == 0 {
            // No longer counted, a thread has nothing left to do but return.
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
        Ok(())
    }
}

impl<A: SharedAllocator + 'static> Drop for Worker<A> {
    fn drop(&mut self) {
        // Whoever wants to know calls `stop`, and what was stuck then has been waited for.
        if !self.stuck {
            let _ = self.end();
        }
    }
}

impl<A: SharedAllocator + 'static> fmt::Debug for Worker<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("threads", &self.threads.len())
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl<A: SharedAllocator + 'static> fmt::Debug for WorkerBuilder<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("threads", &self.threads)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}
