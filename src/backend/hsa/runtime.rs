//! The runtime, started: it runs until the last of what needs it is gone.

use std::env;
use std::ffi::CStr;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::ffi::{
    self, Functions, HSA_STATUS_ERROR_INVALID_ALLOCATION, HSA_STATUS_ERROR_OUT_OF_RESOURCES,
    HSA_STATUS_SUCCESS, HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY, LoadError, Status,
};
use super::{HsaError, RUNTIME_VARIABLE, fault};

/// The functions of the runtime's library, which is loaded once and for all: it has threads of its own.
fn functions() -> Result<&'static Functions, HsaError> {
    static FUNCTIONS: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
    let load = || {
        let file = env::var_os(RUNTIME_VARIABLE).filter(|file| !file.is_empty());
        Functions::load(&file.unwrap_or_else(|| "libhsa-runtime64.so.1".into()))
    };
    FUNCTIONS.get_or_init(load).as_ref().map_err(|error| match error {
        LoadError::Library(reason) => HsaError::NoRuntime { reason: reason.clone() },
        LoadError::Function(function) => HsaError::OldRuntime { function },
    })
}

/// One of the runtime's starts. It counts them, and ends with the last.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) hsa: &'static Functions,
    /// Ticks of its clock in a second: the unit of its waits.
    frequency: u64,
}

impl Runtime {
    pub(super) fn start() -> Result<Arc<Self>, HsaError> {
        let hsa = functions()?;
        // SAFETY: may be called at any time.
        let status = unsafe { (hsa.hsa_init)() };
        if status != HSA_STATUS_SUCCESS {
            return Err(HsaError::NotStarted { status, text: text(hsa, status) });
        }
        fault::watch(hsa);
        let mut runtime = Runtime { hsa, frequency: 0 };
        // SAFETY: the attribute is a u64, and so is the place for it; the runtime has been started.
        let status = unsafe {
            (hsa.hsa_system_get_info)(
                HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY,
                (&raw mut runtime.frequency).cast::<c_void>(),
            )
        };
        runtime.check("hsa_system_get_info", status)?;
        Ok(Arc::new(runtime))
    }

    /// Makes an error of what a call returned.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), HsaError> {
        match status {
            HSA_STATUS_SUCCESS => Ok(()),
            status => Err(HsaError::Runtime { call, status, text: self.text(status) }),
        }
    }

    /// As [`check`](Self::check), of a call that takes memory.
    pub(super) fn check_memory(
        &self,
        call: &'static str,
        status: Status,
        bytes: usize,
    ) -> Result<(), HsaError> {
        match status {
            HSA_STATUS_ERROR_OUT_OF_RESOURCES | HSA_STATUS_ERROR_INVALID_ALLOCATION => {
                Err(HsaError::OutOfMemory { bytes })
            }
            status => self.check(call, status),
        }
    }

    /// What the runtime says about a status.
    pub(super) fn text(&self, status: Status) -> String {
        text(self.hsa, status)
    }

    /// A time as the runtime counts it.
    pub(super) fn ticks(&self, time: Duration) -> u64 {
        let ticks = time.as_nanos().saturating_mul(self.frequency.into()) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // SAFETY: started once in `start`; whatever came from this start is gone, for it holds the
        // runtime. A failure leaves the runtime running, which does no harm.
        let _ = unsafe { (self.hsa.hsa_shut_down)() };
    }
}

fn text(hsa: &Functions, status: Status) -> String {
    let mut text = ptr::null();
    // SAFETY: `text` is a place for the address. The function needs no started runtime.
    let known = unsafe { (hsa.hsa_status_string)(status, &raw mut text) };
    if known != HSA_STATUS_SUCCESS || text.is_null() {
        return "the runtime has no text for it".to_owned();
    }
    // SAFETY: the runtime's texts are constants that end with NUL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// A signal, destroyed with its owner.
#[derive(Debug)]
pub(super) struct OwnSignal {
    pub(super) runtime: Arc<Runtime>,
    pub(super) raw: ffi::Signal,
}

impl OwnSignal {
    /// A signal that any agent may wait for.
    pub(super) fn new(runtime: &Arc<Runtime>, initial: i64) -> Result<Self, HsaError> {
        let mut raw = ffi::Signal { handle: 0 };
        // SAFETY: `raw` is a place for the handle; no consumers means all of them.
        let status =
            unsafe { (runtime.hsa.hsa_signal_create)(initial, 0, ptr::null(), &raw mut raw) };
        runtime.check("hsa_signal_create", status)?;
        Ok(OwnSignal { runtime: runtime.clone(), raw })
    }
}

impl Drop for OwnSignal {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once; owners see to it that nobody waits for it or
        // writes it any more.
        let _ = unsafe { (self.runtime.hsa.hsa_signal_destroy)(self.raw) };
    }
}
