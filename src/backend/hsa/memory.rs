//! Memory of the pools: taken, zeroed where the host reaches it, given back.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::agents::{Device, Pool};
use super::ffi::{Agent, HSA_STATUS_SUCCESS};
use super::{HsaAllocator, HsaError};

impl Device {
    /// A block of at least one byte that these agents reach. Not zeroed.
    fn take(&self, pool: Pool, bytes: usize, agents: &[Agent]) -> Result<NonNull<u8>, HsaError> {
        let hsa = self.runtime.hsa;
        let bytes = bytes.max(1);
        let mut address = ptr::null_mut::<c_void>();
        // SAFETY: `address` is a place for the address; the pool is one that the runtime named.
        let status =
            unsafe { (hsa.hsa_amd_memory_pool_allocate)(pool.raw, bytes, 0, &raw mut address) };
        self.runtime.check_memory("hsa_amd_memory_pool_allocate", status, bytes)?;
        let address = NonNull::new(address.cast::<u8>()).ok_or(HsaError::OutOfMemory { bytes })?;
        // SAFETY: the agents are the runtime's own, as many as counted; the block is one of its pools'.
        let status = unsafe {
            (hsa.hsa_amd_agents_allow_access)(
                agents.len() as u32,
                agents.as_ptr(),
                ptr::null(),
                address.as_ptr().cast(),
            )
        };
        match self.runtime.check_memory("hsa_amd_agents_allow_access", status, bytes) {
            Ok(()) => Ok(address),
            Err(error) => {
                // SAFETY: taken above, and its address has gone nowhere.
                unsafe { self.give_back(address) };
                Err(error)
            }
        }
    }

    /// As [`take`](Self::take), from a pool that the host reaches, and zeroed.
    fn take_zeroed(
        &self,
        pool: Pool,
        bytes: usize,
        agents: &[Agent],
    ) -> Result<NonNull<u8>, HsaError> {
        let address = self.take(pool, bytes, agents)?;
        // SAFETY: the pool gave this many bytes, which the host reaches, and nobody else has them.
        unsafe { address.as_ptr().write_bytes(0, bytes.max(1)) };
        Ok(address)
    }

    /// Host memory that the device reaches, zeroed.
    pub(super) fn take_host(&self, bytes: usize) -> Result<NonNull<u8>, HsaError> {
        self.take_zeroed(self.host, bytes, &[self.agent])
    }

    /// Device memory that the host reaches, zeroed; host memory where the device has none.
    pub(super) fn take_near(&self, bytes: usize) -> Result<NonNull<u8>, HsaError> {
        match self.near {
            Some(pool) => self.take_zeroed(pool, bytes, &[self.agent, self.cpu]),
            None => self.take_host(bytes),
        }
    }

    /// Gives a block back, and says whether the runtime took it.
    ///
    /// # Safety
    /// The block came from one of the functions above, was not given back before, and nobody uses it
    /// any more.
    pub(super) unsafe fn give_back(&self, address: NonNull<u8>) -> bool {
        // SAFETY: the caller's promise.
        let status =
            unsafe { (self.runtime.hsa.hsa_amd_memory_pool_free)(address.as_ptr().cast()) };
        status == HSA_STATUS_SUCCESS
    }
}

/// A block that goes back with its owner.
pub(super) struct Memory {
    device: Arc<Device>,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is an address, not a borrow, and belongs to no thread; the runtime's functions may be
// called on any.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared `Memory` gives out its address alone.
unsafe impl Sync for Memory {}

impl Memory {
    /// Host memory that the device reaches, zeroed.
    pub(super) fn host(device: &Arc<Device>, bytes: usize) -> Result<Self, HsaError> {
        let address = device.take_host(bytes)?;
        Ok(Memory { device: device.clone(), address, bytes: bytes.max(1) })
    }

    /// Host memory with the arguments of a kernel.
    pub(super) fn arguments(device: &Arc<Device>, arguments: &[u8]) -> Result<Self, HsaError> {
        let bytes = arguments.len().max(1);
        let address = device.take_zeroed(device.arguments, bytes, &[device.agent])?;
        let memory = Memory { device: device.clone(), address, bytes };
        memory.fill(arguments);
        Ok(memory)
    }

    /// Device memory that the host does not reach, not zeroed.
    fn coarse(device: &Arc<Device>, bytes: usize) -> Result<Self, HsaError> {
        let missing = HsaError::NoPool { what: "coarse-grained device memory" };
        let address = device.take(device.coarse.ok_or(missing)?, bytes, &[device.agent])?;
        Ok(Memory { device: device.clone(), address, bytes: bytes.max(1) })
    }

    /// Copies into memory that the host reaches and nobody else knows yet.
    pub(super) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes);
        // SAFETY: within the block, checked above; `bytes` lies elsewhere, for the block is no
        // Rust object; nobody else uses the block yet.
        unsafe { self.address.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// A copy of the first bytes of memory that the host reaches and nobody else writes any more.
    pub(super) fn to_vec(&self, bytes: usize) -> Vec<u8> {
        assert!(bytes <= self.bytes);
        // SAFETY: within the block, checked above, which is initialised, for it was zeroed; nobody
        // writes there, as said.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), bytes) }.to_vec()
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken when this was made, given back once, here, by its only owner. A block that
        // the runtime does not take is the runtime's until its end.
        unsafe { self.device.give_back(self.address) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p}", self.bytes, self.address)
    }
}

/// Memory of the device for the device alone: the host does not reach it, and it is not zeroed.
///
/// For a device program's heap, and for what kernels share with each other. Given back when dropped:
/// no kernel may use it any more then.
///
/// ```no_run
/// use hostcall::backend::hsa::{DeviceMemory, HsaAllocator};
/// let heap = DeviceMemory::new(&HsaAllocator::open(0)?, 64 << 20)?;
/// println!("{} bytes at {:#x}", heap.len(), heap.address());
/// # Ok::<(), hostcall::backend::hsa::HsaError>(())
/// ```
#[derive(Debug)]
pub struct DeviceMemory(Memory);

impl DeviceMemory {
    /// Takes memory from the device's coarse-grained pool, aligned to a page, on most devices to more.
    /// At least one byte.
    ///
    /// # Errors
    /// [`HsaError::NoPool`] where the device has no such pool, [`HsaError::OutOfMemory`], or what the
    /// runtime says.
    pub fn new(allocator: &HsaAllocator, bytes: usize) -> Result<Self, HsaError> {
        Memory::coarse(allocator.device(), bytes).map(DeviceMemory)
    }

    /// Where the device finds it.
    pub fn address(&self) -> u64 {
        self.0.address.as_ptr() as u64
    }

    /// The size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it never is: at least one byte")]
    pub fn len(&self) -> usize {
        self.0.bytes
    }
}
