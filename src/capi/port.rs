//! A conversation in the hands of a C callback.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use bytemuck::Zeroable;
use parking_lot::Mutex;

use crate::call::{BlockingCall, LaneBytes};
use crate::error::HandlerError;
use crate::protocol::{LaneWidth, Packet};

use super::device::rpc_alloc_t;
use super::handles::Handles;
use super::status::{
    Failure, RPC_STATUS_BUSY, RPC_STATUS_INVALID_ARGUMENT, RPC_STATUS_INVALID_HANDLE,
    RPC_STATUS_OUT_OF_MEMORY, enter, rpc_status_t,
};

/// The most lanes that a warp has: the length of arrays with something for each lane.
pub const RPC_MAXIMUM_LANES: u32 = 64;
const _: () = assert!(RPC_MAXIMUM_LANES == LaneWidth::MAX);

/// A conversation, for as long as its callback runs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct rpc_port_t {
    /// A number, never an address.
    pub handle: u64,
    /// The lanes of a warp.
    pub lane_size: u32,
}

/// What a lane sends at a time.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct rpc_buffer_t {
    /// The words.
    pub data: [u64; 8],
}

/// Reads a lane's packet, or fills it. Called for each lane that takes part, lowest first.
pub type rpc_port_callback_t =
    Option<unsafe extern "C-unwind" fn(buffer: *mut rpc_buffer_t, data: *mut c_void)>;

static PORTS: Handles<Mutex<Conversation>> = Handles::new();

struct Conversation {
    call: BlockingCall,
    /// Copies of the lanes' packets: those last received, or zeros.
    packets: Box<[Packet]>,
    failed: bool,
}

/// Runs a callback with a port.
pub(super) fn with(
    call: BlockingCall,
    callback: impl FnOnce(rpc_port_t),
) -> Result<(), HandlerError> {
    let lane_size = call.call().lane_width().get();
    let packets = vec![Packet::zeroed(); RPC_MAXIMUM_LANES as usize].into();
    let conversation = Arc::new(Mutex::new(Conversation { call, packets, failed: false }));
    let handle = PORTS.insert(conversation.clone());
    let returned = catch_unwind(AssertUnwindSafe(|| callback(rpc_port_t { handle, lane_size })));
    PORTS.remove_if(handle, |_| true);
    returned.map_err(|payload| HandlerError::new(Failure::thrown(payload).text))?;
    match conversation.try_lock() {
        None => Err(HandlerError::new("the callback returned while another thread used its port")),
        Some(conversation) if conversation.failed => {
            Err(HandlerError::new("the callback said that it failed"))
        }
        Some(_) => Ok(()),
    }
}

/// Does something with a port, unless another thread does.
fn enter_port(
    port: rpc_port_t,
    function: impl FnOnce(&mut Conversation) -> Result<(), Failure>,
) -> rpc_status_t {
    enter(|| {
        let none = "no conversation has this port: they end with their callbacks";
        let conversation = PORTS.get(port.handle);
        let conversation =
            conversation.ok_or_else(|| Failure::new(RPC_STATUS_INVALID_HANDLE, none))?;
        let busy = "the port is in use: by another thread, or by the function that calls this one";
        let mut conversation =
            conversation.try_lock().ok_or_else(|| Failure::new(RPC_STATUS_BUSY, busy))?;
        function(&mut conversation)
    })
}

impl Conversation {
    fn recv(&mut self) -> Result<(), Failure> {
        let packets = &mut self.packets;
        Ok(self.call.recv(|lane| packets[lane.index() as usize] = lane.load())?)
    }

    fn send(&mut self) -> Result<(), Failure> {
        let packets = &self.packets;
        Ok(self.call.send(|lane| lane.store(&packets[lane.index() as usize]))?)
    }

    fn each(&mut self, callback: rpc_port_callback_t, data: *mut c_void) -> Result<(), Failure> {
        let callback = callback.ok_or_else(|| Failure::null("the callback"))?;
        for lane in self.call.call().mask() {
            let packet = &mut self.packets[lane as usize];
            let mut buffer = rpc_buffer_t { data: packet.words };
            let place = &raw mut buffer;
            // SAFETY: the program's function takes a buffer and its data, as the caller promised.
            let returned = catch_unwind(AssertUnwindSafe(|| unsafe { callback(place, data) }));
            returned.map_err(Failure::thrown)?;
            packet.words = buffer.data;
        }
        Ok(())
    }
}

/// Waits for the next packet of the conversation and gives it to `callback`, lane by lane.
///
/// Returns `RPC_STATUS_SUCCESS`, `RPC_STATUS_ENDED` where there comes none any more: return from the
/// callback then. `RPC_STATUS_INVALID_HANDLE`, `RPC_STATUS_INVALID_ARGUMENT` or `RPC_STATUS_BUSY`
/// for misuse.
///
/// # Safety
/// The function may be called with a buffer and `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_recv(
    port: rpc_port_t,
    callback: rpc_port_callback_t,
    data: *mut c_void,
) -> rpc_status_t {
    enter_port(port, |conversation| {
        if callback.is_none() {
            return Err(Failure::null("the callback"));
        }
        conversation.recv()?;
        conversation.each(callback, data)
    })
}

/// Lets `callback` fill a packet, lane by lane, and sends it. The packet is at first the one that was
/// received or sent last.
///
/// Statuses are those of `rpc_recv`.
///
/// # Safety
/// As `rpc_recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_send(
    port: rpc_port_t,
    callback: rpc_port_callback_t,
    data: *mut c_void,
) -> rpc_status_t {
    enter_port(port, |conversation| {
        conversation.each(callback, data)?;
        conversation.send()
    })
}

/// Waits for a packet, lets `callback` change it, lane by lane, and sends it back.
///
/// Statuses are those of `rpc_recv`.
///
/// # Safety
/// As `rpc_recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_recv_and_send(
    port: rpc_port_t,
    callback: rpc_port_callback_t,
    data: *mut c_void,
) -> rpc_status_t {
    enter_port(port, |conversation| {
        if callback.is_none() {
            return Err(Failure::null("the callback"));
        }
        conversation.recv()?;
        conversation.each(callback, data)?;
        conversation.send()
    })
}

/// Sends a message of any length to each lane that takes part: `size[lane]` bytes at `src[lane]`.
///
/// Statuses are those of `rpc_recv`. A null message of some length is an
/// `RPC_STATUS_INVALID_ARGUMENT`, and nothing is sent then.
///
/// # Safety
/// Both arrays are null or have an element for each lane of a warp; each message that is not null has as
/// many bytes as its size says. Elements of lanes that take no part are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_send_n(
    port: rpc_port_t,
    src: *const *const c_void,
    size: *const u64,
) -> rpc_status_t {
    enter_port(port, |conversation| {
        if src.is_null() || size.is_null() {
            return Err(Failure::null("src or size"));
        }
        let mut messages = [&[][..]; RPC_MAXIMUM_LANES as usize];
        for lane in conversation.call.call().mask() {
            let lane = lane as usize;
            // SAFETY: the arrays have an element for each lane of a warp, as the caller promises.
            let (from, bytes) = unsafe { (*src.add(lane), *size.add(lane)) };
            if bytes == 0 {
                continue;
            }
            if from.is_null() {
                return Err(Failure::null(&format!("the message of lane {lane}")));
            }
            if bytes > isize::MAX as u64 {
                let text = format!("the message of lane {lane} has {bytes} bytes");
                return Err(Failure::new(RPC_STATUS_INVALID_ARGUMENT, text));
            }
            // SAFETY: that many bytes, as the caller promises, which stay while this function runs.
            messages[lane] = unsafe { std::slice::from_raw_parts(from.cast(), bytes as usize) };
        }
        Ok(conversation.call.send_stream(|lane| messages[lane as usize])?)
    })
}

/// Receives a message of any length from each lane. `dst[lane]` gets memory from `alloc` with the
/// message, `size[lane]` its length in bytes; null and 0 for lanes that take no part and for empty messages.
///
/// The caller frees what `alloc` gave, also after a failure.
///
/// Statuses are those of `rpc_recv`. `RPC_STATUS_ERROR` where all lanes together announce more than 64 MiB,
/// before any memory is allocated. `RPC_STATUS_OUT_OF_MEMORY` where `alloc` returned null: those lanes
/// have null and their length, the others their message.
///
/// # Safety
/// Both arrays are null or have a place for each lane of a warp. `alloc` gives as many bytes as it is
/// asked for, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_recv_n(
    port: rpc_port_t,
    dst: *mut *mut c_void,
    size: *mut u64,
    alloc: rpc_alloc_t,
    data: *mut c_void,
) -> rpc_status_t {
    enter_port(port, |conversation| {
        if dst.is_null() || size.is_null() {
            return Err(Failure::null("dst or size"));
        }
        let alloc = alloc.ok_or_else(|| Failure::null("alloc"))?;
        let lanes = conversation.call.call().lane_width().get();
        let put = |lane: u32, address: *mut c_void, bytes: u64| {
            // SAFETY: the arrays have a place for each lane of a warp, as the caller promises.
            unsafe {
                (dst.add(lane as usize).write(address), size.add(lane as usize).write(bytes))
            };
        };
        (0..lanes).for_each(|lane| put(lane, ptr::null_mut(), 0));
        let messages: LaneBytes = conversation.call.recv_stream()?;
        let mut missing = Ok(());
        for (lane, message) in messages.iter().filter(|(_, message)| !message.is_empty()) {
            let bytes = message.len() as u64;
            // SAFETY: the program's function, as the caller promises.
            let given = catch_unwind(AssertUnwindSafe(|| unsafe { alloc(bytes, data) }));
            let given = given.unwrap_or(ptr::null_mut());
            put(lane, given, bytes);
            if given.is_null() {
                let text = format!("alloc returned null for {bytes} bytes of lane {lane}");
                missing = Err(Failure::new(RPC_STATUS_OUT_OF_MEMORY, text));
                continue;
            }
            // SAFETY: `alloc` gave that many bytes, which are nobody else's.
            unsafe { given.cast::<u8>().copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        }
        missing
    })
}

/// Writes which lanes take part, a bit for each.
///
/// # Safety
/// `mask` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_port_lane_mask(port: rpc_port_t, mask: *mut u64) -> rpc_status_t {
    enter_port(port, |conversation| {
        if mask.is_null() {
            return Err(Failure::null("mask"));
        }
        // SAFETY: not null, and then a place for it, as the caller promises.
        unsafe { mask.write(conversation.call.call().mask().0) };
        Ok(())
    })
}

/// Says that the callback failed: when it returns, the client is told, and `rpc_handle_server` returns
/// `RPC_STATUS_ERROR`.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_port_fail(port: rpc_port_t) -> rpc_status_t {
    enter_port(port, |conversation| {
        conversation.failed = true;
        Ok(())
    })
}
