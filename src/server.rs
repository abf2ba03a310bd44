//! The host's end: owns the shared memory and the conversations, and serves them when polled.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};

use crate::backend::{ChannelOwner, DeviceAddress, SharedAllocator, SharedMemory};
use crate::client::Client;
use crate::clock::{Clock, SystemClock};
use crate::error::{BuildError, ConversationError, WaitingFor};
use crate::protocol::atomic::AtomicU32;
use crate::protocol::{
    Abi, ClientImage, Doorbell, LaneMask, LaneWidth, Layout, Locks, Opcode, PortCount,
};
use crate::registry::Registry;
use crate::shard::{Busy, Deadlines, Pass, Shard};
use crate::state::{Core, ExitRequest};
use crate::stats::{Counters, Stats};

/// What a server does after a conversation has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// Serve the others. The error is counted, kept if it is the first, and given to the hook.
    #[default]
    KeepServing,
    /// As above, and [`poll`](Server::poll) returns it from now on and serves nothing more. Clients
    /// of this process that wait are told that the server is gone.
    Stop,
}

/// A conversation in flight, as [`Server::conversations`] describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conversation {
    /// What the client asked for.
    pub opcode: Opcode,
    /// The port that it uses.
    pub port: u32,
    /// The lanes that take part.
    pub lanes: LaneMask,
    /// Time since its first packet.
    pub age: Duration,
    /// Whose turn it is.
    pub waiting_for: WaitingFor,
}

/// How long passes take whose handlers do not block.
const A_PASS: Duration = Duration::from_millis(100);

/// What [`Server::drain`] left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// How many conversations began or took a step meanwhile.
    pub served: usize,
    /// Conversations that wait for a device which says nothing more, or for a handler that took
    /// longer than the limit.
    pub unfinished: usize,
}

type ErrorHook = Box<dyn Fn(&ConversationError) + Send + Sync>;

/// Serves the calls that device code makes.
///
/// It owns the shared memory, which goes back to the allocator when the server is dropped. It has
/// no thread: [`poll`](Self::poll) serves what is ready and returns. A [`Worker`](crate::Worker)
/// polls in the background.
///
/// ```
/// use hostcall::{LaneMask, Opcode, Registry, Server, backend::host::HostAllocator};
/// const SQUARE: Opcode = Opcode::new(b'x', 1);
/// let registry = Registry::new();
/// registry.unary(SQUARE, |_, number: u64| number * number)?;
/// let server = Server::builder(HostAllocator).registry(&registry).build()?;
///
/// // A client in this process, where a kernel would be:
/// let port = server.client().try_open(SQUARE, LaneMask::lane(0))?.expect("a port is free");
/// let mut port = port.send(|lane| lane.set_word(0, 12));
/// server.poll()?;
/// let mut reply = 0;
/// assert!(port.try_recv(|lane| reply = lane.word(0)).is_ready());
/// assert_eq!(reply, 144);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server<A: SharedAllocator> {
    memory: Arc<SharedMemory<A>>,
    core: Arc<Core>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    counters: Box<[CachePadded<Counters>]>,
    registry: Registry,
    deadlines: Deadlines,
    policy: ErrorPolicy,
    hook: Option<ErrorHook>,
    first_error: Mutex<Option<ConversationError>>,
    /// Of each shard.
    busy: Box<[CachePadded<Busy>]>,
    drain_limit: Duration,
    client_locks: Box<[AtomicU32]>,
    next_client: std::sync::atomic::AtomicU32,
    /// Dropped with the server, after its conversations.
    owned: Vec<Box<dyn Any + Send + Sync>>,
}

/// Settings of a [`Server`].
pub struct Builder<A: SharedAllocator> {
    allocator: Arc<A>,
    abi: Abi,
    ports: u32,
    lanes: u32,
    shards: u32,
    registry: Registry,
    stream_limit: u64,
    deadlines: Deadlines,
    policy: ErrorPolicy,
    hook: Option<ErrorHook>,
    clock: Arc<dyn Clock>,
    drain_limit: Duration,
    doorbell: bool,
    owned: Vec<Box<dyn Any + Send + Sync>>,
}

impl<A: SharedAllocator + 'static> Builder<A> {
    /// The interface of the device code. LLVM 20 to 22 by default.
    #[must_use]
    pub fn abi(mut self, abi: Abi) -> Self {
        self.abi = abi;
        self
    }

    /// How many ports there are: conversations at a time. 64 by default; a GPU wants one for each
    /// warp that can be resident.
    #[must_use]
    pub fn ports(mut self, ports: u32) -> Self {
        self.ports = ports;
        self
    }

    /// The lanes of a warp. 32 by default, which is NVIDIA's.
    #[must_use]
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = lanes;
        self
    }

    /// The handlers, shared with `registry`: what is registered there later counts too.
    #[must_use]
    pub fn registry(mut self, registry: &Registry) -> Self {
        self.registry = registry.clone();
        self
    }

    /// How many threads can poll at the same time. Each shard has whole cache lines of mailboxes,
    /// sixteen ports; there are never more shards than those. 1 by default.
    #[must_use]
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// The most bytes that all lanes of one incoming stream may have together. 64 MiB by default.
    #[must_use]
    pub fn stream_limit(mut self, bytes: u64) -> Self {
        self.stream_limit = bytes;
        self
    }

    /// How long a conversation may wait for its device before it is dropped. 60 seconds by default.
    #[must_use]
    pub fn device_deadline(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.deadlines.device = limit.into();
        self
    }

    /// How long a handler may take for a step before it is dropped. No limit by default: a handler
    /// may read a terminal.
    #[must_use]
    pub fn handler_deadline(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.deadlines.handler = limit.into();
        self
    }

    /// What to do after a conversation has failed.
    #[must_use]
    pub fn error_policy(mut self, policy: ErrorPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Is called with every failed conversation, on the polling thread.
    #[must_use]
    pub fn on_error(mut self, hook: impl Fn(&ConversationError) + Send + Sync + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// Where the time for deadlines comes from. The system's monotonic clock by default.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How long [`drain`](Server::drain) waits for handlers. 5 seconds by default.
    #[must_use]
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// Whether clients ring the allocator's [doorbell](SharedAllocator::doorbell), where it has one and
    /// the interface, too, so that an idle [`Worker`](crate::Worker) sleeps until a device rings. It does
    /// by default. Without, clients save the counting, and workers look at what they serve now and then:
    /// better for [workers that never sleep](crate::IdlePolicy::BUSY), and for devices whose interrupts
    /// get lost.
    #[must_use]
    pub fn doorbell(mut self, doorbell: bool) -> Self {
        self.doorbell = doorbell;
        self
    }

    /// Gives the server something to drop when it is dropped itself, after its conversations: what
    /// handlers share and should not outlive it, such as open files.
    #[must_use]
    pub fn owning(mut self, value: impl Any + Send + Sync) -> Self {
        self.owned.push(Box::new(value));
        self
    }

    /// Allocates the shared memory and makes the server.
    ///
    /// # Errors
    /// [`BuildError`]; whatever was allocated has been given back.
    pub fn build(self) -> Result<Server<A>, BuildError<A::Error>> {
        let (ports, lanes) = (PortCount::new(self.ports)?, LaneWidth::new(self.lanes)?);
        let layout = Layout::new(self.abi, ports, lanes)?;
        let memory = SharedMemory::new(self.allocator, layout, self.doorbell)
            .map_err(BuildError::Allocator)?;
        let memory = Arc::new(memory);
        let weak = Arc::downgrade(&memory);
        let weak: Weak<dyn ChannelOwner> = weak;
        let core = Core::new(weak, ports.get(), lanes, self.stream_limit, self.clock);
        let count = self.shards.clamp(1, ports.get().div_ceil(16));
        let shard = |number| Shard::new(number, count, ports.get(), &self.registry);
        Ok(Server {
            memory,
            core: Arc::new(core),
            shards: (0..count).map(|number| Mutex::new(shard(number)).into()).collect(),
            counters: (0..count).map(|_| CachePadded::default()).collect(),
            busy: (0..count).map(|_| CachePadded::default()).collect(),
            registry: self.registry,
            deadlines: self.deadlines,
            policy: self.policy,
            hook: self.hook,
            first_error: Mutex::new(None),
            drain_limit: self.drain_limit,
            client_locks: (0..Locks::words(ports.get())).map(|_| AtomicU32::new(0)).collect(),
            next_client: std::sync::atomic::AtomicU32::new(0),
            owned: self.owned,
        })
    }
}

thread_local! {
    /// The server that this thread polls, as an address that is only compared.
    static POLLING: Cell<usize> = const { Cell::new(0) };
}

impl<A: SharedAllocator + 'static> Server<A> {
    /// Settings of a server whose shared memory comes from `allocator`.
    pub fn builder(allocator: A) -> Builder<A> {
        Builder {
            allocator: Arc::new(allocator),
            abi: Abi::Llvm20,
            ports: 64,
            lanes: 32,
            shards: 1,
            registry: Registry::new(),
            stream_limit: 64 << 20,
            deadlines: Deadlines { device: Some(Duration::from_secs(60)), handler: None },
            policy: ErrorPolicy::default(),
            hook: None,
            clock: Arc::new(SystemClock::default()),
            drain_limit: Duration::from_secs(5),
            doorbell: true,
            owned: Vec::new(),
        }
    }

    /// Serves everything that is ready and returns how many conversations began or took a step.
    ///
    /// Each ready port is served once, so call it again while it returns more than zero. Never
    /// waits for a device. Several threads may poll at once; each takes the shards that no other
    /// has.
    ///
    /// # Errors
    /// The first failed conversation, under [`ErrorPolicy::Stop`]. Nothing is served any more then.
    pub fn poll(&self) -> Result<usize, ConversationError> {
        let mut served = 0;
        for number in 0..self.shards.len() {
            served += self.poll_shard(number)?;
        }
        Ok(served)
    }

    /// As [`poll`](Self::poll), for one [shard](Builder::shards) of the ports, numbered from zero.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn poll_shard(&self, number: usize) -> Result<usize, ConversationError> {
        self.stopped()?;
        match self.shards[number].try_lock() {
            Some(mut shard) => self.poll_locked(number, &mut shard),
            None => Ok(0),
        }
    }

    fn poll_locked(&self, number: usize, shard: &mut Shard) -> Result<usize, ConversationError> {
        let served = self.with_pass(number, |pass| shard.poll(pass));
        self.stopped()?;
        Ok(served)
    }

    /// How many [shards](Builder::shards) there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Finishes what clients have already sent, also calls that nobody waits for.
    ///
    /// Polls until nothing is ready and no handler is at work, at most the
    /// [limit](Builder::drain_limit). Call it after a kernel has ended and before its memory goes. It
    /// holds beside workers too: a pass that began before is waited for.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn drain(&self) -> Result<Drained, ConversationError> {
        self.drain_within(u64::MAX)
    }

    /// As [`drain`](Self::drain), in a number of rounds: a clock that stands still ends nothing.
    pub(crate) fn drain_within(&self, rounds: u64) -> Result<Drained, ConversationError> {
        let clock = &self.core.clock;
        let end = clock.now().saturating_add(self.drain_limit);
        // Of a pass in the way; whatever time the server's clock shows.
        let passes_end = Instant::now().checked_add(self.drain_limit);
        let mut served = 0;
        let mut round = 0;
        loop {
            round += 1;
            let (mut step, mut busy) = (0, false);
            for number in 0..self.shards.len() {
                self.stopped()?;
                if let Some(mut shard) = self.lock(number, passes_end) {
                    step += self.poll_locked(number, &mut shard)?;
                    let channel = self.memory.channel();
                    busy |= shard.has_woken() || shard.is_working(&self.core, &channel);
                }
            }
            served += step;
            if round >= rounds || clock.now() >= end || (step == 0 && !busy) {
                return Ok(Drained { served, unfinished: self.conversations().len() });
            }
            if step == 0 {
                clock.sleep(Duration::from_micros(100));
            }
        }
    }

    /// Takes a shard once the pass that has it is over. `None` for a pass that this thread is in, and
    /// for one that goes on after `end`.
    fn lock(&self, number: usize, end: Option<Instant>) -> Option<MutexGuard<'_, Shard>> {
        let shard = &self.shards[number];
        match end {
            _ if self.is_polling() => shard.try_lock(),
            Some(end) => shard.try_lock_until(end),
            None => Some(shard.lock()),
        }
    }

    /// Ends all conversations and refuses new ones.
    ///
    /// Futures of handlers are dropped, clients whose turn it is not are released. Clients that call
    /// later are told as long as somebody polls. A pass that runs is waited for, at most the
    /// [limit](Builder::drain_limit) for all shards; one that outlasts it, or that this is called from, ends
    /// the conversations when its handler returns.
    pub fn shutdown(&self) {
        self.shutdown_within(self.drain_limit);
    }

    /// As [`shutdown`](Self::shutdown), and waits for passes at most that long.
    pub(crate) fn shutdown_within(&self, limit: Duration) {
        self.core.closed.store(true, Ordering::Release);
        self.core.bell.ring();
        if self.is_polling() {
            return;
        }
        let end = Instant::now().checked_add(limit);
        for number in 0..self.shards.len() {
            if let Some(mut shard) = self.lock(number, end) {
                self.with_pass(number, |pass| shard.end_all(pass));
            }
        }
    }

    /// Wakes workers that sleep.
    pub fn wake(&self) {
        self.core.bell.ring();
    }

    /// Where the device finds the server's inbox: the mailboxes that clients write.
    pub fn inbox(&self) -> DeviceAddress {
        DeviceAddress(self.memory.pointers().outbox)
    }

    /// Where the device finds the server's outbox: the mailboxes that clients poll.
    pub fn outbox(&self) -> DeviceAddress {
        DeviceAddress(self.memory.pointers().inbox)
    }

    /// Where the device finds the packets.
    pub fn buffer(&self) -> DeviceAddress {
        DeviceAddress(self.memory.pointers().packets)
    }

    /// The bytes to copy into the device's client object.
    pub fn client_image(&self) -> ClientImage {
        ClientImage::of(&self.memory.channel(), self.memory.pointers())
    }

    /// Where everything lies in shared memory.
    pub fn layout(&self) -> Layout {
        *self.memory.channel().layout()
    }

    /// A client in this process, as the device's code would be.
    ///
    /// All such clients share their locks. Do not use them while device code uses the
    /// [image](Self::client_image) of this server: that has locks of its own.
    pub fn client(&self) -> Client<'_> {
        let ports = self.layout().ports().get();
        let start = self.next_client.fetch_add(1, Ordering::Relaxed) % ports;
        Client::new(self.memory.channel(), Locks::new(&self.client_locks))
            .starting_at(start)
            .until(&self.core.closed)
    }

    /// The handlers.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        Stats::sum(self.counters.iter())
    }

    /// The first conversation that failed, whatever the policy.
    pub fn first_error(&self) -> Option<ConversationError> {
        self.first_error.lock().clone()
    }

    /// The conversations in flight, for a watchdog: what each is about, its port, age, whose turn.
    ///
    /// A pass that runs is waited for, for 100 ms. Of a shard whose handler blocks its thread for longer,
    /// that handler's conversation is named, with the age of the pass, and no other. Called from a handler,
    /// those of its own shard are left out.
    pub fn conversations(&self) -> Vec<Conversation> {
        let channel = self.memory.channel();
        let end = Some(Instant::now() + A_PASS);
        let mut all = Vec::new();
        for (number, busy) in self.busy.iter().enumerate() {
            match self.lock(number, end) {
                Some(shard) => all.extend(shard.conversations(&self.core, &channel)),
                None if self.is_polling() => {}
                None => all.extend(busy.conversation(&self.core, &channel)),
            }
        }
        all
    }

    /// The conversations whose handlers run on polling threads at this moment.
    pub(crate) fn running_handlers(&self) -> impl Iterator<Item = Conversation> {
        let channel = self.memory.channel();
        self.busy.iter().filter_map(move |busy| busy.conversation(&self.core, &channel))
    }

    /// The device program's wish to end, once a handler has reported it.
    pub fn exit_request(&self) -> Option<ExitRequest> {
        self.core.exit_request()
    }

    /// The allocator.
    pub fn allocator(&self) -> &A {
        self.memory.allocator()
    }

    pub(crate) fn drain_limit(&self) -> Duration {
        self.drain_limit
    }

    pub(crate) fn doorbell(&self) -> Option<&Arc<dyn Doorbell>> {
        self.memory.doorbell()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The first failed conversation, where the policy is to stop at it.
    fn stopped(&self) -> Result<(), ConversationError> {
        match self.policy {
            ErrorPolicy::KeepServing => Ok(()),
            ErrorPolicy::Stop => self.first_error().map_or(Ok(()), Err),
        }
    }

    /// Whether this thread is in a pass of this server: in one of its handlers.
    fn is_polling(&self) -> bool {
        POLLING.get() == self.address()
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.core) as usize
    }

    fn with_pass<T>(&self, number: usize, f: impl FnOnce(&Pass<'_>) -> T) -> T {
        let report = |error: ConversationError| {
            self.first_error.lock().get_or_insert_with(|| error.clone());
            if self.policy == ErrorPolicy::Stop {
                // Nobody serves any more: clients of this process are told.
                self.core.closed.store(true, Ordering::Release);
            }
            if let Some(hook) = &self.hook {
                // A hook that panics must not take the others' conversations with it.
                let _ = catch_unwind(AssertUnwindSafe(|| hook(&error)));
            }
        };
        let outer = POLLING.replace(self.address());
        let result = f(&Pass {
            core: &self.core,
            channel: self.memory.channel(),
            registry: &self.registry,
            counters: &self.counters[number],
            busy: &self.busy[number],
            deadlines: self.deadlines,
            report: &report,
        });
        POLLING.set(outer);
        result
    }
}

impl<A: SharedAllocator> Drop for Server<A> {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::Release);
        for shard in &mut self.shards {
            shard.get_mut().abandon(&self.core);
        }
        self.owned.clear();
    }
}

impl<A: SharedAllocator> fmt::Debug for Server<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("layout", self.memory.channel().layout())
            .field("stats", &Stats::sum(self.counters.iter()))
            .finish_non_exhaustive()
    }
}

impl<A: SharedAllocator> fmt::Debug for Builder<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("abi", &self.abi)
            .field("ports", &self.ports)
            .field("lanes", &self.lanes)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}
