//! A conversation in a handler's hands, beyond its first packet.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytemuck::Pod;
use futures_lite::future::block_on;

use crate::error::CallError;
use crate::protocol::atomic::{AtomicU32, Ordering};
use crate::protocol::{
    FixedReceiver, FixedSender, Host, Lane, LaneMask, LaneWidth, Opcode, Port, StreamReceiver,
    StreamSender,
};
use crate::state::{Caller, Core, ExitRequest, Slot};

/// One conversation, for an async handler.
///
/// Each operation waits until it is the host's turn and is resumed by
/// [`poll`](crate::Server::poll) when the device has handed the port over. The conversation ends
/// when the handler's future does: the client owns the port afterwards, whatever the handler did
/// last. A call that outlives its conversation (its deadline passed, the server shut down) answers
/// [`CallError::Ended`] to everything.
///
/// ```
/// use hostcall::{Call, HandlerError};
///
/// /// Adds what two packets carry.
/// async fn add(mut call: Call) -> Result<(), HandlerError> {
///     let mut sums = [0; 64];
///     for _ in 0..2 {
///         call.recv(|lane| sums[lane.index() as usize] += lane.word(0)).await?;
///     }
///     call.send(|lane| lane.set_word(0, sums[lane.index() as usize])).await?;
///     Ok(())
/// }
/// ```
pub struct Call {
    core: Arc<Core>,
    caller: Caller,
    generation: u64,
}

/// The messages of a stream, one for each lane of the warp. Lanes that take no part have none.
///
/// ```
/// use hostcall::LaneBytes;
/// let messages = LaneBytes::from_fn([0, 2], |lane| vec![lane as u8; 3]);
/// assert_eq!(messages.get(2), Some(&[2, 2, 2][..]));
/// assert_eq!(messages.get(1), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneBytes(Vec<Option<Vec<u8>>>);

impl LaneBytes {
    /// Messages for these lanes.
    pub fn from_fn(
        lanes: impl IntoIterator<Item = u32>,
        mut message: impl FnMut(u32) -> Vec<u8>,
    ) -> Self {
        let mut bytes = LaneBytes::default();
        lanes.into_iter().for_each(|lane| *bytes.entry(lane) = message(lane));
        bytes
    }

    /// The message of a lane.
    pub fn get(&self, lane: u32) -> Option<&[u8]> {
        self.0.get(lane as usize)?.as_deref()
    }

    /// All messages, lowest lane first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..).zip(&self.0).filter_map(|(lane, bytes)| Some((lane, bytes.as_deref()?)))
    }

    /// The message of a lane, taken out; empty when there is none.
    pub fn take(&mut self, lane: u32) -> Vec<u8> {
        self.0.get_mut(lane as usize).and_then(Option::take).unwrap_or_default()
    }

    pub(crate) fn entry(&mut self, lane: u32) -> &mut Vec<u8> {
        let index = lane as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index].get_or_insert_default()
    }

    /// Adds a received part. Memory grows with what has arrived, not with what was announced.
    pub(crate) fn append(&mut self, lane: u32, remaining: u64, part: &[u8]) {
        const AHEAD: u64 = 4096;
        let message = self.entry(lane);
        if message.capacity() - message.len() < part.len() {
            message.reserve(remaining.min(message.len() as u64 + AHEAD) as usize);
        }
        message.extend_from_slice(part);
    }
}

impl Call {
    pub(crate) fn new(core: Arc<Core>, caller: Caller, generation: u64) -> Self {
        Call { core, caller, generation }
    }

    /// What the client asks for.
    pub fn opcode(&self) -> Opcode {
        self.caller.opcode
    }

    /// The port that it uses.
    pub fn port(&self) -> u32 {
        self.caller.port
    }

    /// The lanes that take part.
    pub fn mask(&self) -> LaneMask {
        self.caller.mask
    }

    /// How many lanes a warp has.
    pub fn lane_width(&self) -> LaneWidth {
        self.core.lanes
    }

    /// The most bytes that all lanes of one incoming stream may have together.
    pub fn stream_limit(&self) -> u64 {
        self.core.stream_limit
    }

    /// Reads the next packet of every active lane.
    ///
    /// # Errors
    /// [`CallError::Ended`].
    pub async fn recv(&mut self, mut read: impl FnMut(Lane<'_>)) -> Result<(), CallError> {
        self.when_ready(|port| port.try_recv(&mut read)).await
    }

    /// Sends a packet from every active lane. After a receive it answers in the same packets: words
    /// that `fill` does not write are those that the client sent.
    ///
    /// # Errors
    /// [`CallError::Ended`].
    pub async fn send(&mut self, mut fill: impl FnMut(Lane<'_>)) -> Result<(), CallError> {
        self.when_ready(|port| port.try_send(&mut fill)).await
    }

    /// Receives a length-prefixed message from every active lane.
    ///
    /// # Errors
    /// [`CallError::Stream`] before anything is taken in, when all lanes together announce more
    /// than the server's [limit](crate::Builder::stream_limit); [`CallError::Ended`].
    pub async fn recv_stream(&mut self) -> Result<LaneBytes, CallError> {
        let mut messages = LaneBytes::default();
        self.recv_stream_with(|lane, remaining, part| messages.append(lane, remaining, part))
            .await?;
        Ok(messages)
    }

    /// As [`recv_stream`](Self::recv_stream), part by part: `sink` gets the lane, what is still to
    /// come of its message with this part, and the part; at first with the whole length.
    ///
    /// # Errors
    /// As [`recv_stream`](Self::recv_stream).
    pub async fn recv_stream_with(
        &mut self,
        mut sink: impl FnMut(u32, u64, &[u8]),
    ) -> Result<(), CallError> {
        let mut receiver = StreamReceiver::new(self.core.stream_limit);
        self.when_ready(|port| receiver.poll(port, &mut sink)).await??;
        Ok(())
    }

    /// Sends a length-prefixed message to every active lane. `message` gives a lane's whole
    /// message, the same at every call.
    ///
    /// # Errors
    /// [`CallError::Ended`].
    pub async fn send_stream<'d>(
        &mut self,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Result<(), CallError> {
        let mut sender = StreamSender::new(self.caller.mask, |lane| message(lane).len());
        self.when_ready(|port| sender.poll(port, &mut message)).await
    }

    /// Receives a value of any size, without a length, from every active lane (PROTOCOL.md §3.2).
    ///
    /// # Errors
    /// [`CallError::Ended`].
    pub async fn recv_fixed<T: Pod>(
        &mut self,
        mut sink: impl FnMut(u32, T),
    ) -> Result<(), CallError> {
        let mut values = LaneBytes::default();
        let mut receiver = FixedReceiver::new(size_of::<T>());
        self.when_ready(|port| {
            receiver.poll(port, |lane, part| values.entry(lane).extend_from_slice(part))
        })
        .await?;
        values.iter().for_each(|(lane, bytes)| sink(lane, bytemuck::pod_read_unaligned(bytes)));
        Ok(())
    }

    /// Sends a value of any size, without a length, to every active lane.
    ///
    /// # Errors
    /// [`CallError::Ended`].
    pub async fn send_fixed<T: Pod>(
        &mut self,
        mut value: impl FnMut(u32) -> T,
    ) -> Result<(), CallError> {
        let values =
            LaneBytes::from_fn(self.caller.mask, |lane| bytemuck::bytes_of(&value(lane)).to_vec());
        let mut sender = FixedSender::new(size_of::<T>());
        self.when_ready(|port| sender.poll(port, |lane| values.get(lane).unwrap_or_default())).await
    }

    /// Runs work that blocks on a pool of threads, while this server goes on with other ports.
    ///
    /// When the conversation ends first, work that has begun runs on and its result is dropped. A
    /// panic of the work is a panic of the handler.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        unblock(work).await
    }

    /// Tells whoever runs the server that the device program wants to end.
    pub fn request_exit(&self, lane: u32, status: i32) {
        let port = self.caller.port;
        self.core.request_exit(ExitRequest { status, aborted: false, port, lane });
    }

    /// As [`request_exit`](Self::request_exit), for a program that gives up.
    pub fn request_abort(&self, lane: u32, status: i32) {
        let port = self.caller.port;
        self.core.request_exit(ExitRequest { status, aborted: true, port, lane });
    }

    async fn when_ready<T>(
        &mut self,
        mut step: impl FnMut(&mut Port<'_, Host>) -> Poll<T>,
    ) -> Result<T, CallError> {
        poll_fn(|context| self.poll_step(context, &mut step)).await
    }

    fn poll_step<T>(
        &self,
        context: &mut Context<'_>,
        step: &mut impl FnMut(&mut Port<'_, Host>) -> Poll<T>,
    ) -> Poll<Result<T, CallError>> {
        let mut slot = self.core.slots[self.caller.port as usize].lock();
        // The memory last: once its conversation has ended, a call must not keep it for a moment.
        let Some(state) = slot.state.filter(|_| slot.generation == self.generation) else {
            return Poll::Ready(Err(CallError::Ended));
        };
        let Some(memory) = self.core.memory.upgrade() else {
            return Poll::Ready(Err(CallError::Ended));
        };
        let port = Port::resume(memory.channel(), state);
        let mut resumed = Resumed { slot: &mut slot, seen: &self.core.seen, port };
        let done = step(&mut resumed.port);
        drop(resumed);
        // Under the slot's lock: whoever sees the mailbox flip after this finds the waker. Without one
        // the handler asks for nothing.
        if done.is_ready() {
            slot.waker = None;
        } else if !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            slot.waker = Some(context.waker().clone());
        }
        done.map(Ok)
    }
}

/// A port during one step of its call. Where it stands afterwards is kept, also when a closure of
/// the handler panics in the middle of the step.
struct Resumed<'s, 'c> {
    slot: &'s mut Slot,
    seen: &'s [AtomicU32],
    port: Port<'c, Host>,
}

impl Drop for Resumed<'_, '_> {
    fn drop(&mut self) {
        let state = self.port.state();
        self.slot.moved |= self.slot.state != Some(state);
        self.slot.state = Some(state);
        if state.is_waiting() {
            // The device has the port while both mailboxes are equal. It may have answered since,
            // and the step may have taken an answer that the scan never saw.
            self.seen[self.port.index() as usize].store(state.out(), Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("caller", &self.caller).finish_non_exhaustive()
    }
}

/// One conversation, for a handler in the blocking style, on a thread of the pool.
///
/// The operations are those of [`Call`]; each blocks this thread alone.
#[derive(Debug)]
pub struct BlockingCall(Call);

impl BlockingCall {
    pub(crate) fn new(call: Call) -> Self {
        BlockingCall(call)
    }

    /// The conversation: opcode, port, mask.
    pub fn call(&self) -> &Call {
        &self.0
    }

    /// As [`Call::recv`].
    ///
    /// # Errors
    /// As there.
    pub fn recv(&mut self, read: impl FnMut(Lane<'_>)) -> Result<(), CallError> {
        block_on(self.0.recv(read))
    }

    /// As [`Call::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, fill: impl FnMut(Lane<'_>)) -> Result<(), CallError> {
        block_on(self.0.send(fill))
    }

    /// As [`Call::recv_stream`].
    ///
    /// # Errors
    /// As there.
    pub fn recv_stream(&mut self) -> Result<LaneBytes, CallError> {
        block_on(self.0.recv_stream())
    }

    /// As [`Call::send_stream`].
    ///
    /// # Errors
    /// As there.
    pub fn send_stream<'d>(
        &mut self,
        message: impl FnMut(u32) -> &'d [u8],
    ) -> Result<(), CallError> {
        block_on(self.0.send_stream(message))
    }
}

/// Runs work on the pool and hands its panic on with the message.
pub(crate) async fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let caught = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    match blocking::unblock(caught).await {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What a panic said.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
