//! Memory and code objects of AMD devices, through the HSA runtime of ROCm.
//!
//! The runtime's library, `libhsa-runtime64.so.1`, is loaded when it is first needed: this builds
//! where no ROCm is, and a machine without it gives an [`HsaError`], never a panic. The environment
//! variable `HOSTCALL_HSA_RUNTIME` names another file to load in its place.
//!
//! - [`devices`]: which GPUs there are.
//! - [`HsaAllocator`]: memory that a GPU and the host both see, for a [`Server`](crate::Server).
//! - [`Executable`], [`Queue`], [`Dispatch`]: loading a code object and running its kernels.
//! - [`DeviceMemory`]: memory of the GPU alone.
//!
//! ```no_run
//! use hostcall::backend::hsa::HsaAllocator;
//! use hostcall::{Abi, Server};
//! let allocator = HsaAllocator::open(0)?;
//! let agent = allocator.agent();
//! let (ports, lanes) = (agent.max_waves.min(Abi::Llvm20.max_ports()), agent.wavefront_size);
//! let server = Server::builder(allocator).ports(ports).lanes(lanes).build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What has been tried
//!
//! Its declarations agree with the runtime's headers, and the real runtime on a machine without a
//! device is refused with its reason. Everything behind the runtime's start has run over a stand-in that
//! exports the same functions over host memory, with each call refused in turn. **AMD hardware has not run
//! it yet.** The first to have some: run the example `hsa_hello`; a server's calls from a kernel; a
//! kernel that writes to address 0, and one with an illegal instruction (is the fault an [`HsaError::Fault`], and
//! can the process go on?); flags in device memory (does the device see the host's stores at once?); the doorbell (does its interrupt end the worker's
//! sleep, soon after a call and after an hour of silence?); and a server under load for an hour.
//!
//! # Where memory lies
//!
//! All of it is in fine-grained memory of the host, as with LLVM's own loader. Flags that the device polls
//! can be [placed in the device's memory](HsaAllocator::flags_on_device).
//!
//! # The doorbell
//!
//! Clients of LLVM's main branch ring a signal of the runtime, at which an idle
//! [`Worker`](crate::Worker) sleeps. On devices whose interrupts get lost, a call waits for as long as the
//! [sleep](crate::IdlePolicy::doorbell) lasts: build the server [without](crate::Builder::doorbell) then.
//!
//! # Calls that wait for kernels
//!
//! Freeing memory, unloading an executable and destroying a queue may wait for kernels that run. Do
//! none of it in a handler, nor on a thread that serves.
#![allow(unsafe_code)]

mod agents;
mod doorbell;
mod executable;
mod fault;
#[allow(dead_code, reason = "some are looked at by the device, or compared by the test only")]
mod ffi;
mod memory;
mod queue;
mod runtime;

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use agents::GpuAgent;
pub use executable::{Executable, Kernel, Variable};
pub use memory::DeviceMemory;
pub use queue::{Dispatch, Queue};

use super::{DeviceAddress, Purpose, SharedAllocator, SharedBlock};
use crate::protocol::Doorbell;
use agents::Device;
use doorbell::SignalDoorbell;
use runtime::Runtime;

/// The environment variable with the file name of another library to load as the runtime.
const RUNTIME_VARIABLE: &str = "HOSTCALL_HSA_RUNTIME";

/// What the HSA runtime could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HsaError {
    /// The runtime's library is not on this machine.
    #[error(
        "the HSA runtime's library cannot be loaded ({reason}): install ROCm's runtime (package \
         libhsa-runtime64-1 on Debian and Ubuntu, hsa-rocr from AMD), or name the file in \
         HOSTCALL_HSA_RUNTIME"
    )]
    NoRuntime {
        /// Why not, as the dynamic linker says it.
        reason: String,
    },
    /// The runtime's library has not all functions that are needed.
    #[error("the HSA runtime has no {function}: update it to the one of ROCm 5 or newer")]
    OldRuntime {
        /// The first function that is missing.
        function: &'static str,
    },
    /// There is a runtime, and it does not start.
    #[error(
        "the HSA runtime does not start (hsa_init: {status:#x}, {text}): is there an AMD GPU, is its \
         driver loaded (amdgpu), and may this user open /dev/kfd (groups render and video; in a \
         container, --device /dev/kfd --device /dev/dri)?"
    )]
    NotStarted {
        /// The `hsa_status_t`.
        status: u32,
        /// What the runtime says about it.
        text: String,
    },
    /// The runtime sees no GPU.
    #[error(
        "the HSA runtime sees no GPU: look what rocminfo says, and whether ROCR_VISIBLE_DEVICES or \
         the container hides them"
    )]
    NoDevice,
    /// There are devices, and this is none of them.
    #[error("there is no HSA device {ordinal}: this process sees {devices}, numbered from 0")]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        devices: usize,
    },
    /// The machine has no memory of a kind that is needed.
    #[error("the HSA runtime has no pool of {what}: update the runtime and the amdgpu driver")]
    NoPool {
        /// The kind.
        what: &'static str,
    },
    /// The memory cannot be had.
    #[error(
        "cannot allocate {bytes} bytes that the device sees: ask for less (fewer ports, a smaller \
         heap), or raise the limit of locked memory"
    )]
    OutOfMemory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// The memory cannot be aligned like that.
    #[error("memory of the HSA runtime cannot be aligned to {align} bytes: ask for a page at most")]
    Alignment {
        /// The alignment asked for.
        align: usize,
    },
    /// A symbol is of another kind than was asked for.
    #[error("{name} is not {wanted} in this code object: look at its symbols (llvm-readelf -s)")]
    WrongSymbol {
        /// The symbol's name.
        name: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A variable was used with another executable than the one that it was found in.
    #[error("the variable is of another executable: look it up in the one that is used")]
    WrongVariable,
    /// A copy goes beyond the end of a variable.
    #[error(
        "{bytes} bytes do not fit a variable of {size}: was the device program built for another \
         interface?"
    )]
    Bounds {
        /// The variable's size in bytes.
        size: usize,
        /// The bytes to copy.
        bytes: usize,
    },
    /// A kernel got fewer bytes of arguments than it reads.
    #[error("the kernel's arguments have {needed} bytes, not {given}; implicit ones count")]
    Arguments {
        /// The bytes given.
        given: usize,
        /// The bytes that the kernel has.
        needed: usize,
    },
    /// A launch has no work-items, or too many.
    #[error(
        "cannot launch {blocks:?} work-groups of {threads:?}: each number is one at least, a group \
         has at most 65535 work-items in a direction, and all of them at most 4294967295"
    )]
    Grid {
        /// Work-groups in each direction.
        blocks: [u32; 3],
        /// Work-items of each in each direction.
        threads: [u32; 3],
    },
    /// A launch asks for more memory of work-groups than a number can say.
    #[error("no work-group has {kernel} and {dynamic} bytes of memory")]
    GroupMemory {
        /// The bytes that the kernel has.
        kernel: u32,
        /// The bytes on top.
        dynamic: u32,
    },
    /// The queue has no room for another kernel.
    #[error("{packets} kernels are queued already: wait for one of them")]
    QueueFull {
        /// Kernels that the queue has room for.
        packets: u32,
    },
    /// A kernel has faulted, or the device.
    #[error("a kernel has failed: {text} ({status:#x})")]
    Fault {
        /// The `hsa_status_t`.
        status: u32,
        /// What the runtime says about it.
        text: String,
    },
    /// A call of the runtime failed.
    #[error("{call} failed with {status:#x}: {text}")]
    Runtime {
        /// The runtime's function.
        call: &'static str,
        /// The `hsa_status_t`.
        status: u32,
        /// What the runtime says about it.
        text: String,
    },
}

/// The GPUs that this process sees, in the order of their numbers.
///
/// # Errors
/// [`HsaError::NoRuntime`], [`HsaError::OldRuntime`], [`HsaError::NotStarted`],
/// [`HsaError::NoDevice`], or what the runtime says.
pub fn devices() -> Result<Vec<GpuAgent>, HsaError> {
    let runtime = Runtime::start()?;
    runtime.agents()?.gpus.into_iter().map(|agent| runtime.describe(agent)).collect()
}

/// Allocates memory that an AMD GPU and the host both see.
///
/// Device addresses are the host's. Copies of an allocator are of the same device, and keep the
/// runtime running. One server for each device: each has an allocator of its own.
#[derive(Clone)]
pub struct HsaAllocator {
    opened: Arc<Opened>,
    flags_on_device: bool,
}

struct Opened {
    device: Arc<Device>,
    lost: AtomicU64,
}

impl HsaAllocator {
    /// Opens a device by its number in [`devices`].
    ///
    /// # Errors
    /// As [`devices`], and [`HsaError::NoSuchDevice`] or [`HsaError::NoPool`].
    pub fn open(ordinal: usize) -> Result<Self, HsaError> {
        let device = Arc::new(Device::open(ordinal)?);
        let opened = Arc::new(Opened { device, lost: AtomicU64::new(0) });
        Ok(HsaAllocator { opened, flags_on_device: false })
    }

    /// Places the flags that the device polls in fine-grained memory of the device, where it has some that
    /// the host reaches: the device's looks need not cross the bus then.
    ///
    /// Only for devices that see the host's stores there at once, as those that share their memory with
    /// the host do. Over PCIe such stores may stay in buffers on the way, and clients wait for them.
    #[must_use]
    pub fn flags_on_device(mut self) -> Self {
        self.flags_on_device = true;
        self
    }

    /// The device.
    pub fn agent(&self) -> &GpuAgent {
        &self.opened.device.description
    }

    /// Bytes that the runtime would not take back. It frees them when it ends.
    pub fn lost_bytes(&self) -> u64 {
        self.opened.lost.load(Ordering::Relaxed)
    }

    fn device(&self) -> &Arc<Device> {
        &self.opened.device
    }
}

// SAFETY: the runtime's pools give memory that belongs to no other allocation, valid for the host (all
// pools used here are the host's, or such that it was given access to) until it is freed; alignment is
// checked and all of it zeroed here. The runtime's addresses are the same for all agents, those of its signals
// too, which live as long as the doorbell that owns them.
unsafe impl SharedAllocator for HsaAllocator {
    type Error = HsaError;

    fn allocate(&self, layout: Layout, purpose: Purpose) -> Result<SharedBlock, HsaError> {
        let device = self.device();
        let host = match purpose {
            Purpose::DevicePolledFlags if self.flags_on_device => {
                device.take_near(layout.size())?
            }
            _ => device.take_host(layout.size())?,
        };
        let block = SharedBlock { host, device: DeviceAddress(host.as_ptr() as u64), layout };
        if !host.as_ptr().addr().is_multiple_of(layout.align()) {
            // SAFETY: taken above, and its address has gone nowhere.
            unsafe { self.deallocate(block) };
            return Err(HsaError::Alignment { align: layout.align() });
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, block: SharedBlock) {
        // SAFETY: the caller promises that the block came from `allocate`, so from this device, is not
        // used any more, and was not given back before.
        if !unsafe { self.device().give_back(block.host) } {
            // Nobody could do better: it is counted.
            self.opened.lost.fetch_add(block.layout.size() as u64, Ordering::Relaxed);
        }
    }

    fn doorbell(&self) -> Result<Option<Arc<dyn Doorbell>>, HsaError> {
        let doorbell = SignalDoorbell::new(&self.device().runtime)?;
        Ok(doorbell.map(|doorbell| Arc::new(doorbell) as Arc<dyn Doorbell>))
    }
}

impl fmt::Debug for HsaAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HsaAllocator")
            .field("device", self.agent())
            .field("lost_bytes", &self.lost_bytes())
            .finish_non_exhaustive()
    }
}
