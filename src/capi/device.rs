//! Servers by handle.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::call::{BlockingCall, unblock};
use crate::error::{BuildError, Cause, HandlerError, WaitingFor};
use crate::handler::{Handling, Request};
use crate::libc::Services;
use crate::libc::files::{Access, FilePolicy, Standard};
use crate::protocol::{Abi, ClientImage, LayoutError, Opcode, SymbolKind};
use crate::server::Server;

use super::allocator::CallbackAllocator;
use super::handles::Handles;
use super::port::{self, rpc_port_t};
use super::status::{
    Failure, RPC_STATUS_ALREADY_INITIALIZED, RPC_STATUS_BUSY, RPC_STATUS_CONTINUE,
    RPC_STATUS_ERROR, RPC_STATUS_INVALID_ARGUMENT, RPC_STATUS_INVALID_HANDLE,
    RPC_STATUS_INVALID_LANE_SIZE, RPC_STATUS_INVALID_PORT_COUNT, RPC_STATUS_OUT_OF_MEMORY,
    RPC_STATUS_UNHANDLED_OPCODE, address, enter, rpc_status_t,
};

/// A device with its server. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rpc_device_t {
    /// A number, never an address.
    pub handle: u64,
}

/// Gives `size` bytes that the device reaches at the same address, or null. Alignment and contents do
/// not matter. May be called on any thread.
pub type rpc_alloc_t =
    Option<unsafe extern "C-unwind" fn(size: u64, data: *mut c_void) -> *mut c_void>;
/// Takes back `size` bytes at `ptr`. May be called on any thread.
pub type rpc_free_t =
    Option<unsafe extern "C-unwind" fn(ptr: *mut c_void, size: u64, data: *mut c_void)>;
/// Answers an opcode. Runs on a thread of a pool and may block; others may run at the same time, of all
/// devices of the process together 500, or as many as the environment variable BLOCKING_MAX_THREADS says
/// when the first one runs.
pub type rpc_opcode_callback_t =
    Option<unsafe extern "C-unwind" fn(port: rpc_port_t, data: *mut c_void)>;

/// Device code of LLVM 17.
pub const RPC_ABI_LLVM_17: u32 = 17;
/// Device code of LLVM 18.
pub const RPC_ABI_LLVM_18: u32 = 18;
/// Device code of LLVM 19.
pub const RPC_ABI_LLVM_19: u32 = 19;
/// Device code of LLVM 20, 21 and 22, and of device/hostcall.h.
pub const RPC_ABI_LLVM_20: u32 = 20;
/// Device code of LLVM's main branch, 23 and later.
pub const RPC_ABI_LLVM_MAIN: u32 = 23;
/// Device code that uses hostcall::fast of device/hostcall.h.
pub const RPC_ABI_HOSTCALL: u32 = 0x1000;

/// The device may read this process's standard input.
pub const RPC_LIBC_STDIN: u32 = 1;
/// The device may read all files that this process may.
pub const RPC_LIBC_READ_FILES: u32 = 2;
/// The device may read, write and remove all files that this process may.
pub const RPC_LIBC_WRITE_FILES: u32 = 4;
/// The device may run commands.
pub const RPC_LIBC_SYSTEM: u32 = 8;

/// Passes of one call of `rpc_handle_server`, so that it returns also from a device that never rests.
const PASSES: usize = 1024;

/// How long `rpc_server_shutdown` waits for callbacks.
const PATIENCE: Duration = Duration::from_secs(5);

static DEVICES: Handles<Device> = Handles::new();

/// Who is inside: each callback that is called or about to be has one more.
type Users = Arc<()>;

struct Device {
    server: Server<CallbackAllocator>,
    image: ClientImage,
    /// The first failed conversation that nobody has been told of.
    failure: Arc<Mutex<Option<Failure>>>,
    users: Users,
    closing: AtomicBool,
    shutting_down: Mutex<()>,
    /// Dropped after the server.
    services: Mutex<Option<Services>>,
}

thread_local! {
    /// The device whose callback this thread is in, as the address of its `users`.
    static CALLBACK_OF: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Device {
    /// Whether this thread is in one of its callbacks.
    fn is_callback_of(&self) -> bool {
        CALLBACK_OF.get() == Arc::as_ptr(&self.users).addr()
    }
}

fn gone() -> Failure {
    Failure::new(RPC_STATUS_INVALID_HANDLE, "no device has this handle: was it shut down?")
}

/// The device, for as long as it is not shut down.
fn device(handle: rpc_device_t) -> Result<Arc<Device>, Failure> {
    let device = DEVICES.get(handle.handle).ok_or_else(gone)?;
    if device.closing.load(Ordering::Acquire) {
        return Err(gone());
    }
    Ok(device)
}

pub(super) fn exists(handle: rpc_device_t) -> bool {
    DEVICES.get(handle.handle).is_some()
}

fn abi(number: u32) -> Option<Abi> {
    Some(match number {
        RPC_ABI_LLVM_17 => Abi::Llvm17,
        RPC_ABI_LLVM_18 => Abi::Llvm18,
        RPC_ABI_LLVM_19 => Abi::Llvm19,
        RPC_ABI_LLVM_20 => Abi::Llvm20,
        RPC_ABI_LLVM_MAIN => Abi::LlvmMain,
        RPC_ABI_HOSTCALL => Abi::Hostcall,
        _ => return None,
    })
}

pub(super) fn init(
    number: u32,
    ports: u32,
    lanes: u32,
    allocator: CallbackAllocator,
) -> Result<rpc_device_t, Failure> {
    let abi = abi(number).ok_or_else(|| {
        Failure::new(RPC_STATUS_INVALID_ARGUMENT, format!("{number} is none of RPC_ABI_*"))
    })?;
    let failure = Arc::new(Mutex::new(None));
    let slot = failure.clone();
    let builder = Server::builder(allocator).abi(abi).ports(ports).lanes(lanes);
    let builder = builder.on_error(move |error| {
        let status = match error.cause {
            // Whoever shuts a server down knows that it did.
            Cause::ShutDown => return,
            Cause::UnknownOpcode => RPC_STATUS_UNHANDLED_OPCODE,
            _ => RPC_STATUS_ERROR,
        };
        slot.lock().get_or_insert_with(|| Failure::new(status, error.to_string()));
    });
    let server = builder.build().map_err(|error| {
        let status = match &error {
            BuildError::Layout(LayoutError::LaneWidth(_)) => RPC_STATUS_INVALID_LANE_SIZE,
            BuildError::Layout(_) => RPC_STATUS_INVALID_PORT_COUNT,
            BuildError::Allocator(_) => RPC_STATUS_OUT_OF_MEMORY,
        };
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        Failure::new(status, format!("{error}{}", cause.unwrap_or_default()))
    })?;
    let image = server.client_image();
    let device = Device {
        server,
        image,
        failure,
        users: Users::default(),
        closing: AtomicBool::new(false),
        shutting_down: Mutex::new(()),
        services: Mutex::new(None),
    };
    Ok(rpc_device_t { handle: DEVICES.insert(Arc::new(device)) })
}

/// Makes a server whose shared memory comes from `alloc`, and writes its handle to `device`.
///
/// `abi` is one of `RPC_ABI_*`, what the device code was built for. `ports` is how many conversations
/// there can be at a time, `lane_size` the lanes of a warp. `data` goes to both functions. The server
/// answers no opcode at first: see `rpc_register_callback` and `rpc_register_libc`.
///
/// Returns `RPC_STATUS_SUCCESS`; `RPC_STATUS_INVALID_ARGUMENT`, `RPC_STATUS_INVALID_PORT_COUNT`,
/// `RPC_STATUS_INVALID_LANE_SIZE` or `RPC_STATUS_OUT_OF_MEMORY`: nothing has been kept then.
///
/// # Safety
/// `device` is null or a place for a handle. The functions do what their types say, on any thread, until
/// the server has been shut down.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_server_init(
    device: *mut rpc_device_t,
    abi: u32,
    ports: u32,
    lane_size: u32,
    alloc: rpc_alloc_t,
    free: rpc_free_t,
    data: *mut c_void,
) -> rpc_status_t {
    enter(|| {
        if device.is_null() {
            return Err(Failure::null("device"));
        }
        let allocator = CallbackAllocator::new(alloc, free, data);
        let new =
            init(abi, ports, lane_size, allocator.ok_or_else(|| Failure::null("a callback"))?)?;
        // SAFETY: not null, and then a place for it, as the caller promises.
        unsafe { device.write(new) };
        Ok(())
    })
}

/// Ends all conversations, waits for callbacks that run, and gives the memory back.
///
/// Returns `RPC_STATUS_SUCCESS`: no callback runs any more, none of their data is used. Otherwise
/// `RPC_STATUS_CONTINUE`: after five seconds a callback or a call still runs; call again. The device
/// cannot be used for anything else then. `RPC_STATUS_BUSY` in a callback of the device itself;
/// `RPC_STATUS_INVALID_HANDLE` the second time. The kernels must have ended.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_server_shutdown(device: rpc_device_t) -> rpc_status_t {
    enter(|| shutdown(device))
}

pub(super) fn shutdown(handle: rpc_device_t) -> Result<(), Failure> {
    let device = DEVICES.get(handle.handle).ok_or_else(gone)?;
    let busy = |text| Failure::new(RPC_STATUS_BUSY, text);
    if device.is_callback_of() {
        return Err(busy("a callback cannot shut its own device down"));
    }
    let alone = device.shutting_down.try_lock();
    let alone = alone.ok_or_else(|| busy("another thread shuts this device down"))?;
    device.closing.store(true, Ordering::Release);
    device.server.shutdown();
    let begin = Instant::now();
    loop {
        // The table's and this one.
        let last = |device: &Arc<Device>| {
            Arc::strong_count(device) == 2 && Arc::strong_count(&device.users) == 1
        };
        if DEVICES.remove_if(handle.handle, last).is_some() {
            drop(alone);
            return Ok(());
        }
        if begin.elapsed() >= PATIENCE {
            return Err(Failure::new(RPC_STATUS_CONTINUE, "a callback still runs"));
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// Serves what the device has sent, until nothing is ready. Never waits for the device.
///
/// Returns `RPC_STATUS_SUCCESS`; `RPC_STATUS_CONTINUE` where a busy device kept it from coming to an
/// end; `RPC_STATUS_UNHANDLED_OPCODE` or `RPC_STATUS_ERROR` for the first conversation that failed since
/// the last time: the others have been served, and it may be called again. Several threads may call it.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_handle_server(device: rpc_device_t) -> rpc_status_t {
    enter(|| serve(device))
}

pub(super) fn serve(handle: rpc_device_t) -> Result<(), Failure> {
    let device = device(handle)?;
    let mut idle = false;
    for _ in 0..PASSES {
        let served = device.server.poll();
        if served.map_err(|error| Failure::new(RPC_STATUS_ERROR, error.to_string()))? == 0 {
            idle = true;
            break;
        }
    }
    if let Some(failure) = device.failure.lock().take() {
        return Err(failure);
    }
    if idle { Ok(()) } else { Err(Failure::new(RPC_STATUS_CONTINUE, "the device is busy")) }
}

/// As `rpc_handle_server`, and waits for callbacks that are at work, five seconds at most: after a kernel
/// has ended, nothing that it sent is lost.
///
/// `RPC_STATUS_CONTINUE` where a callback is at work still: call again. `RPC_STATUS_BUSY` in a callback of
/// the device itself, which it would wait for.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_server_drain(device: rpc_device_t) -> rpc_status_t {
    enter(|| {
        let device = self::device(device)?;
        if device.is_callback_of() {
            let text = "a callback cannot wait for its own device";
            return Err(Failure::new(RPC_STATUS_BUSY, text));
        }
        let drained = device.server.drain();
        drained.map_err(|error| Failure::new(RPC_STATUS_ERROR, error.to_string()))?;
        if let Some(failure) = device.failure.lock().take() {
            return Err(failure);
        }
        let conversations = device.server.conversations();
        if conversations.iter().any(|one| one.waiting_for == WaitingFor::Handler) {
            return Err(Failure::new(RPC_STATUS_CONTINUE, "a callback still runs"));
        }
        Ok(())
    })
}

/// A program's function and its data.
#[derive(Clone, Copy)]
struct Callback {
    function: unsafe extern "C-unwind" fn(rpc_port_t, *mut c_void),
    data: *mut c_void,
}

// SAFETY: the header asks for functions that may be called on any thread with their `data`.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    fn run(self, call: BlockingCall, users: &Users) -> Result<(), HandlerError> {
        let outer = CALLBACK_OF.replace(Arc::as_ptr(users).addr());
        // SAFETY: the caller of rpc_register_callback promised that it may be called, on any thread.
        let result = port::with(call, |port| unsafe { (self.function)(port, self.data) });
        CALLBACK_OF.set(outer);
        result
    }
}

/// Gives an opcode to a callback, in place of what had it. Also while the device is served:
/// conversations that have begun keep the one that they have.
///
/// Opcodes are those of LLVM 20 and later for the C library's, whatever the device was built for.
///
/// # Safety
/// The function may be called with `data` on any thread, several at a time, until the device has been shut
/// down.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_register_callback(
    device: rpc_device_t,
    opcode: u32,
    callback: rpc_opcode_callback_t,
    data: *mut c_void,
) -> rpc_status_t {
    enter(|| {
        let device = self::device(device)?;
        let function = callback.ok_or_else(|| Failure::null("the callback"))?;
        let callback = Callback { function, data };
        let users = Arc::downgrade(&device.users);
        let handler = move |request: Request<'_>| {
            let users = users.upgrade();
            let users = users.ok_or_else(|| HandlerError::new("the device was shut down"))?;
            let call = BlockingCall::new(request.detach());
            Ok(Handling::future(unblock(move || callback.run(call, &users))))
        };
        device.server.registry().replace(Opcode(opcode), handler);
        Ok(())
    })
}

/// Takes an opcode from its handler. Conversations that have begun go on.
///
/// `RPC_STATUS_INVALID_ARGUMENT` where it has none.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_unregister_callback(device: rpc_device_t, opcode: u32) -> rpc_status_t {
    enter(|| {
        let gone = self::device(device)?.server.registry().unregister(Opcode(opcode));
        let none = format!("opcode {} has no handler", Opcode(opcode));
        gone.map(|_| ()).ok_or_else(|| Failure::new(RPC_STATUS_INVALID_ARGUMENT, none))
    })
}

/// Answers the C library's opcodes: the device prints to this process's output. `allowed` is what else it
/// may do, any of `RPC_LIBC_*`. It gets no memory: `malloc` on the device returns null unless
/// a callback for it says otherwise. `exit` is reported by `rpc_get_exit_status`.
///
/// `RPC_STATUS_ALREADY_INITIALIZED` the second time, and where one of the opcodes has a callback: register
/// yours afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_register_libc(device: rpc_device_t, allowed: u32) -> rpc_status_t {
    enter(|| register_libc(device, allowed))
}

pub(super) fn register_libc(handle: rpc_device_t, allowed: u32) -> Result<(), Failure> {
    const ALL: u32 = RPC_LIBC_STDIN | RPC_LIBC_READ_FILES | RPC_LIBC_WRITE_FILES | RPC_LIBC_SYSTEM;
    let device = device(handle)?;
    if allowed & !ALL != 0 {
        let text = format!("{allowed:#x} has bits that are none of RPC_LIBC_*");
        return Err(Failure::new(RPC_STATUS_INVALID_ARGUMENT, text));
    }
    let may = |what| allowed & what != 0;
    let mut services = Services::builder();
    if may(RPC_LIBC_STDIN) {
        services = services.standard(Standard::process());
    }
    if may(RPC_LIBC_WRITE_FILES) {
        services = services.files(FilePolicy::everything(Access::ReadWrite));
    } else if may(RPC_LIBC_READ_FILES) {
        services = services.files(FilePolicy::everything(Access::ReadOnly));
    }
    if may(RPC_LIBC_SYSTEM) {
        services = services.allow_system();
    }
    let mut place = device.services.lock();
    let taken = |text: String| Failure::new(RPC_STATUS_ALREADY_INITIALIZED, text);
    if place.is_some() {
        return Err(taken("the C library's opcodes are answered already".to_owned()));
    }
    let services = services.build();
    services.register(device.server.registry()).map_err(|error| taken(error.to_string()))?;
    *place = Some(services);
    Ok(())
}

/// Writes the status that the device program wants to end with. `RPC_STATUS_CONTINUE` where it has not
/// said so.
///
/// # Safety
/// `status` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpc_get_exit_status(
    device: rpc_device_t,
    status: *mut i32,
) -> rpc_status_t {
    enter(|| {
        let device = self::device(device)?;
        if status.is_null() {
            return Err(Failure::null("status"));
        }
        let exit = device.server.exit_request();
        let exit = exit.ok_or_else(|| Failure::new(RPC_STATUS_CONTINUE, "no exit yet"))?;
        // SAFETY: not null, and then a place for it, as the caller promises.
        unsafe { status.write(exit.status) };
        Ok(())
    })
}

/// The name of the device's client object, which gets the bytes of `rpc_get_client_buffer`. Up to LLVM 19
/// it is a pointer to an object that the host allocates. Code of device/hostcall.h has
/// `__hostcall_client` with `RPC_ABI_LLVM_20`. A constant; null where there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_get_client_symbol(device: rpc_device_t) -> *const c_char {
    address(|| {
        let abi = self::device(device)?.server.layout().abi();
        let name = match (abi, abi.symbol_kind()) {
            (Abi::Hostcall, _) => c"__hostcall_fast_client",
            (_, SymbolKind::Pointer) => c"__llvm_libc_rpc_client",
            (_, SymbolKind::Object) => c"__llvm_rpc_client",
        };
        debug_assert_eq!(name.to_str(), Ok(abi.symbol()));
        Ok(name.as_ptr().cast_mut())
    })
}

/// The bytes to copy to the device's client object. They stay until the device is shut down. Null where
/// there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_get_client_buffer(device: rpc_device_t) -> *const c_void {
    address(|| Ok(self::device(device)?.image.as_bytes().as_ptr().cast_mut().cast()))
}

/// How many bytes those are. 0 where there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_get_client_size(device: rpc_device_t) -> u64 {
    let mut size = 0;
    enter(|| {
        size = self::device(device)?.image.as_bytes().len() as u64;
        Ok(())
    });
    size
}

/// Where the device finds the packets. Null where there is no such device.
#[unsafe(no_mangle)]
pub extern "C" fn rpc_get_buffer_of(device: rpc_device_t) -> *mut c_void {
    address(|| place(device, Server::buffer))
}

/// An address of the server's as a pointer.
pub(super) fn place(
    handle: rpc_device_t,
    which: impl FnOnce(&Server<CallbackAllocator>) -> crate::backend::DeviceAddress,
) -> Result<*mut c_void, Failure> {
    let address = which(&device(handle)?.server);
    Ok(std::ptr::with_exposed_provenance_mut(address.0 as usize))
}
