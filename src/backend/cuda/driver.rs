//! Calls of the driver that cudarc has no safe form of, each as a checked function.

use std::alloc::Layout;
use std::error::Error;
use std::ffi::CStr;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::OnceLock;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use libloading::Library;

use super::CudaError;

/// What cudarc and this module call between opening a device and closing it. cudarc panics where one
/// is missing, so all are looked for first.
const NEEDED: [&str; 30] = [
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemFreeHost",
    "cuModuleGetGlobal_v2",
    "cuStreamCreate",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
    "cuPointerGetAttribute",
];

/// The driver's library, if it is there and has all that is needed.
pub(super) fn require() -> Result<&'static Library, CudaError> {
    static LIBRARY: OnceLock<Result<Library, CudaError>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(CudaError::clone)
}

fn load() -> Result<Library, CudaError> {
    // In the order in which cudarc tries them.
    let names: &[&str] =
        if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };
    let mut reason = String::new();
    for &name in names {
        // SAFETY: the driver's library is made to be loaded by any program; its initialisers ask
        // nothing of the caller.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                return match NEEDED.into_iter().find(|&name| !has(&library, name)) {
                    None => Ok(library),
                    Some(function) => Err(CudaError::OldDriver { function }),
                };
            }
            Err(error) => reason = linker_says(&error),
        }
    }
    Err(CudaError::NoDriver { reason })
}

/// The dynamic linker's own words, which are the cause of libloading's error.
pub(super) fn linker_says(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

fn has(library: &Library, function: &str) -> bool {
    // SAFETY: the address is looked up and not used.
    unsafe { library.get::<unsafe extern "C" fn()>(function).is_ok() }
}

pub(super) fn error(call: &'static str, error: DriverError) -> CudaError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => return CudaError::NoDevice,
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => {
            let reason = "the CUDA toolkit's stub was found in its place".to_owned();
            return CudaError::NoDriver { reason };
        }
        _ => {}
    }
    let text = |text: Result<&CStr, DriverError>| {
        text.map_or("unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    };
    CudaError::Driver {
        call,
        code: error.0 as u32,
        name: text(error.error_name()),
        message: text(error.error_string()),
    }
}

/// Makes a [`CudaError`] of what a call returned.
pub(super) fn check(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    result.result().map_err(|result| error(call, result))
}

/// Makes a context the thread's current one until it is dropped; then it is what it was before.
pub(super) struct Current(());

impl Current {
    pub(super) fn push(context: &CudaContext) -> Result<Self, CudaError> {
        // SAFETY: the context is alive, `context` keeps it so.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(context.cu_ctx()) })?;
        Ok(Current(()))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: this thread pushed a context in `push`; `popped` is a place for its address. The
        // call fails where somebody popped it already, and there is nothing left to do then.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

/// Pinned, mapped, zeroed memory: its addresses for the host and for the context's device.
pub(super) fn pin(context: &CudaContext, layout: Layout) -> Result<(NonNull<u8>, u64), CudaError> {
    let bytes = layout.size().max(1);
    let _current = Current::push(context)?;
    // Never write-combined: the host reads what devices wrote.
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    let mut host = std::ptr::null_mut();
    // SAFETY: `host` is a place for the address; a context is current.
    let result = unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, flags) };
    if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Err(CudaError::OutOfMemory { bytes });
    }
    check("cuMemHostAlloc", result)?;
    let host = NonNull::new(host.cast::<u8>()).ok_or(CudaError::OutOfMemory { bytes })?;
    let give_back = |error| {
        // SAFETY: allocated above, and its address has gone nowhere.
        let _ = unsafe { sys::cuMemFreeHost(host.as_ptr().cast()) };
        Err(error)
    };
    if !host.as_ptr().addr().is_multiple_of(layout.align()) {
        return give_back(CudaError::Alignment { align: layout.align() });
    }
    let mut device = 0;
    // SAFETY: `host` was allocated as mapped memory above; `device` is a place for the address.
    let result =
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host.as_ptr().cast(), 0) };
    if let Err(error) = check("cuMemHostGetDevicePointer", result) {
        return give_back(error);
    }
    // SAFETY: the driver gave `bytes` bytes here, and nobody else has them yet.
    unsafe { host.as_ptr().write_bytes(0, bytes) };
    Ok((host, device))
}

/// Gives pinned memory back. May wait for running kernels.
///
/// # Safety
/// `host` came from [`pin`], is not used any more, and was not given back before.
pub(super) unsafe fn unpin(context: &CudaContext, host: NonNull<u8>) -> Result<(), CudaError> {
    let _current = Current::push(context)?;
    // SAFETY: the caller's promise.
    check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(host.as_ptr().cast()) })
}

/// A stream of this module's own: its copies wait for nobody else's work.
struct Stream(sys::CUstream);

impl Stream {
    fn new() -> Result<Self, CudaError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        stream.map(Stream).map_err(|result| error("cuStreamCreate", result))
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives until `self` is dropped.
        let result = unsafe { result::stream::synchronize(self.0) };
        result.map_err(|result| error("cuStreamSynchronize", result))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once. It can only fail with its context, which takes
        // the stream along.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// Copies to device memory and waits for the copy alone.
///
/// # Safety
/// There are `bytes.len()` bytes of device memory at `to`, of the current context.
pub(super) unsafe fn copy_to_device(to: u64, bytes: &[u8]) -> Result<(), CudaError> {
    let stream = Stream::new()?;
    let from = bytes.as_ptr().cast::<c_void>();
    // SAFETY: both sides are valid for the length, and `bytes` outlives the copy: it is waited for
    // below, and an error of the wait is one of the context, in which nothing runs any more.
    let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), stream.0) };
    check("cuMemcpyHtoD", result)?;
    stream.synchronize()
}

/// Copies from device memory and waits for the copy alone.
///
/// # Safety
/// There are `bytes.len()` bytes of device memory at `from`, of the current context.
pub(super) unsafe fn copy_from_device(bytes: &mut [u8], from: u64) -> Result<(), CudaError> {
    let stream = Stream::new()?;
    let to = bytes.as_mut_ptr().cast::<c_void>();
    // SAFETY: as in `copy_to_device`.
    let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes.len(), stream.0) };
    check("cuMemcpyDtoH", result)?;
    stream.synchronize()
}

/// Whether an address is of device memory, as opposed to the host's, which shares the numbers.
pub(super) fn is_device_memory(address: u64) -> bool {
    let mut kind = 0u32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: this attribute is an unsigned int, which `kind` has room for; the address is looked
    // up and not followed.
    let result = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, address) };
    result == sys::CUresult::CUDA_SUCCESS && kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32
}

/// Marks the work that a stream has now.
pub(crate) fn record(event: &CudaEvent, stream: &CudaStream) -> Result<(), CudaError> {
    event.record(stream).map_err(|result| error("cuEventRecord", result))
}

/// Whether the work that an event marks has ended. Never waits. An error is one of the kernels.
pub(crate) fn has_ended(event: &CudaEvent) -> Result<bool, CudaError> {
    // SAFETY: the event lives as long as the borrow.
    match unsafe { result::event::query(event.cu_event()) } {
        Ok(()) => Ok(true),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
        Err(result) => Err(error("cuEventQuery", result)),
    }
}

/// How many threads the device can have at a time.
#[cfg(feature = "loader")]
pub(crate) fn max_resident_threads(context: &CudaContext) -> Result<u64, CudaError> {
    use sys::CUdevice_attribute as Attribute;
    let attribute = |attribute| {
        let value = context.attribute(attribute);
        value.map(|value| value as u64).map_err(|result| error("cuDeviceGetAttribute", result))
    };
    let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok(processors * attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?)
}

/// The stack of each device thread.
#[cfg(feature = "loader")]
pub(crate) fn set_stack_size(context: &CudaContext, bytes: usize) -> Result<(), CudaError> {
    let limit = sys::CUlimit::CU_LIMIT_STACK_SIZE;
    context.set_limit(limit, bytes).map_err(|result| error("cuCtxSetLimit", result))
}

/// A device's name, capability and memory, for people.
#[cfg(feature = "loader")]
pub(crate) fn device_name(context: &CudaContext) -> Result<String, CudaError> {
    let fail = |result| error("cuDeviceGetAttribute", result);
    let (major, minor) = context.compute_capability().map_err(fail)?;
    let name = context.name().map_err(fail)?;
    let memory = context.total_mem().map_err(fail)? >> 20;
    Ok(format!("{name}, sm_{major}{minor}, {memory} MiB"))
}
