//! What a loaded module has: global variables and kernels.

#[cfg(feature = "loader")]
mod loading;

use std::ffi::CString;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaModule, CudaStream, DevicePtr, DriverError, result, sys};

use super::CudaError;
use super::driver::{self, Current};

#[cfg(feature = "loader")]
pub(crate) use loading::{Function, LoadError};

/// A module whose global variables can be found by name.
///
/// Implemented for cudarc's [`CudaModule`] and for [`Module`], around a raw one.
pub trait Globals: sealed::Sealed {
    /// The variable of that name; `None` where the module has none. `stream` is one of the module's
    /// context.
    ///
    /// # Errors
    /// What the driver says.
    fn global(&self, stream: &Arc<CudaStream>, name: &str)
    -> Result<Option<Global<'_>>, CudaError>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::sync::Arc<cudarc::driver::CudaModule> {}
    impl Sealed for super::Module {}
}

impl Globals for Arc<CudaModule> {
    fn global(
        &self,
        stream: &Arc<CudaStream>,
        name: &str,
    ) -> Result<Option<Global<'_>>, CudaError> {
        let context = stream.context();
        let _current = Current::push(context)?;
        let Some(view) = found("cuModuleGetGlobal", self.get_global(name, stream))? else {
            return Ok(None);
        };
        let (address, _) = view.device_ptr(stream);
        Ok(Some(Global::new(context, address, view.len() as u64)))
    }
}

/// `None` for what a module has not.
fn found<T>(call: &'static str, result: Result<T, DriverError>) -> Result<Option<T>, CudaError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => Ok(None),
        Err(result) => Err(driver::error(call, result)),
    }
}

/// A module around a raw handle.
#[derive(Debug)]
pub struct Module {
    raw: sys::CUmodule,
    context: Arc<CudaContext>,
    owned: bool,
}

// SAFETY: a module belongs to its context and to no thread; every call makes that context current.
unsafe impl Send for Module {}
// SAFETY: as above; the driver's calls on one module may come from several threads.
unsafe impl Sync for Module {}

impl Module {
    /// Borrows a module that somebody else loaded and unloads.
    ///
    /// # Safety
    /// `raw` is a module of `context` and stays loaded for as long as this is used.
    pub unsafe fn from_raw(context: &Arc<CudaContext>, raw: sys::CUmodule) -> Self {
        Module { raw, context: context.clone(), owned: false }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = Current::push(&self.context)
        {
            // SAFETY: loaded by `load`, unloaded once, and what was found in it borrows it. An
            // error is one of the context, which takes the module along.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

impl Globals for Module {
    fn global(&self, _: &Arc<CudaStream>, name: &str) -> Result<Option<Global<'_>>, CudaError> {
        let Ok(name) = CString::new(name) else {
            return Ok(None);
        };
        let _current = Current::push(&self.context)?;
        // SAFETY: the module is loaded for as long as `self` is there.
        let global = unsafe { result::module::get_global(self.raw, name) };
        let global = found("cuModuleGetGlobal", global)?;
        Ok(global.map(|(address, size)| Global::new(&self.context, address, size as u64)))
    }
}

/// A global variable of a loaded module.
#[derive(Clone)]
pub struct Global<'m> {
    context: Arc<CudaContext>,
    address: u64,
    size: u64,
    module: PhantomData<&'m ()>,
}

impl<'m> Global<'m> {
    fn new(context: &Arc<CudaContext>, address: u64, size: u64) -> Self {
        Global { context: context.clone(), address, size, module: PhantomData }
    }

    /// Where the device finds it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes the first bytes of the variable.
    ///
    /// # Panics
    /// Where there are more bytes than the variable has.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(bytes.len() as u64 <= self.size, "a copy beyond the variable");
        let _current = Current::push(&self.context)?;
        // SAFETY: the driver says that the variable is there with this size; its module is loaded
        // for 'm.
        unsafe { driver::copy_to_device(self.address, bytes) }
    }

    /// Reads a variable of eight bytes; zero for one of another size.
    pub(crate) fn read_pointer(&self) -> Result<u64, CudaError> {
        if self.size != 8 {
            return Ok(0);
        }
        let _current = Current::push(&self.context)?;
        let mut bytes = [0; 8];
        // SAFETY: as in `write`; the variable has eight bytes.
        unsafe { driver::copy_from_device(&mut bytes, self.address) }?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The `size` bytes of device memory that this variable, a pointer, leads to; `None` where it
    /// leads to no device memory.
    pub(crate) fn target(&self, size: u64) -> Result<Option<Global<'m>>, CudaError> {
        let address = self.read_pointer()?;
        let _current = Current::push(&self.context)?;
        // The device wrote it: the host's memory must not be reached through it.
        let within = [address, address.saturating_add(size - 1)];
        let there = address != 0 && within.into_iter().all(driver::is_device_memory);
        Ok(there.then(|| Global::new(&self.context, address, size)))
    }
}

impl fmt::Debug for Global<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Global")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
