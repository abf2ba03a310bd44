//! The device's end: opens conversations. In this process here, on a GPU by the same rules.
//!
//! A [`Client`] plays whole warps: its closures are called once for each active lane. Every
//! operation comes in three forms: `try_` never waits, the plain one blocks its thread, and
//! `_async` yields, so that client and server can share a thread.

use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll};

use bytemuck::Pod;
use crossbeam_utils::Backoff;

use crate::protocol::{
    Channel, Device, Lane, LaneMask, Locks, Opcode, OpenedPort, Port, Status, StreamError,
    StreamReceiver, StreamSender,
};

/// Why a client got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server has shut down or is gone.
    #[error("the server has shut down")]
    ServerGone,
    /// The server refused the conversation.
    #[error("the server refused: {0}")]
    Refused(#[from] Status),
    /// The interface has no number for this opcode.
    #[error("opcode {0} cannot be said in the server's ABI")]
    Unspeakable(Opcode),
    /// The server's message is not taken in.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// A client of a server in the same memory. Cheap to copy; threads may share it.
#[derive(Clone, Copy, Debug)]
pub struct Client<'c> {
    channel: Channel<'c>,
    locks: Locks<'c>,
    start: u32,
    closed: Option<&'c AtomicBool>,
}

impl<'c> Client<'c> {
    /// A client over a channel. All clients of the channel share `locks`.
    pub const fn new(channel: Channel<'c>, locks: Locks<'c>) -> Self {
        Client { channel, locks, start: 0, closed: None }
    }

    /// Looks for free ports from this one on. Clients that start apart do not get in each other's
    /// way.
    #[must_use]
    pub const fn starting_at(mut self, port: u32) -> Self {
        self.start = port;
        self
    }

    /// Gives up waiting when the flag is set: whoever serves the channel is gone.
    #[must_use]
    pub const fn until(mut self, closed: &'c AtomicBool) -> Self {
        self.closed = Some(closed);
        self
    }

    /// Opens a port if one is free now.
    ///
    /// # Errors
    /// [`ClientError::Unspeakable`], [`ClientError::ServerGone`].
    pub fn try_open(
        &self,
        opcode: Opcode,
        mask: LaneMask,
    ) -> Result<Option<ClientOpen<'c>>, ClientError> {
        self.check()?;
        let abi = self.channel.layout().abi();
        let raw = abi.opcode_to_wire(opcode).ok_or(ClientError::Unspeakable(opcode))?;
        let ports = self.channel.layout().ports().get();
        let start = self.start % ports;
        let opened = (start..ports)
            .chain(0..start)
            .find_map(|index| OpenedPort::try_open(self.channel, self.locks, index, raw, mask));
        Ok(opened.map(|port| ClientOpen { port, client: *self }))
    }

    /// Opens a port, waiting until one is free.
    ///
    /// # Errors
    /// As [`try_open`](Self::try_open).
    pub fn open(&self, opcode: Opcode, mask: LaneMask) -> Result<ClientOpen<'c>, ClientError> {
        let backoff = Backoff::new();
        loop {
            if let Some(port) = self.try_open(opcode, mask)? {
                return Ok(port);
            }
            backoff.snooze();
        }
    }

    /// As [`open`](Self::open), yielding.
    ///
    /// # Errors
    /// As [`try_open`](Self::try_open).
    pub async fn open_async(
        &self,
        opcode: Opcode,
        mask: LaneMask,
    ) -> Result<ClientOpen<'c>, ClientError> {
        poll_fn(|context| match self.try_open(opcode, mask) {
            Ok(Some(port)) => Poll::Ready(Ok(port)),
            Ok(None) => again(context),
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    /// One value from every lane, one value back: opens, sends, receives, closes.
    ///
    /// A value larger than a packet does not compile.
    ///
    /// # Errors
    /// [`ClientError`]; `reply` has not been called then.
    pub fn call<Q: Pod, R: Pod>(
        &self,
        opcode: Opcode,
        mask: LaneMask,
        mut request: impl FnMut(u32) -> Q,
        mut reply: impl FnMut(u32, R),
    ) -> Result<(), ClientError> {
        let opened = self.open(opcode, mask)?;
        let mut port = opened.send(|lane| lane.set_value(&request(lane.index())));
        port.recv(|lane| reply(lane.index(), lane.value()))
    }

    /// As [`call`](Self::call), yielding.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_async<Q: Pod, R: Pod>(
        &self,
        opcode: Opcode,
        mask: LaneMask,
        mut request: impl FnMut(u32) -> Q,
        mut reply: impl FnMut(u32, R),
    ) -> Result<(), ClientError> {
        let opened = self.open_async(opcode, mask).await?;
        let mut port = opened.send(|lane| lane.set_value(&request(lane.index())));
        port.recv_async(|lane| reply(lane.index(), lane.value())).await
    }

    /// One value from every lane that nobody waits for.
    ///
    /// # Errors
    /// As [`try_open`](Self::try_open).
    pub fn notify<Q: Pod>(
        &self,
        opcode: Opcode,
        mask: LaneMask,
        mut message: impl FnMut(u32) -> Q,
    ) -> Result<(), ClientError> {
        let opened = self.open(opcode, mask)?;
        opened.send(|lane| lane.set_value(&message(lane.index()))).close();
        Ok(())
    }

    /// The shared memory.
    pub fn channel(&self) -> Channel<'c> {
        self.channel
    }

    fn check(&self) -> Result<(), ClientError> {
        match self.closed {
            Some(closed) if closed.load(Ordering::Acquire) => Err(ClientError::ServerGone),
            _ => Ok(()),
        }
    }
}

/// A port that was opened and has to send first. Dropped unused, it leaves no trace.
#[derive(Debug)]
#[must_use = "an opened port says nothing until it sends"]
pub struct ClientOpen<'c> {
    port: OpenedPort<'c>,
    client: Client<'c>,
}

impl<'c> ClientOpen<'c> {
    /// The port's number.
    pub fn index(&self) -> u32 {
        self.port.index()
    }

    /// Sends the first packet. Never waits.
    pub fn send(self, fill: impl FnMut(Lane<'c>)) -> ClientPort<'c> {
        ClientPort { port: self.port.send(fill), client: self.client }
    }

    /// Sends a stream, `message` for each lane.
    ///
    /// # Errors
    /// [`ClientError::ServerGone`].
    pub fn send_stream<'d>(
        self,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Result<ClientPort<'c>, ClientError> {
        let (mut port, mut sender) = self.begin_stream(&mut message);
        port.wait(|port| sender.poll(port, &mut message))?;
        Ok(port)
    }

    /// As [`send_stream`](Self::send_stream), yielding.
    ///
    /// # Errors
    /// [`ClientError::ServerGone`].
    pub async fn send_stream_async<'d>(
        self,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Result<ClientPort<'c>, ClientError> {
        let (mut port, mut sender) = self.begin_stream(&mut message);
        port.wait_async(|port| sender.poll(port, &mut message)).await?;
        Ok(port)
    }

    /// Gives the port back without a word.
    pub fn close(self) {
        self.port.close();
    }

    fn begin_stream<'d>(
        self,
        message: &mut impl FnMut(u32) -> &'d [u8],
    ) -> (ClientPort<'c>, StreamSender) {
        let mut sender = StreamSender::new(self.port.mask(), |lane| message(lane).len());
        let port = sender.open(self.port, message);
        (ClientPort { port, client: self.client }, sender)
    }
}

/// A conversation of a [`Client`]. Dropping it closes it.
#[derive(Debug)]
pub struct ClientPort<'c> {
    port: Port<'c, Device>,
    client: Client<'c>,
}

impl<'c> ClientPort<'c> {
    /// The port's number.
    pub fn index(&self) -> u32 {
        self.port.index()
    }

    /// What the server says of the conversation, `None` while all is well.
    pub fn status(&self) -> Option<Status> {
        self.port.status()
    }

    /// Sends a packet from every lane if it is the client's turn.
    pub fn try_send(&mut self, fill: impl FnMut(Lane<'c>)) -> Poll<()> {
        self.port.try_send(fill)
    }

    /// Receives a packet for every lane if it is the client's turn. Does not look at the
    /// [status](Self::status).
    pub fn try_recv(&mut self, read: impl FnMut(Lane<'c>)) -> Poll<()> {
        self.port.try_recv(read)
    }

    /// Sends a packet from every lane.
    ///
    /// # Errors
    /// [`ClientError::ServerGone`].
    pub fn send(&mut self, mut fill: impl FnMut(Lane<'c>)) -> Result<(), ClientError> {
        self.wait(|port| port.try_send(&mut fill))
    }

    /// As [`send`](Self::send), yielding.
    ///
    /// # Errors
    /// [`ClientError::ServerGone`].
    pub async fn send_async(&mut self, mut fill: impl FnMut(Lane<'c>)) -> Result<(), ClientError> {
        self.wait_async(|port| port.try_send(&mut fill)).await
    }

    /// Receives a packet for every lane.
    ///
    /// # Errors
    /// [`ClientError::Refused`], with nothing read, [`ClientError::ServerGone`].
    pub fn recv(&mut self, mut read: impl FnMut(Lane<'c>)) -> Result<(), ClientError> {
        self.wait(|port| recv_checked(port, &mut read))?
    }

    /// As [`recv`](Self::recv), yielding.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_async(&mut self, mut read: impl FnMut(Lane<'c>)) -> Result<(), ClientError> {
        self.wait_async(|port| recv_checked(port, &mut read)).await?
    }

    /// Sends a stream, `message` for each lane.
    ///
    /// # Errors
    /// [`ClientError::ServerGone`].
    pub fn send_stream<'d>(
        &mut self,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Result<(), ClientError> {
        let mut sender = StreamSender::new(self.port.mask(), |lane| message(lane).len());
        self.wait(|port| sender.poll(port, &mut message))
    }

    /// As [`send_stream`](Self::send_stream), yielding.
    ///
    /// # Errors
    /// [`ClientError::ServerGone`].
    pub async fn send_stream_async<'d>(
        &mut self,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Result<(), ClientError> {
        let mut sender = StreamSender::new(self.port.mask(), |lane| message(lane).len());
        self.wait_async(|port| sender.poll(port, &mut message)).await
    }

    /// Receives a stream. `sink` gets the lane, what is still to come of its message with this part,
    /// and the part; at first with the whole length.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn recv_stream(
        &mut self,
        mut sink: impl FnMut(u32, u64, &[u8]),
    ) -> Result<(), ClientError> {
        let mut receiver = StreamReceiver::new(u64::MAX);
        self.wait(|port| stream_checked(port, &mut receiver, &mut sink))?
    }

    /// As [`recv_stream`](Self::recv_stream), yielding.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn recv_stream_async(
        &mut self,
        mut sink: impl FnMut(u32, u64, &[u8]),
    ) -> Result<(), ClientError> {
        let mut receiver = StreamReceiver::new(u64::MAX);
        self.wait_async(|port| stream_checked(port, &mut receiver, &mut sink)).await?
    }

    /// Ends the conversation. What was sent last is still served.
    pub fn close(self) {
        self.port.close();
    }

    fn wait<T>(
        &mut self,
        mut step: impl FnMut(&mut Port<'c, Device>) -> Poll<T>,
    ) -> Result<T, ClientError> {
        let backoff = Backoff::new();
        loop {
            if let Poll::Ready(value) = step(&mut self.port) {
                return Ok(value);
            }
            self.client.check()?;
            backoff.snooze();
        }
    }

    async fn wait_async<T>(
        &mut self,
        mut step: impl FnMut(&mut Port<'c, Device>) -> Poll<T>,
    ) -> Result<T, ClientError> {
        let client = self.client;
        let port = &mut self.port;
        poll_fn(|context| match step(port) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => match client.check() {
                Ok(()) => again(context),
                Err(error) => Poll::Ready(Err(error)),
            },
        })
        .await
    }
}

/// A mailbox wakes nobody, so ask to be polled again.
fn again<T>(context: &Context<'_>) -> Poll<T> {
    context.waker().wake_by_ref();
    Poll::Pending
}

fn recv_checked<'c>(
    port: &mut Port<'c, Device>,
    read: &mut impl FnMut(Lane<'c>),
) -> Poll<Result<(), ClientError>> {
    // First the turn, then the status, then the packets: a refused client gets nothing to read.
    if port.try_recv(|_| ()).is_pending() {
        return Poll::Pending;
    }
    Poll::Ready(match port.status() {
        Some(status) => Err(status.into()),
        None => {
            port.lanes().for_each(read);
            Ok(())
        }
    })
}

fn stream_checked<'c>(
    port: &mut Port<'c, Device>,
    receiver: &mut StreamReceiver,
    sink: &mut impl FnMut(u32, u64, &[u8]),
) -> Poll<Result<(), ClientError>> {
    // As above for each packet: a refusal clears them, and they would read as zeros.
    while !receiver.is_done() {
        if !port.next_is_ready() {
            return Poll::Pending;
        }
        if let Some(status) = port.status() {
            return Poll::Ready(Err(status.into()));
        }
        match receiver.poll_packet(port, &mut *sink) {
            Poll::Ready(Ok(())) => {}
            other => return other.map_err(ClientError::from),
        }
    }
    Poll::Ready(Ok(()))
}
