//! One server for the process, without a handle.

use std::ffi::c_void;

use parking_lot::Mutex;

use crate::server::Server;

use super::allocator::CallbackAllocator;
use super::device::{self, rpc_alloc_t, rpc_device_t, rpc_free_t};
use super::status::{
    Failure, RPC_STATUS_ALREADY_INITIALIZED, RPC_STATUS_INVALID_HANDLE, address, enter,
    rpc_status_t,
};

/// The process's device. Locked for `rpc_init` and `rpc_deinit` while they run, and else for a moment.
static DEVICE: Mutex<Option<rpc_device_t>> = Mutex::new(None);

fn current() -> Result<rpc_device_t, Failure> {
    let current = *DEVICE.lock();
    current.ok_or_else(|| Failure::new(RPC_STATUS_INVALID_HANDLE, "rpc_init was not called"))
}

/// Makes the process's server, which answers the C library's opcodes as `rpc_register_libc(device, 0)`
/// does. Arguments and statuses are those of `rpc_server_init`; `RPC_STATUS_ALREADY_INITIALIZED` where
/// there is one.
///
/// # Safety
/// As `rpc_server_init`. The functions must not call this one or `rpc_deinit`.
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
        let again = "rpc_init was called before";
        let mut current = DEVICE.lock();
        if current.is_some() {
            return Err(Failure::new(RPC_STATUS_ALREADY_INITIALIZED, again));
        }
        let device = device::init(abi, ports, lane_size, allocator)?;
        *current = Some(device);
        device::register_libc(device, 0)
    })
}

/// As `rpc_server_shutdown`, for the process's server. Another `rpc_init` may follow.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_deinit() -> rpc_status_t {
    enter(|| {
        let device = current()?;
        device::shutdown(device)?;
        let mut current = DEVICE.lock();
        if *current == Some(device) {
            *current = None;
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
