//! What functions return, and why.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_char;
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
/// The conversation is over: the device said nothing for 60 seconds, or the server shuts down.
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

/// Bytes of the longest text that is kept, with its end.
const LONGEST: usize = 512;

thread_local! {
    /// In one place for the thread's life: a program may hold its address.
    static LAST: Cell<[u8; LONGEST]> = const { Cell::new([0; LONGEST]) };
}

/// Runs a function of the interface: a failure or a panic becomes a status, its text is kept.
pub(super) fn enter(function: impl FnOnce() -> Result<(), Failure>) -> rpc_status_t {
    let result = catch_unwind(AssertUnwindSafe(function));
    match result.unwrap_or_else(|payload| Err(Failure::thrown(payload))) {
        Ok(()) => RPC_STATUS_SUCCESS,
        Err(Failure { status, text }) => {
            if status != RPC_STATUS_CONTINUE {
                LAST.set(kept(&text));
            }
            status
        }
    }
}

/// As much of a text as is kept, with a NUL after it and none inside.
fn kept(text: &str) -> [u8; LONGEST] {
    let mut kept = [0; LONGEST];
    let mut end = text.len().min(LONGEST - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    kept[..end].copy_from_slice(&text.as_bytes()[..end]);
    kept[..end].iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
    kept
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
/// At most 511 bytes, in a place of this thread's that the next failure overwrites. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_last_error() -> *const c_char {
    LAST.with(|last| last.as_ptr().cast_const().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        let long = format!("{}é\0", "x".repeat(LONGEST - 2));
        let text = kept(&long);
        assert!(text[..LONGEST - 2].iter().all(|&byte| byte == b'x'));
        assert_eq!(text[LONGEST - 2..], [0, 0]);
        assert_eq!(kept("a\0b")[..4], *b"a?b\0");
    }

    #[test]
    fn the_last_text_is_where_the_one_before_was() {
        let before = rpc_last_error();
        enter(|| Err(Failure::null("it")));
        assert_eq!(before, rpc_last_error());
        // SAFETY: this thread's text, which nobody changes meanwhile.
        let text = unsafe { std::ffi::CStr::from_ptr(before) };
        assert_eq!(text.to_str(), Ok("it is null"));
    }
}
