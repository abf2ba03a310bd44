//! Which handler answers which opcode.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use parking_lot::RwLock;

use crate::call::{BlockingCall, Call, LaneBytes, unblock};
use crate::error::{HandlerError, RegisterError};
use crate::handler::{Handling, OpcodeHandler, Request};
use crate::protocol::{Opcode, PACKET_SIZE};

/// The handlers of one or more servers. Clones share their handlers.
///
/// A handler is found by opcode, else by class byte, else the fallback answers; without one the
/// client is [told](crate::Status::UnknownOpcode) and the error counted. Handlers may be added,
/// replaced and removed while servers run: conversations that have begun keep the handler that
/// they have, later ones find the new one.
///
/// ```
/// use hostcall::{Opcode, Registry};
/// const SQUARE: Opcode = Opcode::new(b'x', 1);
/// let registry = Registry::new();
/// registry.unary(SQUARE, |_, number: u64| number * number)?;
/// assert!(registry.unary(SQUARE, |_, number: u64| number).is_err(), "taken");
/// # Ok::<(), hostcall::RegisterError>(())
/// ```
#[derive(Clone, Default)]
pub struct Registry(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: RwLock<Arc<Table>>,
    version: AtomicU64,
}

type Handler = Arc<dyn OpcodeHandler>;

/// A state of the registry. Servers keep the newest that they have seen.
#[derive(Clone, Default)]
pub(crate) struct Table {
    /// Sorted by opcode.
    opcodes: Vec<(Opcode, Handler)>,
    classes: BTreeMap<u8, Handler>,
    fallback: Option<Handler>,
}

impl Table {
    pub(crate) fn find(&self, opcode: Opcode) -> Option<&Handler> {
        match self.position(opcode) {
            Ok(index) => Some(&self.opcodes[index].1),
            Err(_) => self.classes.get(&opcode.class()).or(self.fallback.as_ref()),
        }
    }

    fn position(&self, opcode: Opcode) -> Result<usize, usize> {
        self.opcodes.binary_search_by_key(&opcode, |(opcode, _)| *opcode)
    }
}

/// Who calls, for the closures of the typed helpers.
#[derive(Clone, Copy, Debug)]
pub struct LaneInfo {
    /// What is asked for.
    pub opcode: Opcode,
    /// The port.
    pub port: u32,
    /// The lane of the warp.
    pub lane: u32,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives an opcode to a handler.
    ///
    /// # Errors
    /// [`RegisterError::OpcodeTaken`] when it has one; that one stays.
    pub fn register(
        &self,
        opcode: Opcode,
        handler: impl OpcodeHandler,
    ) -> Result<(), RegisterError> {
        self.change(|table| match table.position(opcode) {
            Ok(_) => Err(RegisterError::OpcodeTaken(opcode)),
            Err(index) => {
                table.opcodes.insert(index, (opcode, Arc::new(handler)));
                Ok(())
            }
        })
    }

    /// Gives an opcode to a handler and returns the one that it had.
    pub fn replace(
        &self,
        opcode: Opcode,
        handler: impl OpcodeHandler,
    ) -> Option<Arc<dyn OpcodeHandler>> {
        self.change(|table| {
            let handler: Handler = Arc::new(handler);
            match table.position(opcode) {
                Ok(index) => Some(std::mem::replace(&mut table.opcodes[index].1, handler)),
                Err(index) => {
                    table.opcodes.insert(index, (opcode, handler));
                    None
                }
            }
        })
    }

    /// Takes an opcode from its handler and returns that.
    pub fn unregister(&self, opcode: Opcode) -> Option<Arc<dyn OpcodeHandler>> {
        self.change(|table| {
            let index = table.position(opcode).ok()?;
            Some(table.opcodes.remove(index).1)
        })
    }

    /// Gives all opcodes of a class that have no handler of their own to one.
    ///
    /// # Errors
    /// [`RegisterError::ClassTaken`] when the class has one; that one stays.
    pub fn register_class(
        &self,
        class: u8,
        handler: impl OpcodeHandler,
    ) -> Result<(), RegisterError> {
        self.change(|table| match table.classes.entry(class) {
            std::collections::btree_map::Entry::Occupied(_) => {
                Err(RegisterError::ClassTaken(class))
            }
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Arc::new(handler));
                Ok(())
            }
        })
    }

    /// Takes a class from its handler and returns that.
    pub fn unregister_class(&self, class: u8) -> Option<Arc<dyn OpcodeHandler>> {
        self.change(|table| table.classes.remove(&class))
    }

    /// Answers opcodes that nobody else does. Returns the fallback before.
    pub fn set_fallback(&self, handler: impl OpcodeHandler) -> Option<Arc<dyn OpcodeHandler>> {
        self.change(|table| table.fallback.replace(Arc::new(handler)))
    }

    /// Lets unknown opcodes be unknown again. Returns the fallback before.
    pub fn clear_fallback(&self) -> Option<Arc<dyn OpcodeHandler>> {
        self.change(|table| table.fallback.take())
    }

    /// Whether a packet with this opcode would find a handler.
    pub fn handles(&self, opcode: Opcode) -> bool {
        self.0.table.read().find(opcode).is_some()
    }

    /// A function of one value to one value, called for each active lane.
    ///
    /// Values larger than a packet do not compile: use [`bytes`](Self::bytes) for those.
    ///
    /// # Errors
    /// [`RegisterError::OpcodeTaken`].
    pub fn unary<Q: Pod, R: Pod>(
        &self,
        opcode: Opcode,
        function: impl Fn(LaneInfo, Q) -> R + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        const { assert!(size_of::<Q>() <= PACKET_SIZE && size_of::<R>() <= PACKET_SIZE) }
        self.register(opcode, move |request: Request<'_>| {
            for lane in request.lanes() {
                lane.set_value(&function(info(&request, lane.index()), lane.value()));
            }
            Ok(Handling::Done)
        })
    }

    /// A function that takes note of one value, called for each active lane. Nobody waits for it.
    ///
    /// # Errors
    /// [`RegisterError::OpcodeTaken`].
    pub fn notification<Q: Pod>(
        &self,
        opcode: Opcode,
        function: impl Fn(LaneInfo, Q) + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        const { assert!(size_of::<Q>() <= PACKET_SIZE) }
        self.register(opcode, move |request: Request<'_>| {
            for lane in request.lanes() {
                function(info(&request, lane.index()), lane.value());
            }
            Ok(Handling::Done)
        })
    }

    /// A function of a message of any length to another, called for each active lane. The client
    /// sends a stream and receives one.
    ///
    /// # Errors
    /// [`RegisterError::OpcodeTaken`].
    pub fn bytes(
        &self,
        opcode: Opcode,
        function: impl Fn(LaneInfo, Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        let function = Arc::new(function);
        self.conversation(opcode, move |mut call| {
            let function = function.clone();
            async move {
                let mut messages = call.recv_stream().await?;
                let (opcode, port) = (call.opcode(), call.port());
                let replies = LaneBytes::from_fn(call.mask(), |lane| {
                    function(LaneInfo { opcode, port, lane }, messages.take(lane))
                });
                call.send_stream(|lane| replies.get(lane).unwrap_or_default()).await?;
                Ok(())
            }
        })
    }

    /// A whole conversation, as an async function of its [`Call`].
    ///
    /// For the client the conversation ends with the last reply. A function that goes on after it is
    /// cancelled when the next client opens the port: hand such work to somebody else.
    ///
    /// # Errors
    /// [`RegisterError::OpcodeTaken`].
    pub fn conversation<F>(
        &self,
        opcode: Opcode,
        function: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Result<(), RegisterError>
    where
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.register(opcode, move |request: Request<'_>| {
            Ok(Handling::future(function(request.detach())))
        })
    }

    /// A whole conversation, as a function that may block. It runs on a thread of a pool, which the whole
    /// process shares: 500 at most, or what the environment variable `BLOCKING_MAX_THREADS` says, 10000 at
    /// most. Beyond that they wait for each other, so a conversation that may wait for long for its device is
    /// better an [async](Self::conversation) one.
    ///
    /// # Errors
    /// [`RegisterError::OpcodeTaken`].
    pub fn blocking(
        &self,
        opcode: Opcode,
        function: impl Fn(BlockingCall) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        let function = Arc::new(function);
        self.register(opcode, move |request: Request<'_>| {
            let (function, call) = (function.clone(), BlockingCall::new(request.detach()));
            Ok(Handling::future(unblock(move || function(call))))
        })
    }

    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.0.table.read().clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.0.table.write();
        let result = change(Arc::make_mut(&mut table));
        self.0.version.fetch_add(1, Ordering::Release);
        result
    }
}

fn info(request: &Request<'_>, lane: u32) -> LaneInfo {
    LaneInfo { opcode: request.opcode(), port: request.port(), lane }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        f.debug_struct("Registry")
            .field("opcodes", &table.opcodes.iter().map(|(opcode, _)| opcode).collect::<Vec<_>>())
            .field("classes", &table.classes.keys().collect::<Vec<_>>())
            .field("fallback", &table.fallback.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Opcode = Opcode::new(b'x', 1);
    const TWO: Opcode = Opcode::new(b'x', 2);

    #[expect(clippy::unnecessary_wraps, reason = "the shape of a handler")]
    fn done(_: Request<'_>) -> Result<Handling, HandlerError> {
        Ok(Handling::Done)
    }

    #[test]
    fn an_opcode_has_one_owner() {
        let registry = Registry::new();
        assert_eq!(registry.register(ONE, done), Ok(()));
        assert_eq!(registry.register(ONE, done), Err(RegisterError::OpcodeTaken(ONE)));
        assert!(registry.replace(ONE, done).is_some());
        assert!(registry.replace(TWO, done).is_none());
        assert!(registry.unregister(ONE).is_some());
        assert!(registry.unregister(ONE).is_none());
        assert_eq!((registry.handles(ONE), registry.handles(TWO)), (false, true));
    }

    #[test]
    fn opcodes_go_before_classes_and_classes_before_the_fallback() {
        let registry = Registry::new();
        let found = |opcode| registry.table().find(opcode).map(Arc::as_ptr);
        assert_eq!(found(ONE), None);
        registry.set_fallback(done);
        let fallback = found(ONE);
        registry.register_class(b'x', done).unwrap();
        assert_eq!(registry.register_class(b'x', done), Err(RegisterError::ClassTaken(b'x')));
        registry.register(TWO, done).unwrap();
        assert!(fallback.is_some());
        assert!(registry.unregister_class(b'x').is_some());
        assert!(registry.clear_fallback().is_some());
        assert_eq!((registry.handles(ONE), registry.handles(TWO)), (false, true));
    }

    #[test]
    fn clones_share_their_handlers() {
        let registry = Registry::new();
        registry.clone().register(ONE, done).unwrap();
        assert!(registry.handles(ONE));
        assert!(format!("{registry:?}").contains("'x'+1"));
    }
}
