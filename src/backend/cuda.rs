//! Pinned memory that CUDA devices and the host both see.
//!
//! [`CudaAllocator`] takes the context that a program already has, or opens a device by number. The
//! driver's library is loaded at run time: this builds where no CUDA is, and a machine without a
//! driver gives a [`CudaError`], never a panic.
//!
//! Publishing a client and running kernels is in [`crate::cuda`].
//!
//! # Calls that wait for kernels
//!
//! `cuMemFreeHost` may wait until kernels that run on the device have ended, `cuMemHostAlloc` and
//! `cuModuleUnload` may as well. So drop a server after its kernels have ended, never from one of its
//! handlers, and make a [`Heap`](crate::libc::Heap) with `Heap::pool`, not `Heap::growing`.
#![allow(unsafe_code)]

mod driver;
mod module;
pub(crate) mod nvrtc;

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaContext, DriverError, result};

pub use module::{Global, Globals, Module};
pub use nvrtc::CompileError;

pub(crate) use driver::{has_ended, record};
#[cfg(feature = "loader")]
pub(crate) use {
    driver::{device_name, max_resident_threads, set_stack_size},
    module::{Function, LoadError},
};

use super::{DeviceAddress, Purpose, SharedAllocator, SharedBlock};

/// What the CUDA driver could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not on this machine.
    #[error(
        "the NVIDIA driver's library cannot be loaded ({reason}): install the driver of this \
         machine's GPU, or start the container with its GPUs (docker run --gpus all)"
    )]
    NoDriver {
        /// Why not, as the dynamic linker says it.
        reason: String,
    },
    /// The driver's library has not all functions that are needed.
    #[error("the NVIDIA driver has no {function}: update it to one for CUDA 11.4 or newer")]
    OldDriver {
        /// The first function that is missing.
        function: &'static str,
    },
    /// There is a driver, and it sees no device.
    #[error(
        "the NVIDIA driver sees no GPU: look what nvidia-smi says, and whether CUDA_VISIBLE_DEVICES \
         or the container hides them"
    )]
    NoDevice,
    /// There are devices, and this is none of them.
    #[error("there is no CUDA device {ordinal}: this process sees {count}, numbered from 0")]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The memory cannot be had.
    #[error(
        "cannot pin {bytes} bytes of host memory: ask for less (fewer ports, a smaller heap), or \
         raise the limit of locked memory"
    )]
    OutOfMemory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// The memory cannot be aligned like that.
    #[error("pinned memory cannot be aligned to {align} bytes")]
    Alignment {
        /// The alignment asked for.
        align: usize,
    },
    /// A call of the driver failed.
    #[error("{call} failed with {name} ({code}): {message}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The number of its error.
        code: u32,
        /// The name of its error.
        name: String,
        /// What the driver says about it.
        message: String,
    },
}

impl CudaError {
    /// What `call` returned.
    pub fn new(call: &'static str, error: DriverError) -> Self {
        driver::error(call, error)
    }

    /// Whether the context can do nothing any more: a kernel has faulted in it. Every later call
    /// fails with the same error, also after the device was opened again: this process cannot use it
    /// any more. Drop all that belongs to the context, and go on in a new process.
    pub fn breaks_context(&self) -> bool {
        // Exceptions of kernels, and errors of memory and links that stop the device.
        matches!(
            self,
            CudaError::Driver { code: 214 | 220 | 226 | 700 | 702 | 710 | 714..=719, .. }
        )
    }
}

/// Allocates pinned host memory that all CUDA devices of the process see.
///
/// Memory is mapped and portable, and never write-combined: the host reads flags in it. Device
/// addresses are those of the allocator's device; where the driver has unified addresses they are
/// the host's.
///
/// One server for each device: each has an allocator of its own.
///
/// ```no_run
/// use hostcall::Server;
/// use hostcall::backend::cuda::CudaAllocator;
/// let server = Server::builder(CudaAllocator::open(0)?).ports(4096).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CudaAllocator {
    context: Arc<CudaContext>,
    lost: AtomicU64,
}

impl CudaAllocator {
    /// Allocates for the device of a context that the program has.
    pub fn new(context: Arc<CudaContext>) -> Self {
        CudaAllocator { context, lost: AtomicU64::new(0) }
    }

    /// Opens the primary context of a device.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoDevice`], [`CudaError::NoSuchDevice`], or what the
    /// driver says.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)
            .map_err(|error| CudaError::new("cuDevicePrimaryCtxRetain", error))?;
        Ok(Self::new(context))
    }

    /// The context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Bytes that the driver would not take back, as after a kernel's fault. The driver frees them
    /// with the context.
    pub fn lost_bytes(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// How many CUDA devices this process sees.
///
/// # Errors
/// [`CudaError::NoDriver`] without a driver, [`CudaError::NoDevice`] where there are none.
pub fn device_count() -> Result<usize, CudaError> {
    driver::require()?;
    result::init().map_err(|error| CudaError::new("cuInit", error))?;
    let count = result::device::get_count();
    match count.map_err(|error| CudaError::new("cuDeviceGetCount", error))? {
        ..=0 => Err(CudaError::NoDevice),
        count => Ok(count as usize),
    }
}

// SAFETY: cuMemHostAlloc returns pages that belong to no other allocation, valid for the host until
// cuMemFreeHost and aligned to a page, which is checked; they are zeroed here. The device address is
// what the driver says that the device finds them at.
unsafe impl SharedAllocator for CudaAllocator {
    type Error = CudaError;

    fn allocate(&self, layout: Layout, _: Purpose) -> Result<SharedBlock, CudaError> {
        let (host, device) = driver::pin(&self.context, layout)?;
        Ok(SharedBlock { host, device: DeviceAddress(device), layout })
    }

    unsafe fn deallocate(&self, block: SharedBlock) {
        // SAFETY: the caller promises that the block came from `allocate`, so from `pin`, is not
        // used any more, and was not given back before.
        let freed = unsafe { driver::unpin(&self.context, block.host) };
        if freed.is_err() {
            // After a fault the driver refuses. Nobody could do better: it is counted.
            self.lost.fetch_add(block.layout.size() as u64, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for CudaAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaAllocator")
            .field("device", &self.context.ordinal())
            .field("lost_bytes", &self.lost_bytes())
            .finish_non_exhaustive()
    }
}
