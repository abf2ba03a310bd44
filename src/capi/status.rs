//! What functions return, and why.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::call::panic_message;
use crate::error::CallError;

/// What a function came to: one of `RPC_STATUS_*`. Those up to `RPC_STATUS_INVALID_LANE_SIZE` have
/// the original's numbers (PROTOCOL.md §6.3).
pub type rpc_status_t = u32;

/// It is done.
pub const RPC_STATUS_SUCCESS: rpc_status_t = 0x0;
/// It goes on: call again. No failure.
pub const RPC_STATUS_CONTINUE: rpc_status_t = 0x1;
/// It failed for a reason that only `rpc_last_error` tells.
pub const RPC_STATUS_ERROR: rpc_status_t = 0x1000;
/// The device asked for an opcode that nobody answers.
pub const RPC_STATUS_UNHANDLED_OPCODE: rpc_status_t = 0x1001;
/// A warp has 1 to 64 lanes.
pub const RPC_STATUS_INVALID_LANE_SIZE: rpc_status_t = 0x1002;
/// A null pointer, or a number that means nothing.
pub const RPC_STATUS_INVALID_ARGUMENT: rpc_status_t = 0x1003;
/// The handle's device or port is gone, or never was.
pub const RPC_STATUS_INVALID_HANDLE: rpc_status_t = 0x1004;
/// An allocation callback returned null.
pub const RPC_STATUS_OUT_OF_MEMORY: rpc_status_t = 0x1005;
/// A server has 1 to 16384 ports, with older device code 512 or 4096 at most.
pub const RPC_STATUS_INVALID_PORT_COUNT: rpc_status_t = 0x1006;
/// `rpc_init` after `rpc_init`, or an opcode that has a handler.
pub const RPC_STATUS_ALREADY_INITIALIZED: rpc_status_t = 0x1007;
/// Somebody else uses it at this moment, or the caller itself does further up.
pub const RPC_STATUS_BUSY: rpc_status_t = 0x1008;
/// The conversation is over: its deadline passed or the server shuts down.
pub const RPC_STATUS_ENDED: rpc_status_t = 0x1009;

/// A status that is not success, with its text.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: rpc_status_t,
    pub(super) text: String,
}

impl Failure {
    pub(super) fn new(status: rpc_status_t, text: impl Into<String>) -> Self {
        Failure { status, text: text.into() }
    }

    pub(super) fn null(what: &str) -> Self {
        Failure::new(RPC_STATUS_INVALID_ARGUMENT, format!("{what} is null"))
    }

    /// What a function of the program threw.
    pub(super) fn thrown(payload: Box<dyn Any + Send>) -> Self {
        let text = format!("a callback panicked: {}", panic_message(&*payload));
        Failure::new(RPC_STATUS_ERROR, text)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let status = match error {
            CallError::Ended => RPC_STATUS_ENDED,
            CallError::Stream(_) => RPC_STATUS_ERROR,
        };
        Failure::new(status, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function of the interface: a failure or a panic becomes a status, its text is kept.
pub(super) fn enter(function: impl FnOnce() -> Result<(), Failure>) -> rpc_status_t {
    let result = catch_unwind(AssertUnwindSafe(function));
    match result.unwrap_or_else(|payload| Err(Failure::thrown(payload))) {
        Ok(()) => RPC_STATUS_SUCCESS,
        Err(Failure { status, text }) => {
            if status != RPC_STATUS_CONTINUE {
                let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
                // At the end of a thread there is nobody left to ask.
                let _ = LAST.try_with(|last| last.replace(text));
            }
            status
        }
    }
}

/// As `enter`, for functions that return an address: null where they fail.
pub(super) fn address<T>(function: impl FnOnce() -> Result<*mut T, Failure>) -> *mut T {
    let mut address = std::ptr::null_mut();
    enter(|| {
        address = function()?;
        Ok(())
    });
    address
}

/// The text of this thread's last failure; empty where there was none.
///
/// It stays until the next failure on this thread, or the thread's end. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
