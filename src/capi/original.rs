//! One server for the process, without a handle.

use std::ffi::c_void;

use parking_lot::Mutex;

use crate::server::Server;

use super::allocator::CallbackAllocator;
use super::device::{self, rpc_alloc_t, rpc_device_t, rpc_free_t};
use super::status::{
    Failure, RPC_STATUS_ALREADY_INITIALIZED, RPC_STATUS_BUSY, RPC_STATUS_INVALID_HANDLE, address,
    enter, rpc_status_t,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Nothing,
    /// A thread is in `rpc_init`, perhaps in a function of the program.
    Making,
    Made(rpc_device_t),
}

/// The process's device. Locked for a moment only: the program's functions may call any of these.
static STATE: Mutex<State> = Mutex::new(State::Nothing);

fn current() -> Result<rpc_device_t, Failure> {
    match *STATE.lock() {
        State::Made(device) => Ok(device),
        State::Nothing => Err(Failure::new(RPC_STATUS_INVALID_HANDLE, "rpc_init was not called")),
        State::Making => {
            Err(Failure::new(RPC_STATUS_INVALID_HANDLE, "rpc_init has not returned yet"))
        }
    }
}

/// What `rpc_init` leaves behind, however it ends.
struct Making(State);

impl Drop for Making {
    fn drop(&mut self) {
        *STATE.lock() = self.0;
    }
}

/// Makes the process's server, which answers the C library's opcodes as `rpc_register_libc(device, 0)`
/// does. Arguments and statuses are those of `rpc_server_init`; `RPC_STATUS_ALREADY_INITIALIZED` where
/// there is one; `RPC_STATUS_BUSY` while one is being made.
///
/// # Safety
/// As `rpc_server_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_init(
    abi: u32,
    ports: u32,
    lane_size: u32,
    alloc: rpc_alloc_t,
    free: rpc_free_t,
    data: *mut c_void,
) -> rpc_status_t {
    enter(|| {
        let allocator = CallbackAllocator::new(alloc, free, data);
        let allocator = allocator.ok_or_else(|| Failure::null("a callback"))?;
        let mut state = STATE.lock();
        match *state {
            State::Made(device) if device::exists(device) => {
                let again = "rpc_init was called before";
                return Err(Failure::new(RPC_STATUS_ALREADY_INITIALIZED, again));
            }
            State::Making => {
                return Err(Failure::new(RPC_STATUS_BUSY, "rpc_init has not returned yet"));
            }
            // One that was shut down by its handle is gone.
            State::Made(_) | State::Nothing => *state = State::Making,
        }
        drop(state);
        let mut made = Making(State::Nothing);
        let device = device::init(abi, ports, lane_size, allocator)?;
        made.0 = State::Made(device);
        device::register_libc(device, 0)
    })
}

/// As `rpc_server_shutdown`, for the process's server. Another `rpc_init` may follow.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_deinit() -> rpc_status_t {
    enter(|| {
        let device = current()?;
        device::shutdown(device)?;
        let mut state = STATE.lock();
        if *state == State::Made(device) {
            *state = State::Nothing;
        }
        Ok(())
    })
}

/// As `rpc_handle_server`, for the process's server.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_handle() -> rpc_status_t {
    enter(|| device::serve(current()?))
}

/// Writes the handle of the process's server, for the functions that want one.
///
/// # Safety
/// `device` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_get_device(device: *mut rpc_device_t) -> rpc_status_t {
    enter(|| {
        if device.is_null() {
            return Err(Failure::null("device"));
        }
        let current = current()?;
        // SAFETY: not null, and then a place for it, as the caller promises.
        unsafe { device.write(current) };
        Ok(())
    })
}

/// Where the device finds the server's inbox, the mailboxes that it writes. Null before `rpc_init`.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_get_inbox() -> *mut c_void {
    address(|| device::place(current()?, Server::inbox))
}

/// Where the device finds the server's outbox, the mailboxes that it polls. Null before `rpc_init`.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_get_outbox() -> *mut c_void {
    address(|| device::place(current()?, Server::outbox))
}

/// Where the device finds the packets. Null before `rpc_init`.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_get_buffer() -> *mut c_void {
    address(|| device::place(current()?, Server::buffer))
}
