//! Device programs as async closures, run with their server on one thread by a seeded scheduler.
//!
//! A [`Simulation`] runs the real server and the real client over memory of this process. At each
//! step the scheduler picks, from its seed, one of the warps or the server and lets it go on to
//! where it has to wait. So a handler is tested under many interleavings without a GPU and without
//! threads, and a seed that fails replays exactly.
//!
//! What runs on other threads ([`Call::run_blocking`](crate::Call::run_blocking), blocking
//! handlers) is not under the scheduler's control: a simulation with such handlers does not replay.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{AsyncFn, Deref};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytemuck::Pod;
use fastrand::Rng;

use crate::backend::host::{HostAllocator, HostAllocatorError};
use crate::client::{Client, ClientError, ClientOpen};
use crate::clock::{Clock, ManualClock};
use crate::error::{BuildError, ConversationError};
use crate::libc::opcode;
use crate::protocol::atomic::Ordering;
use crate::protocol::{LaneMask, LaneWidth, Opcode, Packet};
use crate::registry::Registry;
use crate::server::{Builder, Conversation, Server};
use crate::state::ExitRequest;
use crate::stats::Stats;

/// A simulated device with its server.
///
/// ```
/// use hostcall::{Opcode, Registry, Simulation};
/// const SQUARE: Opcode = Opcode::new(b'x', 1);
///
/// let registry = Registry::new();
/// registry.unary(SQUARE, |_, number: u64| number * number)?;
/// let report = Simulation::new(&registry).warps(4).seed(7).run(async |warp| {
///     let mut squares = [0; 32];
///     warp.call(SQUARE, |lane| lane as u64, |lane, n: u64| squares[lane as usize] = n).await?;
///     Ok(squares[31])
/// })?;
/// assert_eq!(report.outputs()?, [961; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Simulation {
    registry: Registry,
    seed: u64,
    warps: u32,
    lanes: u32,
    ports: u32,
    step_limit: u64,
    tick: Duration,
    stops: Vec<(u32, u64)>,
    owned: Vec<Box<dyn Any>>,
    configure: Box<dyn Fn(Builder<HostAllocator>) -> Builder<HostAllocator>>,
}

/// Why a simulation did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The server could not be built.
    #[error(transparent)]
    Build(#[from] BuildError<HostAllocatorError>),
    /// A conversation failed and the server's policy is to stop.
    #[error("seed {seed}: {error}")]
    Conversation {
        /// Replays it.
        seed: u64,
        /// What failed.
        #[source]
        error: ConversationError,
    },
    /// After this many steps some warps have neither finished nor stopped.
    #[error("seed {seed}: warps {warps:?} still run after {steps} steps; in flight: {in_flight:?}")]
    Stuck {
        /// Replays it.
        seed: u64,
        /// The limit.
        steps: u64,
        /// The warps that still run.
        warps: Vec<u32>,
        /// What they wait for.
        in_flight: Vec<Conversation>,
    },
    /// A device program ended with an error.
    #[error("seed {seed}: warp {warp}: {error}")]
    Program {
        /// Replays it.
        seed: u64,
        /// The warp.
        warp: u32,
        /// Its error.
        #[source]
        error: ClientError,
    },
}

/// What a simulation came to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report<T> {
    /// The seed, to run it again.
    pub seed: u64,
    /// How many times the scheduler picked.
    pub steps: u64,
    /// What each warp's program returned; `None` for warps that stopped for ever.
    pub results: Vec<Option<Result<T, ClientError>>>,
    /// The server's counters at the end.
    pub stats: Stats,
    /// Conversations that were still in flight at the end.
    pub in_flight: Vec<Conversation>,
    /// The first conversation that failed.
    pub first_error: Option<ConversationError>,
    /// The device program's wish to end.
    pub exit: Option<ExitRequest>,
}

impl<T> Report<T> {
    /// What the programs of all warps returned, in order of the warps, without those that stopped.
    ///
    /// # Errors
    /// [`SimulationError::Program`] with the first that ended with an error.
    pub fn outputs(self) -> Result<Vec<T>, SimulationError> {
        let seed = self.seed;
        let named = |(warp, result): (u32, Option<Result<T, ClientError>>)| {
            result.map(|result| {
                result.map_err(|error| SimulationError::Program { seed, warp, error })
            })
        };
        (0..).zip(self.results).filter_map(named).collect()
    }
}

impl Simulation {
    /// A simulation of one warp of 32 lanes, 8 ports, seed 0.
    pub fn new(registry: &Registry) -> Self {
        Simulation {
            registry: registry.clone(),
            seed: 0,
            warps: 1,
            lanes: 32,
            ports: 8,
            step_limit: 10_000_000,
            tick: Duration::from_micros(1),
            stops: Vec::new(),
            owned: Vec::new(),
            configure: Box::new(|builder| builder),
        }
    }

    /// Decides every choice of the scheduler, and garbage.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many warps run the program.
    #[must_use]
    pub fn warps(mut self, warps: u32) -> Self {
        self.warps = warps;
        self
    }

    /// The lanes of a warp.
    #[must_use]
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = lanes;
        self
    }

    /// How many ports the server has. Fewer than warps makes them queue.
    #[must_use]
    pub fn ports(mut self, ports: u32) -> Self {
        self.ports = ports;
        self
    }

    /// After how many steps to give up.
    #[must_use]
    pub fn step_limit(mut self, steps: u64) -> Self {
        self.step_limit = steps;
        self
    }

    /// How much time passes with each of the server's steps.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Stops a warp for ever after so many of its own steps, wherever it is then.
    #[must_use]
    pub fn stop_warp(mut self, warp: u32, steps: u64) -> Self {
        self.stops.push((warp, steps));
        self
    }

    /// Gives the simulation something to keep for as long as it lives, such as the C library's
    /// [`Services`](crate::libc::Services).
    #[must_use]
    pub fn owning(mut self, value: impl Any) -> Self {
        self.owned.push(Box::new(value));
        self
    }

    /// Changes settings of the server: limits, deadlines, policies, interface.
    #[must_use]
    pub fn server(
        mut self,
        configure: impl Fn(Builder<HostAllocator>) -> Builder<HostAllocator> + 'static,
    ) -> Self {
        self.configure = Box::new(configure);
        self
    }

    /// Runs the program on every warp until all have finished or stopped, then drains the server.
    ///
    /// # Errors
    /// [`SimulationError`], which names the seed. Errors of programs are in the report.
    pub fn run<T>(
        &self,
        program: impl for<'s> AsyncFn(Warp<'s>) -> Result<T, ClientError>,
    ) -> Result<Report<T>, SimulationError> {
        let seed = self.seed;
        let clock = Arc::new(ManualClock::default());
        let builder = Server::builder(HostAllocator)
            .registry(&self.registry)
            .lanes(self.lanes)
            .ports(self.ports)
            .clock(clock.clone());
        let server = (self.configure)(builder).build()?;
        let scene =
            Scene { server: &server, clock: &clock, rng: RefCell::new(Rng::with_seed(seed)) };
        let results = RefCell::new((0..self.warps).map(|_| None).collect::<Vec<_>>());
        let stopped: Vec<_> = (0..self.warps).map(|_| Cell::new(false)).collect();
        let mut programs: Vec<Option<Pin<Box<dyn Future<Output = ()> + '_>>>> = Vec::new();
        for index in 0..self.warps {
            let warp = Warp {
                index,
                mask: LaneMask::all(server.layout().lanes()),
                client: server.client(),
                scene: &scene,
                stopped: &stopped[index as usize],
            };
            let (program, results) = (&program, &results);
            programs.push(Some(Box::pin(async move {
                let result = program(warp).await;
                results.borrow_mut()[index as usize] = Some(result);
            })));
        }
        let failed = |error| SimulationError::Conversation { seed, error };
        let mut steps = 0;
        let mut own_steps = vec![0; self.warps as usize];
        let mut alive: Vec<u32> = (0..self.warps).collect();
        let mut context = Context::from_waker(Waker::noop());
        while !alive.is_empty() {
            if steps == self.step_limit {
                let in_flight = server.conversations();
                return Err(SimulationError::Stuck { seed, steps, warps: alive, in_flight });
            }
            steps += 1;
            let choice = scene.rng.borrow_mut().usize(..=alive.len());
            let Some(&warp) = alive.get(choice) else {
                clock.advance(self.tick);
                server.poll().map_err(failed)?;
                continue;
            };
            let index = warp as usize;
            let finished = match &mut programs[index] {
                Some(program) => program.as_mut().poll(&mut context).is_ready(),
                None => true,
            };
            own_steps[index] += 1;
            if finished {
                programs[index] = None;
                alive.swap_remove(choice);
            } else if stopped[index].get() || self.stops.contains(&(warp, own_steps[index])) {
                // Its future stays: a dead warp does not give its locks back.
                alive.swap_remove(choice);
            }
        }
        server.drain_within(self.step_limit).map_err(failed)?;
        let report = Report {
            seed,
            steps,
            results: results.take(),
            stats: server.stats(),
            in_flight: server.conversations(),
            first_error: server.first_error(),
            exit: server.exit_request(),
        };
        Ok(report)
    }
}

/// What all warps of a simulation share.
struct Scene<'s> {
    server: &'s Server<HostAllocator>,
    clock: &'s ManualClock,
    rng: RefCell<Rng>,
}

/// One warp of a simulated device. Dereferences to its [`Client`].
pub struct Warp<'s> {
    index: u32,
    mask: LaneMask,
    client: Client<'s>,
    scene: &'s Scene<'s>,
    stopped: &'s Cell<bool>,
}

impl<'s> Deref for Warp<'s> {
    type Target = Client<'s>;
    fn deref(&self) -> &Client<'s> {
        &self.client
    }
}

impl<'s> Warp<'s> {
    /// The warp's number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The lanes that take part in what this warp does next. All at first.
    pub fn mask(&self) -> LaneMask {
        self.mask
    }

    /// How many lanes a warp has.
    pub fn lane_width(&self) -> LaneWidth {
        self.scene.server.layout().lanes()
    }

    /// The same warp with only these lanes active, as inside a branch.
    #[must_use]
    pub fn diverge(&self, mask: LaneMask) -> Warp<'s> {
        Warp { mask: mask.cut(self.lane_width()), ..*self }
    }

    /// The server, for a look from outside.
    pub fn server(&self) -> &'s Server<HostAllocator> {
        self.scene.server
    }

    /// Opens a port.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open(&self, opcode: Opcode) -> Result<ClientOpen<'s>, ClientError> {
        self.client.open_async(opcode, self.mask).await
    }

    /// One value from every active lane, one value back.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call<Q: Pod, R: Pod>(
        &self,
        opcode: Opcode,
        request: impl FnMut(u32) -> Q,
        reply: impl FnMut(u32, R),
    ) -> Result<(), ClientError> {
        self.client.call_async(opcode, self.mask, request, reply).await
    }

    /// Writes a text of each active lane to the standard error stream; returns the bytes written.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn write_stderr(&self, text: impl Fn(u32) -> String) -> Result<u64, ClientError> {
        let texts: Vec<_> = (0..64).map(text).collect();
        let opened = self.open(opcode::WRITE_TO_STDERR).await?;
        let mut port = opened.send_stream_async(|lane| texts[lane as usize].as_bytes()).await?;
        let mut written = 0;
        port.recv_async(|lane| written += lane.word(0)).await?;
        Ok(written)
    }

    /// Asks the host to end the program.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn exit(&self, status: i32) -> Result<(), ClientError> {
        let mut port = self.open(opcode::EXIT).await?.send(|_| ());
        port.recv_async(|_| ()).await?;
        port.send_async(|lane| lane.set_word(0, status as u32 as u64)).await
    }

    /// Lets others go first: the scheduler picks anew.
    pub async fn pause(&self) {
        let mut paused = false;
        poll_fn(
            |_| {
                if std::mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending }
            },
        )
        .await;
    }

    /// Moves the simulation's clock forward, then pauses.
    pub async fn pass_time(&self, time: Duration) {
        self.scene.clock.advance(time);
        self.pause().await;
    }

    /// Stops for ever, with all that it holds.
    pub async fn stop(&self) -> ! {
        loop {
            self.stopped.set(true);
            self.pause().await;
        }
    }

    /// Writes garbage wherever a device can write: into header, packets and mailbox of a port that
    /// the seed picks.
    pub fn write_garbage(&self) {
        let channel = self.client.channel();
        let layout = channel.layout();
        let mut rng = self.scene.rng.borrow_mut();
        let port = rng.u32(..layout.ports().get());
        for lane in 0..layout.lanes().get() {
            channel.lane(port, lane).store(&Packet { words: [(); 8].map(|()| rng.u64(..)) });
        }
        channel.set_header(
            port,
            crate::protocol::Header { mask: rng.u64(..), opcode: rng.u32(..), status: rng.u32(..) },
        );
        let value = if rng.bool() { rng.u32(..=1) } else { rng.u32(..) };
        channel.secondary()[port as usize].store(value, Ordering::Release);
    }

    /// The simulation's time.
    pub fn now(&self) -> Duration {
        self.scene.clock.now()
    }
}

impl fmt::Debug for Warp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warp")
            .field("index", &self.index)
            .field("mask", &self.mask)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("seed", &self.seed)
            .field("warps", &self.warps)
            .field("lanes", &self.lanes)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}
