//! One conversation: whose turn it is, send, receive, close (PROTOCOL.md §2).
//!
//! The two roles run the same state machine over swapped mailboxes. Each side keeps
//! the value of its own mailbox and only ever inverts it; the port belongs to the
//! device while both mailboxes are equal and to the host while they differ. On the
//! crate's own wire a mailbox is counted up instead, and the host's stands in its reply.
//!
//! A newly opened port is a value of its own, because its first step is fixed: a
//! client must send ([`OpenedPort`]), a server must look at the request ([`Incoming`]).
//! Nothing here waits. An operation whose turn has not come answers
//! [`Poll::Pending`] and may be tried again; blocking and async forms are built on it.

use core::marker::PhantomData;
use core::task::Poll;

use super::atomic::{AtomicU32, Ordering};
use super::channel::{Channel, Lane};
use super::tagged;
use super::wire::{Header, LaneMask, Opcode, Status};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Device {}
    impl Sealed for super::Host {}
}

/// Which end of the conversation a [`Port`] is: [`Device`] or [`Host`].
pub trait Role: sealed::Sealed {
    /// Whether it is the server's end.
    const IS_HOST: bool;
}

/// The client's end, which opens conversations.
#[derive(Debug)]
pub enum Device {}

/// The server's end, which answers them.
#[derive(Debug)]
pub enum Host {}

impl Role for Device {
    const IS_HOST: bool = false;
}

impl Role for Host {
    const IS_HOST: bool = true;
}

impl Channel<'_> {
    /// Whether a client's mailbox with this value makes the port the server's, who last wrote `out`.
    ///
    /// Of LLVM's values only the lowest bits count: one that no peer should write must not make the port
    /// a side's own whatever it hands over.
    #[inline]
    pub(crate) fn is_hosts(&self, mailbox: u32, out: u32) -> bool {
        if self.is_tagged() { mailbox == tagged::next(out) } else { (mailbox ^ out) & 1 == 1 }
    }

    /// Whether a side that last wrote `out` has the turn, and the message with it. `mask` has the
    /// conversation's lanes.
    #[inline]
    pub(crate) fn has_turn<R: Role>(&self, port: u32, out: u32, mask: LaneMask) -> bool {
        // Acquire: what the peer wrote before it handed over is visible after this.
        let load = |mailboxes: &[AtomicU32]| mailboxes[port as usize].load(Ordering::Acquire);
        match (R::IS_HOST, self.is_tagged()) {
            (true, false) => self.is_hosts(load(self.secondary()), out),
            (false, false) => (load(self.primary()) ^ out) & 1 == 0,
            (true, true) => {
                let mailbox = load(self.secondary());
                self.is_hosts(mailbox, out)
                    && self.request(port).is_complete(mailbox, mask, self.layout().lanes())
            }
            (false, true) => self.reply(port).count() == Some(out),
        }
    }
}

/// The client's locks, one bit for each port. They live in the client's own memory.
#[derive(Clone, Copy, Debug)]
pub struct Locks<'c>(&'c [AtomicU32]);

impl<'c> Locks<'c> {
    /// Words that hold a bit for each of `ports` ports.
    pub const fn words(ports: u32) -> usize {
        ports.div_ceil(32) as usize
    }

    /// Locks over zeroed words, [`words`](Self::words) of them.
    pub const fn new(words: &'c [AtomicU32]) -> Self {
        Locks(words)
    }

    fn try_lock(self, port: u32) -> Option<Lock<'c>> {
        let (word, bit) = (&self.0[port as usize / 32], 1 << (port % 32));
        if word.load(Ordering::Relaxed) & bit != 0 {
            return None;
        }
        let free = word.fetch_or(bit, Ordering::Acquire) & bit == 0;
        // Lazily: a lock that is made and dropped would free somebody else's bit.
        free.then(|| Lock { word, bit })
    }
}

/// A held bit, freed on drop.
#[derive(Debug)]
struct Lock<'c> {
    word: &'c AtomicU32,
    bit: u32,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.word.fetch_and(!self.bit, Ordering::Release);
    }
}

/// Where a conversation stands, seen from one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// As `Owned`, and nothing has been sent yet. Only a client's.
    Opened,
    /// This side may fill or read the packets.
    Owned,
    /// As `Owned`, and what the peer sent has been read.
    Received,
    /// The peer has the port.
    Waiting,
}

/// A conversation without its channel: what to keep while it rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    index: u32,
    mask: LaneMask,
    out: u32,
    phase: Phase,
}

impl PortState {
    /// The port's number.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether this side waits for the peer.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// What this side last wrote into its mailbox.
    #[inline]
    pub fn out(&self) -> u32 {
        self.out
    }

    /// The lanes that take part.
    #[inline]
    pub fn mask(&self) -> LaneMask {
        self.mask
    }

    #[inline]
    fn is_ready<R: Role>(&mut self, channel: &Channel<'_>) -> bool {
        if self.phase == Phase::Waiting {
            let there = channel.has_turn::<R>(self.index, self.out, self.mask);
            if !there || !self.begin_turn::<R>(channel) {
                return false;
            }
            self.phase = Phase::Owned;
        }
        true
    }

    #[inline]
    fn begin_turn<R: Role>(&self, channel: &Channel<'_>) -> bool {
        !channel.is_tagged() || self.turn::<R>(channel).begin()
    }

    #[inline]
    fn turn<'c, R: Role>(&self, channel: &Channel<'c>) -> tagged::Turn<'c> {
        channel.turn(R::IS_HOST, self.index, self.mask, self.out)
    }

    #[inline]
    fn lanes<'c>(&self, channel: &Channel<'c>) -> impl Iterator<Item = Lane<'c>> + use<'c> {
        channel.lanes(self.index, self.mask)
    }

    #[inline]
    fn hand_over<R: Role>(&mut self, channel: &Channel<'_>) {
        let out = if channel.is_tagged() {
            self.turn::<R>(channel).send(self.phase == Phase::Opened)
        } else {
            self.out ^ 1
        };
        self.pass_on::<R>(channel, out);
    }

    fn hand_over_refused(&mut self, channel: &Channel<'_>, status: Status) {
        if channel.is_tagged() {
            let out = self.turn::<Host>(channel).refuse(status.to_wire());
            return self.pass_on::<Host>(channel, out);
        }
        self.lanes(channel).for_each(|lane| lane.clear());
        channel.set_opcode_and_status(self.index, CROSSED_OUT, status.to_wire());
        self.hand_over::<Host>(channel);
    }

    /// Hands the port over with this as the mailbox's value.
    #[inline]
    fn pass_on<R: Role>(&mut self, channel: &Channel<'_>, out: u32) {
        self.out = out;
        let mailboxes = match (R::IS_HOST, channel.is_tagged()) {
            (true, false) => Some(channel.primary()),
            (false, _) => Some(channel.secondary()),
            // The reply has said it.
            (true, true) => None,
        };
        if let Some(mailboxes) = mailboxes {
            // Release: the packets are visible to the peer before the flag is.
            mailboxes[self.index as usize].store(out, Ordering::Release);
        }
        self.phase = Phase::Waiting;
    }

    /// As [`Port::close`].
    #[inline]
    pub(crate) fn close(mut self, channel: &Channel<'_>) -> u32 {
        if !self.is_waiting() {
            self.hand_over::<Host>(channel);
        }
        channel.unring();
        self.out
    }

    /// As [`Port::refuse`].
    pub(crate) fn refuse(mut self, channel: &Channel<'_>, status: Status) -> u32 {
        if !self.is_waiting() {
            self.hand_over_refused(channel, status);
        }
        self.close(channel)
    }

    /// As [`Port::refuse_stray`].
    pub(crate) fn refuse_stray(mut self, channel: &Channel<'_>, status: Status) -> u32 {
        self.hand_over_refused(channel, status);
        self.out
    }
}

/// One end of an open conversation.
///
/// A device's port frees its lock when it is dropped; closing says nothing to the
/// peer. A host's port has to be [closed](Port::<Host>::close) or
/// [refused](Port::<Host>::refuse), or kept as a [`PortState`].
#[derive(Debug)]
pub struct Port<'c, R: Role> {
    channel: Channel<'c>,
    state: PortState,
    lock: Option<Lock<'c>>,
    role: PhantomData<R>,
}

impl<'c, R: Role> Port<'c, R> {
    fn new(channel: Channel<'c>, state: PortState, lock: Option<Lock<'c>>) -> Self {
        Port { channel, state, lock, role: PhantomData }
    }

    /// The port's number.
    #[inline]
    pub fn index(&self) -> u32 {
        self.state.index
    }

    /// The lanes that take part.
    #[inline]
    pub fn mask(&self) -> LaneMask {
        self.state.mask
    }

    /// Where the conversation stands: what to keep until it goes on.
    #[inline]
    pub fn state(&self) -> PortState {
        self.state
    }

    /// Whether the packets belong to this side now.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        self.state.is_ready::<R>(&self.channel)
    }

    /// Fills the packet of every active lane and hands the port over.
    pub fn try_send(&mut self, fill: impl FnMut(Lane<'c>)) -> Poll<()> {
        if !self.is_ready() {
            return Poll::Pending;
        }
        self.lanes().for_each(fill);
        self.hand_over();
        Poll::Ready(())
    }

    /// Reads the packet of every active lane. Keeps the port: a send after it answers in place.
    ///
    /// Receiving twice in a row first hands the port back, to say that the last
    /// packet has been read.
    pub fn try_recv(&mut self, read: impl FnMut(Lane<'c>)) -> Poll<()> {
        if !self.next_is_ready() {
            return Poll::Pending;
        }
        self.lanes().for_each(read);
        self.state.phase = Phase::Received;
        Poll::Ready(())
    }

    /// Whether the packet that a receive would read is there, unread.
    #[inline]
    pub(crate) fn next_is_ready(&mut self) -> bool {
        if self.state.phase == Phase::Received {
            self.hand_over();
        }
        self.is_ready()
    }

    /// The packets of the active lanes, whoever owns them now.
    #[inline]
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lane<'c>> + use<'c, R> {
        self.state.lanes(&self.channel)
    }

    #[inline]
    fn hand_over(&mut self) {
        self.state.hand_over::<R>(&self.channel);
    }
}

/// A port that a client has just opened. It must send before anything else.
#[derive(Debug)]
#[must_use = "an opened port says nothing until it sends"]
pub struct OpenedPort<'c>(Port<'c, Device>);

impl<'c> OpenedPort<'c> {
    /// Opens port `index` when nobody has it: takes its lock, then writes the header.
    ///
    /// `None` while the port is locked, or while the host still has it. `opcode` is the
    /// number on the wire (see [`Abi::opcode_to_wire`](super::Abi::opcode_to_wire)).
    ///
    /// # Panics
    /// When there is no such port.
    pub fn try_open(
        channel: Channel<'c>,
        locks: Locks<'c>,
        index: u32,
        opcode: u32,
        mask: LaneMask,
    ) -> Option<Self> {
        let lock = locks.try_lock(index)?;
        let out = channel.secondary()[index as usize].load(Ordering::Relaxed);
        let mask = mask.cut(channel.layout().lanes());
        if !channel.has_turn::<Device>(index, out, mask) {
            return None;
        }
        if channel.is_tagged() {
            channel.request(index).open(tagged::next(out), opcode, mask);
            channel.turn(false, index, mask, out).begin_empty();
        } else {
            channel.set_header(index, Header { mask: mask.0, opcode, status: 0 });
        }
        let state = PortState { index, mask, out, phase: Phase::Opened };
        Some(OpenedPort(Port::new(channel, state, Some(lock))))
    }

    /// The port's number.
    pub fn index(&self) -> u32 {
        self.0.index()
    }

    /// The lanes that take part.
    pub fn mask(&self) -> LaneMask {
        self.0.mask()
    }

    /// Sends the first packet. Never waits: an opened port is the client's.
    pub fn send(self, fill: impl FnMut(Lane<'c>)) -> Port<'c, Device> {
        let mut port = self.0;
        // LLVM's clients ring when they open. Here a port that is dropped unused leaves no count.
        port.channel.ring();
        let sent = port.try_send(fill);
        debug_assert!(sent.is_ready());
        port
    }

    /// Gives the port back without a word. The same as a drop.
    pub fn close(self) {
        debug_assert!(self.0.lock.is_some());
    }
}

impl Port<'_, Device> {
    /// What the server says of the conversation, `None` while all is well.
    ///
    /// Only meaningful after something was received. Always `None` with LLVM's servers.
    pub fn status(&self) -> Option<Status> {
        Status::from_wire(if self.channel.is_tagged() {
            self.state.turn::<Device>(&self.channel).status()
        } else {
            self.channel.opcode_and_status(self.state.index).1
        })
    }

    /// Ends the conversation: frees the lock. The same as a drop.
    ///
    /// The port can be opened again once the server has handed back what was sent last.
    pub fn close(self) {
        debug_assert!(self.lock.is_some());
    }
}

/// What a server finds when a client has handed a port over.
#[derive(Debug)]
pub enum Incoming<'c> {
    /// A new conversation with this opcode, if the interface knows the number.
    New(Opcode, Port<'c, Host>),
    /// A packet of a conversation that is over on this side.
    ///
    /// A client writes the header at every open and the server crosses the opcode out
    /// when it accepts one, so a packet under a crossed-out header belongs to what came
    /// before: the handler ended too early, or the conversation was cancelled.
    Stray(Port<'c, Host>),
}

/// The opcode that a server writes into the header of a conversation it has accepted.
const CROSSED_OUT: u32 = u32::MAX;

impl<'c> Incoming<'c> {
    /// Takes over port `index` when its client has handed it over. `out` is what the server
    /// last wrote into its mailbox, zero at first.
    ///
    /// Of several threads of a server only one may look after a port at a time.
    ///
    /// # Panics
    /// When there is no such port.
    #[inline]
    pub fn try_accept(channel: Channel<'c>, index: u32, out: u32) -> Option<Self> {
        let (opcode, state) = Self::find(&channel, index, out)?;
        let port = Port::new(channel, state, None);
        Some(match opcode {
            Some(opcode) => Incoming::New(opcode, port),
            None => Incoming::Stray(port),
        })
    }

    /// As [`try_accept`](Self::try_accept), without a port around it: the opcode of a new conversation,
    /// none of a stray packet.
    #[inline]
    pub(crate) fn find(
        channel: &Channel<'_>,
        index: u32,
        out: u32,
    ) -> Option<(Option<Opcode>, PortState)> {
        // Acquire: the header and packets that the client wrote are visible after this.
        let mailbox = channel.secondary()[index as usize].load(Ordering::Acquire);
        if !channel.is_hosts(mailbox, out) {
            return None;
        }
        let lanes = channel.layout().lanes();
        if channel.is_tagged() && !channel.request(index).has_begun(mailbox, lanes) {
            return None;
        }
        let state = PortState { index, mask: channel.mask(index), out, phase: Phase::Owned };
        let opcode = Self::opcode(channel, index, mailbox);
        if opcode.is_some() {
            if !state.begin_turn::<Host>(channel) {
                return None;
            }
            if !channel.is_tagged() {
                channel.set_opcode_and_status(index, CROSSED_OUT, 0);
            }
        }
        Some((opcode, state))
    }

    /// Whether a client has opened the port anew since the server accepted the last request.
    pub fn is_new(channel: &Channel<'_>, index: u32) -> bool {
        // Acquire: the header that came with this turn is visible after this, also to a server
        // that has seen the turn in a scan without order.
        let mailbox = channel.secondary()[index as usize].load(Ordering::Acquire);
        Self::opcode(channel, index, mailbox).is_some()
    }

    /// The opcode of a request that opens a conversation. `count` is its client's mailbox on the
    /// crate's own wire, where each message says whether it opens one; nothing is crossed out there.
    #[inline]
    fn opcode(channel: &Channel<'_>, index: u32, count: u32) -> Option<Opcode> {
        if channel.is_tagged() && !channel.request(index).opens(count) {
            return None;
        }
        channel.layout().abi().opcode_from_wire(channel.raw_opcode(index))
    }
}

impl<'c> Port<'c, Host> {
    /// Goes on with a conversation that was kept as a [`PortState`] of the same channel.
    #[inline]
    pub fn resume(channel: Channel<'c>, state: PortState) -> Self {
        Port::new(channel, state, None)
    }

    /// Ends the conversation: the client owns the port afterwards. Returns the mailbox's value,
    /// which the next [`Incoming::try_accept`] needs.
    pub fn close(self) -> u32 {
        self.state.close(&self.channel)
    }

    /// Ends the conversation with a refusal: clears the packets, leaves the status, closes.
    ///
    /// While the client owns the port nothing can be said to it; what it sends next is a
    /// [`Incoming::Stray`].
    pub fn refuse(self, status: Status) -> u32 {
        self.state.refuse(&self.channel, status)
    }

    /// Refuses a [stray packet](Incoming::Stray): as [`refuse`](Self::refuse), but its conversation
    /// has been counted as ended already.
    pub fn refuse_stray(self, status: Status) -> u32 {
        self.state.refuse_stray(&self.channel, status)
    }
}

#[cfg(all(test, not(hostcall_loom)))]
mod tests {
    use super::super::atomic::AtomicU64;
    use super::super::{Abi, LaneWidth, Layout, PortCount};
    use super::*;

    struct Memory {
        layout: Layout,
        primary: Vec<AtomicU32>,
        secondary: Vec<AtomicU32>,
        packets: Vec<AtomicU64>,
        locks: Vec<AtomicU32>,
    }

    impl Memory {
        fn new() -> Self {
            let lanes = LaneWidth::new(2).unwrap();
            let layout = Layout::new(Abi::Llvm20, PortCount::new(1).unwrap(), lanes).unwrap();
            Memory {
                layout,
                primary: vec![AtomicU32::new(0)],
                secondary: vec![AtomicU32::new(0)],
                packets: (0..layout.packets_size() / 8).map(|_| AtomicU64::new(0)).collect(),
                locks: vec![AtomicU32::new(0)],
            }
        }

        fn channel(&self) -> Channel<'_> {
            Channel::new(self.layout, &self.primary, &self.secondary, &self.packets).unwrap()
        }

        fn open(&self) -> Option<OpenedPort<'_>> {
            OpenedPort::try_open(self.channel(), Locks::new(&self.locks), 0, 7, LaneMask(3))
        }

        fn mailboxes(&self) -> (u32, u32) {
            (self.primary[0].load(Ordering::Relaxed), self.secondary[0].load(Ordering::Relaxed))
        }

        fn accept(&self, out: u32) -> Port<'_, Host> {
            match Incoming::try_accept(self.channel(), 0, out) {
                Some(Incoming::New(Opcode(7), port)) => port,
                other => panic!("{other:?}"),
            }
        }
    }

    fn nothing(_: Lane<'_>) {}

    /// The rows of PROTOCOL.md §2.4.
    #[test]
    fn a_call_flips_each_mailbox_once() {
        let memory = Memory::new();
        let mut client = memory.open().unwrap().send(|lane| lane.set_word(0, 41));
        assert_eq!(memory.mailboxes(), (0, 1));
        assert!(client.try_recv(nothing).is_pending());
        let mut server = memory.accept(0);
        let mut seen = Vec::new();
        assert!(server.try_recv(|lane| seen.push(lane.word(0))).is_ready());
        assert_eq!(seen, [41, 41]);
        assert!(server.try_send(|lane| lane.set_word(0, 42)).is_ready());
        assert_eq!(memory.mailboxes(), (1, 1));
        assert!(client.try_recv(|lane| assert_eq!(lane.word(0), 42)).is_ready());
        client.close();
        assert_eq!(server.close(), 1);
        assert_eq!(memory.mailboxes(), (1, 1), "closing flipped nothing");
        let client = memory.open().unwrap().send(nothing);
        assert_eq!(memory.mailboxes(), (1, 0));
        client.close();
        assert_eq!(memory.accept(1).close(), 0);
        assert_eq!(memory.mailboxes(), (0, 0));
    }

    #[test]
    fn a_notification_blocks_its_port_until_it_is_served() {
        let memory = Memory::new();
        memory.open().unwrap().send(nothing).close();
        assert!(memory.open().is_none(), "unlocked, but the host has it");
        let mut server = memory.accept(0);
        assert!(server.try_recv(nothing).is_ready());
        assert_eq!(server.close(), 1);
        assert_eq!(memory.mailboxes(), (1, 1));
        assert!(memory.open().is_some());
    }

    #[test]
    fn a_second_receive_acknowledges_the_first() {
        let memory = Memory::new();
        let mut client = memory.open().unwrap().send(nothing);
        assert!(client.try_send(nothing).is_pending());
        let mut server = memory.accept(0);
        assert!(server.try_recv(nothing).is_ready());
        assert!(server.try_recv(nothing).is_pending());
        assert!(server.try_recv(nothing).is_pending(), "the acknowledgement is not repeated");
        assert_eq!(memory.mailboxes(), (1, 1));
        assert!(client.try_send(nothing).is_ready());
        assert_eq!(memory.mailboxes(), (1, 0));
        assert!(server.try_recv(nothing).is_ready());
        assert_eq!(server.close(), 0);
    }

    #[test]
    fn two_packets_from_the_server_are_acknowledged_by_the_client() {
        let memory = Memory::new();
        let mut client = memory.open().unwrap().send(nothing);
        let mut server = memory.accept(0);
        assert!(server.try_send(nothing).is_ready());
        assert!(server.try_send(nothing).is_pending());
        assert!(client.try_recv(nothing).is_ready());
        assert!(client.try_recv(nothing).is_pending());
        assert!(server.try_send(nothing).is_ready());
        assert!(client.try_recv(nothing).is_ready());
        assert_eq!(server.close(), memory.mailboxes().0);
        assert_eq!(memory.mailboxes().0, memory.mailboxes().1);
    }

    #[test]
    fn an_opened_port_that_is_closed_leaves_no_trace() {
        let memory = Memory::new();
        memory.open().unwrap().close();
        assert_eq!(memory.mailboxes(), (0, 0));
        let held = memory.open().unwrap();
        assert!(memory.open().is_none(), "locked");
        drop(held);
        assert!(memory.open().is_some());
    }

    #[test]
    fn a_refusal_clears_the_packets_and_leaves_its_reason() {
        let memory = Memory::new();
        let mut client = memory.open().unwrap().send(|lane| lane.set_word(3, 99));
        assert_eq!(client.status(), None);
        memory.accept(0).refuse(Status::UnknownOpcode);
        assert!(client.try_recv(|lane| assert_eq!(lane.word(3), 0)).is_ready());
        assert_eq!(client.status(), Some(Status::UnknownOpcode));
        client.close();
        let again = memory.open().unwrap().send(nothing);
        assert_eq!(again.status(), None, "a new header");
    }

    #[test]
    fn a_packet_behind_the_end_is_a_stray_not_a_request() {
        let memory = Memory::new();
        let mut client = memory.open().unwrap().send(nothing);
        let out = memory.accept(0).close();
        assert!(client.try_send(nothing).is_ready(), "the close looked like an acknowledgement");
        let Some(Incoming::Stray(port)) = Incoming::try_accept(memory.channel(), 0, out) else {
            panic!("taken for a request");
        };
        port.refuse_stray(Status::Protocol);
        assert!(client.try_recv(nothing).is_ready());
        assert_eq!(client.status(), Some(Status::Protocol));
    }

    #[test]
    fn a_port_is_new_again_only_after_an_open() {
        let memory = Memory::new();
        let client = memory.open().unwrap().send(nothing);
        assert!(Incoming::is_new(&memory.channel(), 0));
        memory.accept(0).close();
        assert!(!Incoming::is_new(&memory.channel(), 0));
        client.close();
        memory.open().unwrap().close();
        assert!(Incoming::is_new(&memory.channel(), 0));
    }
}
