//! Code objects on the device: loading, kernels and variables by name.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::agents::Device;
use super::ffi::{
    CodeObjectReader, HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT,
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_DYNAMIC_CALLSTACK,
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_GROUP_SEGMENT_SIZE,
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_ALIGNMENT,
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE,
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT,
    HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_PRIVATE_SEGMENT_SIZE, HSA_EXECUTABLE_SYMBOL_INFO_TYPE,
    HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ADDRESS, HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_SIZE,
    HSA_PROFILE_FULL, HSA_STATUS_ERROR_INVALID_SYMBOL_NAME, HSA_SYMBOL_KIND_KERNEL,
    HSA_SYMBOL_KIND_VARIABLE, RawExecutable, Symbol, SymbolInfo,
};
use super::memory::Memory;
use super::{HsaAllocator, HsaError};

/// A code object, loaded onto a device.
///
/// Unloaded when dropped: keep it for as long as one of its kernels runs.
#[derive(Debug)]
pub struct Executable {
    device: Arc<Device>,
    /// Distinguishes it from all others of the process.
    number: u64,
    raw: Option<RawExecutable>,
    reader: Option<CodeObjectReader>,
    /// What the reader reads, for as long as it is there.
    code_object: Box<[u8]>,
}

/// A kernel of an [`Executable`], for [`Queue::dispatch`](super::Queue::dispatch). Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// Where the device finds its descriptor.
    pub object: u64,
    /// The arguments, implicit ones included.
    pub kernarg_size: u32,
    /// Their alignment.
    pub kernarg_align: u32,
    /// Memory of each work-group.
    pub group_size: u32,
    /// Memory of each work-item, as far as the compiler could tell.
    pub private_size: u32,
    /// Whether the compiler could not: the kernel recurses or calls through pointers. It needs a
    /// [stack](Self::with_stack) then.
    pub dynamic_stack: bool,
}

impl Kernel {
    /// The kernel with this much memory for each work-item at least, in bytes.
    #[must_use]
    pub fn with_stack(mut self, bytes: u32) -> Self {
        self.private_size = self.private_size.max(bytes);
        self
    }
}

/// A variable of an [`Executable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    pub(crate) address: u64,
    pub(crate) size: usize,
    /// The executable that has it.
    owner: u64,
}

impl Variable {
    /// Where the device finds it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Executable {
    /// Loads a code object: an ELF file for one of the device's [ISAs](super::GpuAgent::isas).
    ///
    /// # Errors
    /// [`HsaError::Runtime`] with the runtime's reason, as for a file that is no code object or is one
    /// for another device.
    pub fn load(allocator: &HsaAllocator, code_object: &[u8]) -> Result<Self, HsaError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let device = allocator.device().clone();
        let (runtime, hsa) = (device.runtime.clone(), device.runtime.hsa);
        // From here on whatever has been made goes with it.
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let code_object = code_object.into();
        let mut new = Executable { device, number, raw: None, reader: None, code_object };

        let mut reader = CodeObjectReader { handle: 0 };
        // SAFETY: the bytes are there for longer than the reader: both are `new`'s, which destroys the
        // reader first; `reader` is a place for the handle. The runtime checks what it reads.
        let status = unsafe {
            (hsa.hsa_code_object_reader_create_from_memory)(
                new.code_object.as_ptr().cast(),
                new.code_object.len(),
                &raw mut reader,
            )
        };
        runtime.check("hsa_code_object_reader_create_from_memory", status)?;
        new.reader = Some(reader);

        let mut raw = RawExecutable { handle: 0 };
        // SAFETY: `raw` is a place for the handle; there need be no options.
        let status = unsafe {
            (hsa.hsa_executable_create_alt)(
                HSA_PROFILE_FULL,
                HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT,
                ptr::null(),
                &raw mut raw,
            )
        };
        runtime.check("hsa_executable_create_alt", status)?;
        new.raw = Some(raw);

        let agent = new.device.agent;
        // SAFETY: all handles are alive; neither options nor the loaded object's handle are asked for.
        let status = unsafe {
            (hsa.hsa_executable_load_agent_code_object)(
                raw,
                agent,
                reader,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        runtime.check("hsa_executable_load_agent_code_object", status)?;
        // SAFETY: the executable is alive and was not frozen before.
        let status = unsafe { (hsa.hsa_executable_freeze)(raw, ptr::null()) };
        runtime.check("hsa_executable_freeze", status)?;
        Ok(new)
    }

    /// The kernel of that name, which ends in `.kd`; `None` where there is none.
    ///
    /// # Errors
    /// [`HsaError::WrongSymbol`] where the name is not a kernel's, or what the runtime says.
    pub fn kernel(&self, name: &str) -> Result<Option<Kernel>, HsaError> {
        let Some(symbol) = self.symbol(name, HSA_SYMBOL_KIND_KERNEL, "a kernel")? else {
            return Ok(None);
        };
        let number = |attribute| self.info::<u32>(symbol, attribute);
        Ok(Some(Kernel {
            object: self.info(symbol, HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT)?,
            kernarg_size: number(HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE)?,
            kernarg_align: number(HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_ALIGNMENT)?,
            group_size: number(HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_GROUP_SEGMENT_SIZE)?,
            private_size: number(HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_PRIVATE_SEGMENT_SIZE)?,
            dynamic_stack: self
                .info::<u8>(symbol, HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_DYNAMIC_CALLSTACK)?
                != 0,
        }))
    }

    /// The variable of that name; `None` where there is none.
    ///
    /// # Errors
    /// [`HsaError::WrongSymbol`] where the name is not a variable's, or what the runtime says.
    pub fn variable(&self, name: &str) -> Result<Option<Variable>, HsaError> {
        let Some(symbol) = self.symbol(name, HSA_SYMBOL_KIND_VARIABLE, "a variable")? else {
            return Ok(None);
        };
        let size = self.info::<u32>(symbol, HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_SIZE)?;
        let address = self.info(symbol, HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ADDRESS)?;
        Ok(Some(Variable { address, size: size as usize, owner: self.number }))
    }

    /// Copies bytes to the beginning of a variable of this executable.
    ///
    /// # Errors
    /// [`HsaError::Bounds`] where they do not fit, [`HsaError::WrongVariable`] for one that is not this
    /// executable's, or what the runtime says.
    pub fn write(&self, variable: &Variable, bytes: &[u8]) -> Result<(), HsaError> {
        self.check(variable, bytes.len())?;
        // The runtime takes memory that it knows, whatever its version.
        let memory = Memory::host(&self.device, bytes.len())?;
        memory.fill(bytes);
        let to = ptr::with_exposed_provenance_mut(variable.address as usize);
        self.copy(to, memory.address().as_ptr().cast(), bytes.len())
    }

    /// Copies from the beginning of a variable of this executable.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, variable: &Variable, bytes: usize) -> Result<Vec<u8>, HsaError> {
        self.check(variable, bytes)?;
        let memory = Memory::host(&self.device, bytes)?;
        let from = ptr::with_exposed_provenance(variable.address as usize);
        self.copy(memory.address().as_ptr().cast(), from, bytes)?;
        Ok(memory.to_vec(bytes))
    }

    fn check(&self, variable: &Variable, bytes: usize) -> Result<(), HsaError> {
        if variable.owner != self.number {
            Err(HsaError::WrongVariable)
        } else if bytes > variable.size {
            Err(HsaError::Bounds { size: variable.size, bytes })
        } else {
            Ok(())
        }
    }

    fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<(), HsaError> {
        // SAFETY: one side is a block of that many bytes, made by the callers, the other a variable
        // of that many, which they checked, and which is loaded for as long as `self` is there. It is
        // done when the call returns.
        let status = unsafe { (self.device.runtime.hsa.hsa_memory_copy)(to, from, bytes) };
        self.device.runtime.check("hsa_memory_copy", status)
    }

    fn symbol(
        &self,
        name: &str,
        kind: u32,
        wanted: &'static str,
    ) -> Result<Option<Symbol>, HsaError> {
        let (Some(raw), Ok(c_name)) = (self.raw, CString::new(name)) else {
            return Ok(None);
        };
        let mut symbol = Symbol { handle: 0 };
        // SAFETY: the executable is alive; the name ends with NUL; `symbol` is a place for the handle.
        let status = unsafe {
            (self.device.runtime.hsa.hsa_executable_get_symbol_by_name)(
                raw,
                c_name.as_ptr(),
                &raw const self.device.agent,
                &raw mut symbol,
            )
        };
        if status == HSA_STATUS_ERROR_INVALID_SYMBOL_NAME {
            return Ok(None);
        }
        self.device.runtime.check("hsa_executable_get_symbol_by_name", status)?;
        if self.info::<u32>(symbol, HSA_EXECUTABLE_SYMBOL_INFO_TYPE)? != kind {
            return Err(HsaError::WrongSymbol { name: name.to_owned(), wanted });
        }
        Ok(Some(symbol))
    }

    /// An attribute of a symbol as `T`: a C `bool` as `u8`, else of 32 or of 64 bits.
    fn info<T: Default>(&self, symbol: Symbol, attribute: SymbolInfo) -> Result<T, HsaError> {
        let mut value = T::default();
        let place = (&raw mut value).cast();
        // SAFETY: the callers name the attribute's type; the symbol is one of this executable's.
        let status = unsafe {
            (self.device.runtime.hsa.hsa_executable_symbol_get_info)(symbol, attribute, place)
        };
        self.device.runtime.check("hsa_executable_symbol_get_info", status)?;
        Ok(value)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let hsa = self.device.runtime.hsa;
        if let Some(raw) = self.raw {
            // SAFETY: made in `load` and destroyed once; none of its kernels runs any more, as the
            // documentation asks.
            let _ = unsafe { (hsa.hsa_executable_destroy)(raw) };
        }
        if let Some(reader) = self.reader {
            // SAFETY: made in `load` and destroyed once, before the bytes that it reads.
            let _ = unsafe { (hsa.hsa_code_object_reader_destroy)(reader) };
        }
    }
}
