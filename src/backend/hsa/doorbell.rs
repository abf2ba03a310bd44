//! A signal of the runtime as a doorbell: devices raise its value and interrupt the host.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::HsaError;
use super::ffi::{
    AMD_SIGNAL_KIND_USER, HSA_SIGNAL_CONDITION_NE, HSA_WAIT_STATE_BLOCKED, SignalBlock,
};
use super::runtime::{OwnSignal, Runtime};
use crate::protocol::{Doorbell, DoorbellPointers};

#[derive(Debug)]
pub(super) struct SignalDoorbell {
    signal: OwnSignal,
    block: NonNull<SignalBlock>,
    pointers: DoorbellPointers,
}

// SAFETY: a signal belongs to no thread: the runtime's functions may be called on any, and its value is
// touched through atomics alone.
unsafe impl Send for SignalDoorbell {}
// SAFETY: as above.
unsafe impl Sync for SignalDoorbell {}

impl SignalDoorbell {
    /// A signal at zero. `None` where the runtime's signals are not such as devices know, or have no event:
    /// the runtime does not sleep at those, it spins.
    pub(super) fn new(runtime: &Arc<Runtime>) -> Result<Option<Self>, HsaError> {
        let signal = OwnSignal::new(runtime, 0)?;
        let Some(block) = NonNull::new(signal.raw.handle as *mut SignalBlock) else {
            return Ok(None);
        };
        // SAFETY: an AMD runtime's handle is the address of such a block, by the interface between host
        // and device code that `amd_hsa_signal.h` publishes. These fields stay as they are; `value`,
        // which changes, is not read here.
        let (kind, mailbox, event_id) = unsafe {
            let block = block.as_ptr();
            ((*block).kind, (*block).event_mailbox_ptr, (*block).event_id)
        };
        if kind != AMD_SIGNAL_KIND_USER || mailbox == 0 {
            return Ok(None);
        }
        // SAFETY: within the block.
        let counter = unsafe { &raw const (*block.as_ptr()).value } as u64;
        Ok(Some(SignalDoorbell {
            signal,
            block,
            pointers: DoorbellPointers { counter, mailbox, event_id },
        }))
    }
}

impl Doorbell for SignalDoorbell {
    fn counter(&self) -> &AtomicU64 {
        // SAFETY: the value lives as long as the signal, so as `self`, aligned to eight bytes, and both
        // sides touch it through atomics alone. A counter's bits are the same with a sign.
        unsafe { &*(&raw const (*self.block.as_ptr()).value).cast() }
    }

    fn pointers(&self) -> DoorbellPointers {
        self.pointers
    }

    fn ring(&self) {
        // SAFETY: the signal lives as long as `self`.
        unsafe { (self.signal.runtime.hsa.hsa_signal_add_screlease)(self.signal.raw, 1) }
    }

    fn wait(&self, limit: Duration) {
        let runtime = &self.signal.runtime;
        // SAFETY: the signal lives as long as `self`.
        unsafe {
            (runtime.hsa.hsa_signal_wait_scacquire)(
                self.signal.raw,
                HSA_SIGNAL_CONDITION_NE,
                0,
                runtime.ticks(limit),
                HSA_WAIT_STATE_BLOCKED,
            )
        };
    }
}
