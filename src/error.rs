//! What can go wrong between a client's packet and a handler's reply.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::{LayoutError, Opcode, Status, StreamError};

/// Why a server could not be built. Whatever was allocated has been given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError<E: Error + 'static> {
    /// The numbers of ports or lanes cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The allocator had no memory.
    #[error("cannot allocate shared memory")]
    Allocator(#[source] E),
}

/// Why an operation on a [`Call`](crate::Call) did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The conversation is over: its deadline passed, the server shut down, or its client left.
    #[error("the conversation was ended by the server")]
    Ended,
    /// The client's message is not taken in.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// What a handler reports when it could not do its work.
///
/// Any error converts into it, so `?` works in handlers.
///
/// ```
/// use hostcall::HandlerError;
/// let error = HandlerError::new("the disk is full").at_lane(3);
/// assert_eq!((error.to_string().as_str(), error.lane()), ("the disk is full", Some(3)));
/// ```
#[derive(Clone)]
pub struct HandlerError {
    source: Arc<dyn Error + Send + Sync>,
    lane: Option<u32>,
}

impl HandlerError {
    /// An error with a message or with another error as its cause.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        HandlerError { source: Arc::from(source.into()), lane: None }
    }

    /// Says which lane it was.
    #[must_use]
    pub fn at_lane(mut self, lane: u32) -> Self {
        self.lane = Some(lane);
        self
    }

    /// The lane, where the handler said it.
    pub fn lane(&self) -> Option<u32> {
        self.lane
    }

    /// The cause.
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let lane = match (&error as &dyn std::any::Any).downcast_ref::<CallError>() {
            Some(CallError::Stream(StreamError::TooLong { lane, .. })) => Some(*lane),
            _ => None,
        };
        HandlerError { source: Arc::new(error), lane }
    }
}

/// How a conversation failed. The server goes on with the others.
#[derive(Clone, Debug)]
pub struct ConversationError {
    /// What the client asked for.
    pub opcode: Opcode,
    /// The port that it used.
    pub port: u32,
    /// The lane, where one of them was the reason.
    pub lane: Option<u32>,
    /// What happened.
    pub cause: Cause,
}

/// What ended a conversation before its time.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// No handler is registered for the opcode.
    #[error("no handler is registered")]
    UnknownOpcode,
    /// The handler returned an error.
    #[error("the handler failed: {0}")]
    Handler(HandlerError),
    /// The handler panicked with this message.
    #[error("the handler panicked: {0}")]
    Panicked(String),
    /// Nothing happened for too long.
    #[error("no progress for {waited:?} while waiting for the {on}")]
    DeadlineExpired {
        /// How long.
        waited: Duration,
        /// For whom.
        on: WaitingFor,
    },
    /// The client had finished and another opened the port, but the handler was not done: it waited
    /// for a packet that nobody meant to send. One that only works on after its last reply is cancelled,
    /// and its conversation has gone well.
    #[error("the handler went on after its client had finished")]
    ReadTooMuch,
    /// The client sent another packet after the handler had finished.
    #[error("the handler finished before it had read all that its client sent")]
    ReadTooLittle,
    /// The server shut down.
    #[error("the server shut down")]
    ShutDown,
}

impl Cause {
    /// What the client is told.
    pub fn status(&self) -> Status {
        match self {
            Cause::UnknownOpcode => Status::UnknownOpcode,
            Cause::Handler(_) | Cause::Panicked(_) => Status::HandlerFailed,
            Cause::DeadlineExpired { .. } => Status::DeadlineExpired,
            Cause::ReadTooMuch | Cause::ReadTooLittle => Status::Protocol,
            Cause::ShutDown => Status::ShuttingDown,
        }
    }
}

/// Whose turn it is in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// The device has the port.
    Device,
    /// The handler has it.
    Handler,
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitingFor::Device => "device",
            WaitingFor::Handler => "handler",
        })
    }
}

impl fmt::Display for ConversationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "opcode {} on port {}", self.opcode, self.port)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl Error for ConversationError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Handler(error) => Some(error.get_ref()),
            _ => None,
        }
    }
}

/// Why an opcode could not be given to a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Somebody has it already. Use `replace` to take it over on purpose.
    #[error("opcode {0} has a handler already")]
    OpcodeTaken(Opcode),
    /// Somebody has the whole class already.
    #[error("class {0:#04x} has a handler already")]
    ClassTaken(u8),
}
