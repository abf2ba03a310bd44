//! The ports that one thread polls: scan, dispatch, and the conversations in flight.
//!
//! A pass has two halves. The *scan* compares every client mailbox with the value that
//! is known of it; a difference means that the client handed its port over, which
//! begins a conversation or wakes the one that waits. Then every conversation that was
//! woken takes one step. So no conversation holds up another, and each ready port is
//! served once a pass whatever its number.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::call::panic_message;
use crate::error::{Cause, ConversationError, HandlerError, WaitingFor};
use crate::handler::{HandlerFuture, Handling, Request};
use crate::protocol::atomic::AtomicU32;
use crate::protocol::channel::differ;
use crate::protocol::{Channel, Host, Incoming, Opcode, PortState, Status};
use crate::registry::{Registry, Table};
use crate::server::Conversation;
use crate::state::{Caller, Core, PortWaker, ReadyQueue};
use crate::stats::Counters;

/// Mailboxes in a cache line. A shard takes whole lines, so that threads do not share any.
const LINE: u32 = 16;

/// How many ports ahead headers and packets are fetched.
const FAR: usize = 12;
const NEAR: usize = 3;

/// How long a conversation may make no progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    pub(crate) device: Option<Duration>,
    pub(crate) handler: Option<Duration>,
}

/// Which handler a pass is in, for whoever cannot wait for the pass.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// The port and one, and the opcode; zero outside handlers.
    handler: AtomicU64,
    /// When the pass began, in nanoseconds of the server's clock.
    since: AtomicU64,
}

impl Busy {
    fn begin_pass(&self, now: Duration) {
        self.since.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn enter(&self, caller: &Caller) {
        let word = u64::from(caller.port + 1) << 32 | u64::from(caller.opcode.0);
        self.handler.store(word, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.handler.store(0, Ordering::Relaxed);
    }

    /// The conversation whose handler runs on the polling thread. Its age is its pass's.
    pub(crate) fn conversation(&self, core: &Core, channel: &Channel<'_>) -> Option<Conversation> {
        let word = self.handler.load(Ordering::Relaxed);
        let port = ((word >> 32) as u32).checked_sub(1)?;
        let since = Duration::from_nanos(self.since.load(Ordering::Relaxed));
        Some(Conversation {
            opcode: Opcode(word as u32),
            port,
            lanes: channel.mask(port),
            age: core.clock.now().saturating_sub(since),
            waiting_for: WaitingFor::Handler,
        })
    }
}

/// What a pass needs from its server.
pub(crate) struct Pass<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) channel: Channel<'a>,
    pub(crate) registry: &'a Registry,
    pub(crate) counters: &'a CachePadded<Counters>,
    pub(crate) busy: &'a Busy,
    pub(crate) deadlines: Deadlines,
    pub(crate) report: &'a dyn Fn(ConversationError),
}

/// A port's own notes.
struct Entry {
    /// What the server last wrote into its mailbox; unused while a conversation is in flight.
    out: u32,
    /// The last conversation's opcode, and how it was refused, for packets that come after its end.
    opcode: Opcode,
    refused: Option<Status>,
    task: Option<Task>,
    waker: Option<(Arc<PortWaker>, Waker)>,
}

/// A conversation in flight.
struct Task {
    future: HandlerFuture,
    caller: Caller,
    began: Duration,
    /// When it last made progress.
    moved: Duration,
}

pub(crate) struct Shard {
    number: u32,
    of: u32,
    entries: Vec<Entry>,
    ready: Arc<ReadyQueue>,
    table: Arc<Table>,
    version: u64,
    in_flight: usize,
    next_deadline: Duration,
    /// Kept to be used again.
    changed: Vec<u32>,
    woken: Vec<u32>,
}

impl Shard {
    /// Shard `number` of `of`: every `of`-th line of mailboxes.
    pub(crate) fn new(number: u32, of: u32, ports: u32, registry: &Registry) -> Self {
        let lines = (number..ports.div_ceil(LINE)).step_by(of as usize);
        let count: u32 = lines.map(|line| LINE.min(ports - line * LINE)).sum();
        let entry = |_| Entry { out: 0, opcode: Opcode(0), refused: None, task: None, waker: None };
        Shard {
            number,
            of,
            entries: (0..count).map(entry).collect(),
            ready: Arc::default(),
            version: registry.version(),
            table: registry.table(),
            in_flight: 0,
            next_deadline: Duration::MAX,
            changed: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// One pass. Returns how many conversations began or took a step.
    pub(crate) fn poll(&mut self, pass: &Pass<'_>) -> usize {
        pass.counters.passes.add(1);
        self.scan(pass.channel.secondary(), &pass.core.seen);
        if self.changed.is_empty() && !self.has_woken() && self.in_flight == 0 {
            return 0;
        }
        pass.busy.begin_pass(pass.core.clock.now());
        let mut served = 0;
        let mut changed = std::mem::take(&mut self.changed);
        // The device has just written there: without asking ahead, each port waits for memory twice.
        let header = |at: usize| {
            if let Some(&index) = changed.get(at) {
                pass.channel.prefetch_header(self.port(index));
            }
        };
        (0..FAR).for_each(header);
        for position in 0..changed.len() {
            if let Some(&later) = changed.get(position + FAR) {
                pass.channel.prefetch_header(self.port(later));
            }
            if let Some(&later) = changed.get(position + NEAR) {
                pass.channel.prefetch_packets(self.port(later));
            }
            served += self.handed_over(pass, changed[position]);
        }
        changed.clear();
        self.changed = changed;
        self.ready.take(&mut self.woken);
        let mut woken = std::mem::take(&mut self.woken);
        for port in woken.drain(..) {
            let index = self.index(port);
            if let Some((waker, _)) = &self.entries[index as usize].waker {
                waker.unqueue();
            }
            served += self.step(pass, index);
        }
        self.woken = woken;
        if self.in_flight > 0 {
            if pass.core.closed.load(Ordering::Acquire) {
                served += self.end_all(pass);
            } else if pass.core.clock.now() >= self.next_deadline {
                served += self.expire(pass);
            }
        }
        served
    }

    /// Whether somebody has woken a conversation since the last pass.
    pub(crate) fn has_woken(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether any conversation waits for its handler rather than for the device.
    pub(crate) fn is_working(&self, core: &Core, channel: &Channel<'_>) -> bool {
        let port = |task: &Task| waiting_for(core, channel, task.caller.port);
        self.in_flight > 0 && self.tasks().any(|task| port(task) == WaitingFor::Handler)
    }

    /// The conversations in flight.
    pub(crate) fn conversations(&self, core: &Core, channel: &Channel<'_>) -> Vec<Conversation> {
        let now = core.clock.now();
        let describe = |task: &Task| Conversation {
            opcode: task.caller.opcode,
            port: task.caller.port,
            lanes: task.caller.mask,
            age: now.saturating_sub(task.began),
            waiting_for: waiting_for(core, channel, task.caller.port),
        };
        self.tasks().map(describe).collect()
    }

    /// Ends every conversation in flight because the server shuts down.
    pub(crate) fn end_all(&mut self, pass: &Pass<'_>) -> usize {
        let ended = self.in_flight;
        for index in 0..self.entries.len() as u32 {
            if self.entries[index as usize].task.is_some() {
                self.end(pass, index, Err(Cause::ShutDown));
            }
        }
        ended
    }

    /// Drops every conversation in flight without a word to the device: its memory is going.
    pub(crate) fn abandon(&mut self, core: &Core) {
        for task in self.entries.iter_mut().filter_map(|entry| entry.task.take()) {
            core.end(task.caller.port);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
        }
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.entries.iter().filter_map(|entry| entry.task.as_ref())
    }

    /// The port of an entry: lines of a shard stand `of` lines apart.
    fn port(&self, index: u32) -> u32 {
        (index / LINE * self.of + self.number) * LINE + index % LINE
    }

    fn index(&self, port: u32) -> u32 {
        (port / LINE - self.number) / self.of * LINE + port % LINE
    }

    /// Notes every mailbox that differs from what is known of it.
    fn scan(&mut self, mailboxes: &[AtomicU32], seen: &[AtomicU32]) {
        let (lines, rest) = mailboxes.as_chunks();
        let (seen_lines, seen_rest) = seen.as_chunks();
        let (number, of) = (self.number as usize, self.of as usize);
        let mut first = 0;
        for line in (number..lines.len()).step_by(of) {
            if differ(&lines[line], &seen_lines[line]) {
                self.note(first, &lines[line], &seen_lines[line]);
            }
            first += LINE;
        }
        if lines.len() % of == number {
            self.note(first, rest, seen_rest);
        }
    }

    /// Notes those that differ of some mailboxes, of which the first is entry `first`.
    fn note(&mut self, first: u32, mailboxes: &[AtomicU32], seen: &[AtomicU32]) {
        for (index, (mailbox, seen)) in (first..).zip(mailboxes.iter().zip(seen)) {
            if mailbox.load(Ordering::Relaxed) != seen.load(Ordering::Relaxed) {
                self.changed.push(index);
            }
        }
    }

    /// A client has flipped its mailbox.
    fn handed_over(&mut self, pass: &Pass<'_>, index: u32) -> usize {
        let port = self.port(index);
        let look = || {
            let value = pass.channel.secondary()[port as usize].load(Ordering::Acquire);
            pass.core.seen[port as usize].store(value, Ordering::Relaxed);
            value
        };
        if self.entries[index as usize].task.is_none() {
            look();
        } else {
            let mut slot = pass.core.slots[port as usize].lock();
            let value = look();
            let waiting = slot
                .state
                .filter(|state| state.is_waiting() && pass.channel.is_hosts(value, state.out()));
            let Some(state) = waiting else {
                return 0;
            };
            if !pass.channel.has_turn::<Host>(port, state.out(), state.mask()) {
                // The mailbox is ahead of its message: look again.
                pass.core.seen[port as usize].store(state.out(), Ordering::Relaxed);
                return 0;
            }
            if !Incoming::is_new(&pass.channel, port) {
                slot.moved = true;
                let waker = slot.waker.take();
                drop(slot);
                match waker {
                    Some(waker) if self.is_own(index, &waker) => return self.step(pass, index),
                    Some(waker) => waker.wake(),
                    None => {}
                }
                return 0;
            }
            // A handler that asks for nothing more had given its last reply and was about to return.
            let asks = slot.waker.is_some();
            drop(slot);
            self.end(pass, index, if asks { Err(Cause::ReadTooMuch) } else { Ok(()) });
        }
        let entry = &mut self.entries[index as usize];
        match Incoming::find(&pass.channel, port, entry.out) {
            None => {
                let seen = &pass.core.seen[port as usize];
                if pass.channel.is_hosts(seen.load(Ordering::Relaxed), entry.out) {
                    // As above.
                    seen.store(entry.out, Ordering::Relaxed);
                }
                0
            }
            Some((Some(opcode), port)) => {
                self.begin(pass, index, opcode, port);
                1
            }
            Some((None, port)) => {
                pass.counters.strays.add(1);
                if entry.refused.is_none() {
                    (pass.report)(ConversationError {
                        opcode: entry.opcode,
                        port: port.index(),
                        lane: None,
                        cause: Cause::ReadTooLittle,
                    });
                }
                let status = *entry.refused.get_or_insert(Status::Protocol);
                entry.out = port.refuse_stray(&pass.channel, status);
                1
            }
        }
    }

    /// Gives a new conversation to its handler.
    fn begin(&mut self, pass: &Pass<'_>, index: u32, opcode: Opcode, port: PortState) {
        pass.counters.accepted.add(1);
        let caller = Caller { opcode, port: port.index(), mask: port.mask() };
        self.entries[index as usize].opcode = opcode;
        if pass.core.closed.load(Ordering::Acquire) {
            return self.finish(pass, index, caller, port, Err(Cause::ShutDown));
        }
        // After the mailbox was acquired: what was registered before the client sent is found.
        if self.version != pass.registry.version() {
            self.version = pass.registry.version();
            self.table = pass.registry.table();
        }
        let Some(handler) = self.table.find(opcode) else {
            return self.finish(pass, index, caller, port, Err(Cause::UnknownOpcode));
        };
        let detached = Cell::new(false);
        let request = Request {
            core: pass.core,
            caller,
            state: port,
            channel: &pass.channel,
            detached: &detached,
        };
        pass.busy.enter(&caller);
        let handled = catch_unwind(AssertUnwindSafe(|| handler.handle(request)));
        pass.busy.leave();
        let slot = &pass.core.slots[caller.port as usize];
        let outcome = match handled {
            // Most of what there is. Nothing is moved around for it.
            Ok(Ok(Handling::Done)) if !detached.get() => return self.complete(pass, index, port),
            Ok(Ok(Handling::Async(future))) => {
                if !detached.get() {
                    slot.lock().begin(port);
                }
                return self.install(pass, index, caller, future);
            }
            Ok(Ok(Handling::Done)) => Ok(()),
            Ok(Err(error)) => Err(Cause::Handler(error)),
            Err(panic) => Err(Cause::Panicked(panic_message(&*panic))),
        };
        // A handler may have detached the conversation and finished all the same.
        let state = if detached.get() { pass.core.end(caller.port) } else { None };
        self.finish(pass, index, caller, state.unwrap_or(port), outcome);
    }

    fn install(&mut self, pass: &Pass<'_>, index: u32, caller: Caller, future: HandlerFuture) {
        let now = pass.core.clock.now();
        let ready = &self.ready;
        let entry = &mut self.entries[index as usize];
        entry.task = Some(Task { future, caller, began: now, moved: now });
        entry.waker.get_or_insert_with(|| {
            let waker = PortWaker::new(caller.port, ready.clone(), pass.core);
            (waker.clone(), Waker::from(waker))
        });
        self.in_flight += 1;
        self.step(pass, index);
    }

    /// Lets a conversation go on.
    fn step(&mut self, pass: &Pass<'_>, index: u32) -> usize {
        let entry = &mut self.entries[index as usize];
        let (Some(task), Some((_, waker))) = (&mut entry.task, &entry.waker) else {
            return 0;
        };
        let mut waiting = Context::from_waker(waker);
        pass.busy.enter(&task.caller);
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut waiting)));
        pass.busy.leave();
        let outcome = match polled {
            Ok(Poll::Pending) => {
                let now = pass.core.clock.now();
                task.moved = now;
                pass.core.slots[task.caller.port as usize].lock().moved = false;
                self.next_deadline = self.next_deadline.min(pass.deadlines.next_look(now));
                return 1;
            }
            Ok(Poll::Ready(outcome)) => outcome.map_err(Cause::Handler),
            Err(panic) => Err(Cause::Panicked(panic_message(&*panic))),
        };
        self.end(pass, index, outcome);
        1
    }

    /// Ends a conversation in flight: drops its future, takes the port back.
    fn end(&mut self, pass: &Pass<'_>, index: u32, outcome: Result<(), Cause>) {
        let Some(task) = self.entries[index as usize].task.take() else {
            return;
        };
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.next_deadline = Duration::MAX;
        }
        let caller = task.caller;
        // First the slot: from here on, no call can touch the port.
        let state = pass.core.end(caller.port);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
        let outcome = match (outcome, dropped) {
            (Ok(()), Err(panic)) => Err(Cause::Panicked(panic_message(&*panic))),
            (outcome, _) => outcome,
        };
        if let Some(port) = state {
            self.finish(pass, index, caller, port, outcome);
        }
    }

    /// Closes the port of a conversation that is over, and says how it went.
    fn finish(
        &mut self,
        pass: &Pass<'_>,
        index: u32,
        caller: Caller,
        port: PortState,
        outcome: Result<(), Cause>,
    ) {
        let Err(cause) = outcome else {
            return self.complete(pass, index, port);
        };
        pass.counters.count(&cause);
        let out = port.refuse(&pass.channel, cause.status());
        self.closed(pass, index, port.index(), out, Some(cause.status()));
        let lane = match &cause {
            Cause::Handler(error) => HandlerError::lane(error),
            _ => None,
        };
        let Caller { opcode, port, .. } = caller;
        (pass.report)(ConversationError { opcode, port, lane, cause });
    }

    /// Closes the port of a conversation that went well.
    fn complete(&mut self, pass: &Pass<'_>, index: u32, port: PortState) {
        pass.counters.completed.add(1);
        let out = port.close(&pass.channel);
        self.closed(pass, index, port.index(), out, None);
    }

    fn closed(
        &mut self,
        pass: &Pass<'_>,
        index: u32,
        port: u32,
        out: u32,
        refused: Option<Status>,
    ) {
        let entry = &mut self.entries[index as usize];
        (entry.out, entry.refused) = (out, refused);
        // The port is the client's while its mailbox equals ours. Its next packet may be there
        // already, and have been noted for a handler that never read it.
        pass.core.seen[port as usize].store(out, Ordering::Relaxed);
    }

    /// Ends what has made no progress for too long, and finds out when to look again.
    fn expire(&mut self, pass: &Pass<'_>) -> usize {
        let now = pass.core.clock.now();
        self.next_deadline = Duration::MAX;
        let mut expired = 0;
        for index in 0..self.entries.len() as u32 {
            let Some(task) = &mut self.entries[index as usize].task else {
                continue;
            };
            let waiting = {
                let mut slot = pass.core.slots[task.caller.port as usize].lock();
                if std::mem::take(&mut slot.moved) {
                    // On a thread of the pool, since the last look.
                    task.moved = now;
                }
                slot.waits_for_device(&pass.channel, task.caller.port)
            };
            let limit = pass.deadlines.limit(waiting).unwrap_or(Duration::MAX);
            let waited = now.saturating_sub(task.moved);
            if waited >= limit {
                let on = if waiting { WaitingFor::Device } else { WaitingFor::Handler };
                self.end(pass, index, Err(Cause::DeadlineExpired { waited, on }));
                expired += 1;
            } else {
                let deadline = task.moved.saturating_add(limit).min(pass.deadlines.next_look(now));
                self.next_deadline = self.next_deadline.min(deadline);
            }
        }
        expired
    }

    fn is_own(&self, index: u32, waker: &Waker) -> bool {
        let own = self.entries[index as usize].waker.as_ref();
        own.is_some_and(|(_, own)| own.will_wake(waker))
    }
}

impl Deadlines {
    fn limit(self, waiting_for_device: bool) -> Option<Duration> {
        if waiting_for_device { self.device } else { self.handler }
    }

    /// When to look again at a conversation that moved now. A handler on another thread may pass
    /// the turn to the device unseen, so the shorter deadline counts.
    fn next_look(self, now: Duration) -> Duration {
        let shortest = self.device.into_iter().chain(self.handler).min();
        shortest.map_or(Duration::MAX, |shortest| now.saturating_add(shortest))
    }
}

fn waiting_for(core: &Core, channel: &Channel<'_>, port: u32) -> WaitingFor {
    if core.slots[port as usize].lock().waits_for_device(channel, port) {
        WaitingFor::Device
    } else {
        WaitingFor::Handler
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_the_ports_by_cache_line() {
        for (ports, of) in [(1, 1), (16, 2), (100, 3), (4096, 4)] {
            let mut all = Vec::new();
            for number in 0..of {
                let shard = Shard::new(number, of, ports, &Registry::new());
                for index in 0..shard.entries.len() as u32 {
                    assert_eq!(shard.index(shard.port(index)), index);
                    all.push(shard.port(index));
                }
            }
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..ports), "{ports} ports in {of} shards");
        }
    }
}
