//! What answers an opcode: [`OpcodeHandler`], and the [`Request`] that it gets.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::call::Call;
use crate::error::HandlerError;
use crate::protocol::{Channel, Lane, LaneMask, LaneWidth, Opcode, PortState};
use crate::state::{Caller, Core, ExitRequest};

/// The host's answer to an opcode.
///
/// `handle` is called **once for each conversation**, when its first packet is there, for all
/// active lanes together. It runs on the thread that polls the server, so it must not block.
/// Three shapes cover what there is:
///
/// - *immediate*: read and change the packets in place, return [`Handling::Done`]. Nothing is
///   allocated. A client that waits finds the changed packets; one that does not is released.
/// - *async*: [`detach`](Request::detach) the conversation and return a future. It may exchange any
///   number of packets and wait for anything; other ports are served meanwhile.
/// - *blocking*: a future that runs its work on a pool, see [`Call::run_blocking`].
///
/// An error or a panic ends this conversation alone: the client's packets are cleared, a status is
/// left for clients that look, and the server's error policy decides what follows.
///
/// Handlers must not wait for the device that they serve (a stream synchronisation, freeing its
/// memory): the kernel waits for them already.
///
/// Closures of this shape are handlers; [`Registry`](crate::Registry) has helpers for common ones.
pub trait OpcodeHandler: Send + Sync + 'static {
    /// Answers a conversation, or begins to.
    ///
    /// # Errors
    /// When it cannot; the client is told that the handler failed.
    fn handle(&self, request: Request<'_>) -> Result<Handling, HandlerError>;
}

impl<F> OpcodeHandler for F
where
    F: Fn(Request<'_>) -> Result<Handling, HandlerError> + Send + Sync + 'static,
{
    fn handle(&self, request: Request<'_>) -> Result<Handling, HandlerError> {
        self(request)
    }
}

/// A conversation that goes on after the first packet.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

/// How a handler goes on.
#[must_use]
pub enum Handling {
    /// Finished: hand the packets back as they are now.
    Done,
    /// Not finished: poll this until it is.
    Async(HandlerFuture),
}

impl Handling {
    /// Goes on with a future.
    pub fn future(
        future: impl Future<Output = Result<(), HandlerError>> + Send + 'static,
    ) -> Handling {
        Handling::Async(Box::pin(future))
    }
}

impl fmt::Debug for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Handling::Done => "Done",
            Handling::Async(_) => "Async(..)",
        })
    }
}

/// The first packet of a conversation, in shared memory, for as long as `handle` runs.
pub struct Request<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) caller: Caller,
    pub(crate) state: PortState,
    pub(crate) channel: &'a Channel<'a>,
    /// Set by `detach`.
    pub(crate) detached: &'a Cell<bool>,
}

impl<'a> Request<'a> {
    /// What the client asks for.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.caller.opcode
    }

    /// The port that it uses.
    #[inline]
    pub fn port(&self) -> u32 {
        self.caller.port
    }

    /// The lanes that take part. Bits beyond the lane width have been cut off; it may be empty.
    #[inline]
    pub fn mask(&self) -> LaneMask {
        self.caller.mask
    }

    /// How many lanes a warp has.
    pub fn lane_width(&self) -> LaneWidth {
        self.core.lanes
    }

    /// The packets of the active lanes, lowest lane first, to read and to change in place.
    #[inline]
    pub fn lanes(&self) -> impl Iterator<Item = Lane<'a>> + use<'a> {
        self.channel.lanes(self.caller.port, self.caller.mask)
    }

    /// Tells whoever runs the server that the device program wants to end.
    pub fn request_exit(&self, lane: u32, status: i32) {
        let port = self.caller.port;
        self.core.request_exit(ExitRequest { status, aborted: false, port, lane });
    }

    /// Takes the conversation out of this call, to go on in a future.
    ///
    /// The first [`recv`](Call::recv) of the returned call reads this same first packet.
    pub fn detach(self) -> Call {
        let mut slot = self.core.slots[self.caller.port as usize].lock();
        let generation = slot.begin(self.state);
        self.detached.set(true);
        Call::new(self.core.clone(), self.caller, generation)
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("caller", &self.caller).finish_non_exhaustive()
    }
}
