//! Running kernels: a queue of packets, and what became of each.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::agents::Device;
use super::executable::Kernel;
use super::fault::{Failure, queue_failed};
use super::ffi::{
    HSA_AGENT_INFO_QUEUE_MAX_SIZE, HSA_AGENT_INFO_QUEUE_MIN_SIZE, HSA_FENCE_SCOPE_SYSTEM,
    HSA_KERNEL_DISPATCH_PACKET_SETUP_DIMENSIONS, HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE,
    HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE, HSA_PACKET_HEADER_TYPE,
    HSA_PACKET_TYPE_KERNEL_DISPATCH, HSA_QUEUE_TYPE_MULTI, HSA_SIGNAL_CONDITION_LT,
    HSA_WAIT_STATE_BLOCKED, KernelDispatchPacket, RawQueue,
};
use super::memory::Memory;
use super::runtime::OwnSignal;
use super::{HsaAllocator, HsaError};

/// Packets that a queue has room for, where the device allows that many.
const PACKETS: u32 = 64;

/// How long a wait goes on before it looks whether the queue has failed: a kernel that faults does
/// not signal its end.
const LOOK: Duration = Duration::from_millis(10);

/// The packet's first word: a kernel in three dimensions that sees what the host wrote before, and
/// whose writes the host sees after.
const FIRST_WORD: u32 = {
    let header = HSA_PACKET_TYPE_KERNEL_DISPATCH << HSA_PACKET_HEADER_TYPE
        | HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE
        | HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE;
    let setup = 3 << HSA_KERNEL_DISPATCH_PACKET_SETUP_DIMENSIONS;
    (setup as u32) << 16 | header as u32
};

/// A queue of a device. Kernels on it may run at the same time.
///
/// Destroyed when dropped, and with it what still runs there.
pub struct Queue {
    raw: *mut RawQueue,
    device: Arc<Device>,
    /// What the runtime has said of it. The queue's callback has its address.
    failure: Arc<Failure>,
    /// One writer at a time; and what kernels that were left behind may still use.
    left_behind: Mutex<Vec<(Option<Memory>, OwnSignal)>>,
}

// SAFETY: a queue belongs to no thread; packets are written under the lock, and the runtime's functions
// may be called on any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// A queue of the allocator's device.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn new(allocator: &HsaAllocator) -> Result<Self, HsaError> {
        let device = allocator.device().clone();
        let runtime = &device.runtime;
        let least = runtime.number(device.agent, HSA_AGENT_INFO_QUEUE_MIN_SIZE)?;
        let most = runtime.number(device.agent, HSA_AGENT_INFO_QUEUE_MAX_SIZE)?;
        let failure = Failure::new(device.agent);
        let mut raw = ptr::null_mut();
        // SAFETY: the callback gets the address of `failure`, which lives until the queue has been
        // destroyed; `raw` is a place for the address. The sizes leave segments to the runtime.
        let status = unsafe {
            (runtime.hsa.hsa_queue_create)(
                device.agent,
                PACKETS.min(most).max(least),
                HSA_QUEUE_TYPE_MULTI,
                queue_failed,
                Arc::as_ptr(&failure).cast_mut().cast(),
                u32::MAX,
                u32::MAX,
                &raw mut raw,
            )
        };
        runtime.check("hsa_queue_create", status)?;
        Ok(Queue { raw, device, failure, left_behind: Mutex::default() })
    }

    /// Starts a kernel with `blocks` work-groups of `threads` work-items, and with these arguments,
    /// implicit ones included; more bytes than the kernel has are allowed. `dynamic_group` is memory
    /// of each work-group on top of the kernel's own, in bytes. A kernel whose
    /// [stack](Kernel::dynamic_stack) the compiler did not know gets what [`Kernel::with_stack`] says.
    ///
    /// # Errors
    /// [`HsaError::Fault`] on a queue that has failed, [`HsaError::Grid`], [`HsaError::Arguments`],
    /// [`HsaError::QueueFull`], or what the runtime says.
    ///
    /// # Safety
    /// The kernel is of an executable that is loaded on this device and stays so until the kernel has
    /// ended. With these arguments it writes only memory that this process does not use meanwhile, or
    /// uses through atomics, such as a server's.
    pub unsafe fn dispatch(
        &self,
        kernel: &Kernel,
        blocks: [u32; 3],
        threads: [u32; 3],
        kernarg: &[u8],
        dynamic_group: u32,
    ) -> Result<Dispatch<'_>, HsaError> {
        self.dispatch_trusted(kernel, blocks, threads, kernarg, dynamic_group)
    }

    /// As [`dispatch`](Self::dispatch), for the loader: it runs the program that its user asks it to
    /// run, in a process that has nothing else, and keeps the promises.
    pub(crate) fn dispatch_trusted(
        &self,
        kernel: &Kernel,
        blocks: [u32; 3],
        threads: [u32; 3],
        kernarg: &[u8],
        dynamic_group: u32,
    ) -> Result<Dispatch<'_>, HsaError> {
        self.error()?;
        let grid = HsaError::Grid { blocks, threads };
        let mut sizes = ([0u16; 3], [0u32; 3]);
        for axis in 0..3 {
            let group = u16::try_from(threads[axis]).ok().filter(|&group| group > 0);
            let all = blocks[axis].checked_mul(threads[axis]).filter(|&all| all > 0);
            let (Some(group), Some(all)) = (group, all) else { return Err(grid) };
            (sizes.0[axis], sizes.1[axis]) = (group, all);
        }
        let (group, all) = sizes;
        let needed = kernel.kernarg_size as usize;
        if kernarg.len() < needed {
            return Err(HsaError::Arguments { given: kernarg.len(), needed });
        }
        let group_segment_size = kernel
            .group_size
            .checked_add(dynamic_group)
            .ok_or(HsaError::GroupMemory { kernel: kernel.group_size, dynamic: dynamic_group })?;
        let arguments = match kernarg {
            [] => None,
            bytes => Some(Memory::arguments(&self.device, bytes)?),
        };
        let signal = OwnSignal::new(&self.device.runtime, 1)?;
        let address =
            arguments.as_ref().map_or(ptr::null_mut(), |memory| memory.address().as_ptr());
        self.put(KernelDispatchPacket {
            header: 0,
            setup: 0,
            workgroup_size_x: group[0],
            workgroup_size_y: group[1],
            workgroup_size_z: group[2],
            reserved0: 0,
            grid_size_x: all[0],
            grid_size_y: all[1],
            grid_size_z: all[2],
            private_segment_size: kernel.private_size,
            group_segment_size,
            kernel_object: kernel.object,
            kernarg_address: address.cast(),
            reserved2: 0,
            completion_signal: signal.raw,
        })?;
        Ok(Dispatch { queue: self, left: Some((arguments, signal)), ended: false })
    }

    /// Writes a packet where the device looks next, and tells it.
    fn put(&self, packet: KernelDispatchPacket) -> Result<(), HsaError> {
        let hsa = self.device.runtime.hsa;
        let _one_writer = self.left_behind.lock();
        // SAFETY: the queue lives as long as `self`. What is read of it never changes.
        let (size, base, doorbell) =
            unsafe { ((*self.raw).size, (*self.raw).base_address, (*self.raw).doorbell_signal) };
        // SAFETY: the queue lives as long as `self`.
        let (written, read) = unsafe {
            (
                (hsa.hsa_queue_load_write_index_relaxed)(self.raw),
                (hsa.hsa_queue_load_read_index_scacquire)(self.raw),
            )
        };
        if written.wrapping_sub(read) >= u64::from(size) {
            return Err(HsaError::QueueFull { packets: size });
        }
        // SAFETY: the queue lives as long as `self`.
        let index = unsafe { (hsa.hsa_queue_add_write_index_scacq_screl)(self.raw, 1) };
        let slot = base.cast::<KernelDispatchPacket>();
        // SAFETY: the ring has `size` packets. This one is free, as seen above, and reserved for this
        // thread: the device looks at it once its first word, an invalid packet's till then, says so.
        // Only what is behind that word is written here: bytes 4 to 64 of both.
        unsafe {
            let slot = slot.add((index % u64::from(size)) as usize);
            let body = size_of::<KernelDispatchPacket>() - 4;
            let from = (&raw const packet).cast::<u8>().add(4);
            slot.cast::<u8>().add(4).copy_from_nonoverlapping(from, body);
            (*slot.cast::<AtomicU32>()).store(FIRST_WORD, Ordering::Release);
            (hsa.hsa_signal_store_screlease)(doorbell, index as i64);
        }
        Ok(())
    }

    /// Whether the queue has failed: a kernel faulted, or the device did. A kernel's access to memory that
    /// is not there fails all queues of its device, for the runtime does not say whose it was.
    ///
    /// # Errors
    /// [`HsaError::Fault`]. Nothing runs on the queue any more then.
    pub fn error(&self) -> Result<(), HsaError> {
        self.failure.error(&self.device.runtime)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once. The runtime stops what runs there; arguments and
        // signals of that go after it, and so does the place for the callback's word.
        let _ = unsafe { (self.device.runtime.hsa.hsa_queue_destroy)(self.raw) };
        self.left_behind.get_mut().clear();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("device", &self.device.description.name)
            .field("error", &self.error().err())
            .finish_non_exhaustive()
    }
}

/// A kernel that has been started.
///
/// Dropped before its end, it goes on; what it uses is kept until its queue is destroyed.
#[derive(Debug)]
pub struct Dispatch<'q> {
    queue: &'q Queue,
    /// Its arguments, and the signal of its end. `None` once dropped.
    left: Option<(Option<Memory>, OwnSignal)>,
    ended: bool,
}

impl Dispatch<'_> {
    /// Waits for the kernel's end, at most `limit`, and says whether it has ended. What it wrote can be
    /// seen then.
    ///
    /// # Errors
    /// [`HsaError::Fault`] where the queue has failed.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, HsaError> {
        let begin = Instant::now();
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            if self.has_ended_within(left.min(LOOK)) {
                return Ok(true);
            }
            self.queue.error()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    fn has_ended_within(&mut self, limit: Duration) -> bool {
        let runtime = &self.queue.device.runtime;
        if let Some((_, signal)) = &self.left
            && !self.ended
        {
            let ticks = runtime.ticks(limit);
            // SAFETY: the signal lives as long as `self`.
            let value = unsafe {
                (runtime.hsa.hsa_signal_wait_scacquire)(
                    signal.raw,
                    HSA_SIGNAL_CONDITION_LT,
                    1,
                    ticks,
                    HSA_WAIT_STATE_BLOCKED,
                )
            };
            self.ended = value < 1;
        }
        self.ended
    }
}

impl Drop for Dispatch<'_> {
    fn drop(&mut self) {
        if !self.has_ended_within(Duration::ZERO)
            && let Some(left) = self.left.take()
        {
            self.queue.left_behind.lock().push(left);
        }
    }
}
