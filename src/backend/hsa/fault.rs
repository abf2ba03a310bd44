//! What kernels did wrong, told to the queue that it happened on.
//!
//! The runtime tells a queue's own callback of most faults. Of an access to memory that is not there it
//! tells a handler that the process has one of, with the device, and ends the process where there is none.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::HsaError;
use super::ffi::{
    Agent, Event, Functions, HSA_AMD_GPU_MEMORY_FAULT_EVENT, HSA_STATUS_ERROR,
    HSA_STATUS_ERROR_MEMORY_FAULT, HSA_STATUS_SUCCESS, RawQueue, Status,
};
use super::runtime::Runtime;

/// Why a queue runs nothing any more: an `hsa_status_t`, and the address that a kernel went to, if it
/// was that.
#[derive(Debug)]
pub(super) struct Failure {
    status: AtomicU32,
    address: AtomicU64,
}

/// The queues of all devices, by their agents' handles.
static QUEUES: Mutex<Vec<(u64, Weak<Failure>)>> = Mutex::new(Vec::new());

impl Failure {
    /// For a queue of this agent.
    pub(super) fn new(agent: Agent) -> Arc<Self> {
        let failure = Arc::new(Failure {
            status: AtomicU32::new(HSA_STATUS_SUCCESS),
            address: AtomicU64::new(0),
        });
        let mut queues = QUEUES.lock();
        queues.retain(|(_, failure)| failure.strong_count() > 0);
        queues.push((agent.handle, Arc::downgrade(&failure)));
        failure
    }

    /// The first one counts.
    fn note(&self, status: Status, address: u64) {
        if self.status.load(Ordering::Acquire) == HSA_STATUS_SUCCESS {
            self.address.store(address, Ordering::Relaxed);
            let (none, first) = (HSA_STATUS_SUCCESS, status);
            let _ = self.status.compare_exchange(none, first, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    pub(super) fn error(&self, runtime: &Runtime) -> Result<(), HsaError> {
        let status = self.status.load(Ordering::Acquire);
        if status == HSA_STATUS_SUCCESS {
            return Ok(());
        }
        let text = match self.address.load(Ordering::Relaxed) {
            0 if status != HSA_STATUS_ERROR_MEMORY_FAULT => runtime.text(status),
            address => format!("{}, at address {address:#x}", runtime.text(status)),
        };
        Err(HsaError::Fault { status, text })
    }
}

/// Hears of a queue's failure, on a thread of the runtime.
///
/// # Safety
/// `data` is the address of the queue's `Failure`, which outlives the queue.
pub(super) unsafe extern "C" fn queue_failed(status: Status, _: *mut RawQueue, data: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { &*data.cast::<Failure>() }.note(status, 0);
}

/// Hears of what happens to the whole system, on a thread of the runtime.
///
/// # Safety
/// `event` is an event's address.
unsafe extern "C" fn happened(event: *const Event, _: *mut c_void) -> Status {
    // SAFETY: the caller's promise. An event of another type may be shorter, and is not read further.
    let kind = unsafe { (*event).event_type };
    if kind != HSA_AMD_GPU_MEMORY_FAULT_EVENT {
        return HSA_STATUS_ERROR;
    }
    // SAFETY: as above, and it is of this type.
    let fault = unsafe { (*event).memory_fault };
    let mut ours = false;
    for (agent, failure) in QUEUES.lock().iter() {
        if *agent == fault.agent.handle
            && let Some(failure) = failure.upgrade()
        {
            failure.note(HSA_STATUS_ERROR_MEMORY_FAULT, fault.virtual_address);
            ours = true;
        }
    }
    // What is nobody's here is left to the runtime.
    if ours { HSA_STATUS_SUCCESS } else { HSA_STATUS_ERROR }
}

/// Asks a started runtime to tell of memory faults. It takes one handler: another one that is there
/// already, the program's own perhaps, stays.
pub(super) fn watch(hsa: &Functions) {
    // SAFETY: the runtime has been started; the handler needs no data.
    let _ = unsafe { (hsa.hsa_amd_register_system_event_handler)(happened, ptr::null_mut()) };
}
