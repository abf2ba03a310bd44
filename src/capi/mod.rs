//! The interface for C and C++ host programs: `src/capi/hostcall_rpc.h`.
//!
//! A static and a shared library with these functions come from
//!
//! ```text
//! cargo rustc --release --lib --features capi --crate-type staticlib,cdylib
//! ```
//!
//! in `target/release` (`libhostcall.a`, `libhostcall.so`). From Rust use the rest of the crate.
//!
//! - `rpc_server_init` and the functions after it, for any number of devices, each named by
//!   a handle (the original's form of 2024, PROTOCOL.md §6.3).
//! - `rpc_init` and the functions of its kind, for one device (the form before).
//! - `rpc_recv` and the functions of its kind, for callbacks: they have a port and may block. Each callback
//!   runs on a thread of a pool, so other ports are served meanwhile.
//!
//! # What holds
//!
//! Every function returns a status, or null, for whatever it is given: null pointers, handles of what is gone,
//! functions that return null. [`rpc_last_error`] has the text. Handles are numbers and never addresses.
//! A callback that panics fails its conversation. A C++ exception must not leave a function that this
//! library calls: the header's `hostcall::callback`, `allocation`, `release`, `recv` and so on catch it and
//! make a failure of it. One that gets out all the same ends the process with a message, as leaving a
//! `noexcept` function does: Rust can let it pass or end, and not catch it.
//!
//! Memory that callbacks allocate must be visible to the device under the host's address (unified
//! addressing), as in the original.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "C's names")]

mod allocator;
mod device;
mod handles;
mod original;
mod port;
mod status;

pub use device::{
    RPC_ABI_HOSTCALL, RPC_ABI_LLVM_17, RPC_ABI_LLVM_18, RPC_ABI_LLVM_19, RPC_ABI_LLVM_20,
    RPC_ABI_LLVM_MAIN,
};
pub use device::{
    RPC_LIBC_READ_FILES, RPC_LIBC_STDIN, RPC_LIBC_SYSTEM, RPC_LIBC_WRITE_FILES, rpc_alloc_t,
    rpc_device_t, rpc_free_t, rpc_get_buffer_of, rpc_get_client_buffer, rpc_get_client_size,
    rpc_get_client_symbol, rpc_get_exit_status, rpc_handle_server, rpc_opcode_callback_t,
    rpc_register_callback, rpc_register_libc, rpc_server_drain, rpc_server_init,
    rpc_server_shutdown, rpc_unregister_callback,
};
pub use original::{
    rpc_deinit, rpc_get_buffer, rpc_get_device, rpc_get_inbox, rpc_get_outbox, rpc_handle, rpc_init,
};
pub use port::{
    RPC_MAXIMUM_LANES, rpc_buffer_t, rpc_port_callback_t, rpc_port_fail, rpc_port_lane_mask,
    rpc_port_t, rpc_recv, rpc_recv_and_send, rpc_recv_n, rpc_send, rpc_send_n,
};
pub use status::{
    RPC_STATUS_ALREADY_INITIALIZED, RPC_STATUS_BUSY, RPC_STATUS_CONTINUE, RPC_STATUS_ENDED,
    RPC_STATUS_ERROR, RPC_STATUS_INVALID_ARGUMENT, RPC_STATUS_INVALID_HANDLE,
    RPC_STATUS_INVALID_LANE_SIZE, RPC_STATUS_INVALID_PORT_COUNT, RPC_STATUS_OUT_OF_MEMORY,
    RPC_STATUS_SUCCESS, RPC_STATUS_UNHANDLED_OPCODE, rpc_last_error, rpc_status_t,
};
