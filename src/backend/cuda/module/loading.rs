//! What the loader needs of modules: loading images, finding kernels and launching them.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::{Module, found};
use crate::backend::cuda::CudaError;
use crate::backend::cuda::driver::{self, Current, check};
use crate::loader::Image;

/// CUDA's `CU_LAUNCH_PARAM_*`: what follows in the list of launch options. Bindings of old versions
/// have no names for them.
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// Bytes for what the driver's compiler says.
const LOG: usize = 4096;

/// Why a module was not loaded: the driver's error, and its compiler's first complaint.
#[derive(Debug)]
pub(crate) struct LoadError {
    pub(crate) error: CudaError,
    pub(crate) log: String,
}

impl Module {
    /// Loads an image into a context.
    pub(crate) fn load(context: &Arc<CudaContext>, image: &Image) -> Result<Self, LoadError> {
        let fail = |error| LoadError { error, log: String::new() };
        let _current = Current::push(context).map_err(fail)?;
        let mut log = vec![0u8; LOG];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // Sizes are passed as if they were addresses.
        let size = std::ptr::without_provenance_mut::<c_void>(LOG);
        let mut values = [log.as_mut_ptr().cast::<c_void>(), size];
        let mut raw = std::ptr::null_mut();
        // SAFETY: an `Image` has been checked: PTX ends with a NUL, and all parts of an ELF lie
        // within its bytes. The log is valid for the size given; a context is current.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &raw mut raw,
                image.as_bytes().as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        match check("cuModuleLoadDataEx", result) {
            Ok(()) => Ok(Module { raw, context: context.clone(), owned: true }),
            Err(error) => {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(LOG);
                let log = String::from_utf8_lossy(&log[..end]);
                let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
                Err(LoadError { error, log: lines.next().unwrap_or_default().to_owned() })
            }
        }
    }

    /// The kernel of that name; `None` where the module has none.
    pub(crate) fn function(&self, name: &str) -> Result<Option<Function<'_>>, CudaError> {
        let Ok(name) = CString::new(name) else {
            return Ok(None);
        };
        let _current = Current::push(&self.context)?;
        // SAFETY: the module is loaded for as long as `self` is there.
        let raw =
            found("cuModuleGetFunction", unsafe { result::module::get_function(self.raw, name) })?;
        Ok(raw.map(|raw| Function { raw, module: self }))
    }
}

/// A kernel of a loaded module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function<'m> {
    raw: sys::CUfunction,
    module: &'m Module,
}

impl Function<'_> {
    /// How many parameters it has; `None` where the driver is too old to tell (before 12.4).
    pub(crate) fn parameters(&self) -> Result<Option<usize>, CudaError> {
        type ParamInfo =
            unsafe extern "C" fn(sys::CUfunction, usize, *mut usize, *mut usize) -> u32;
        let library = driver::require()?;
        // SAFETY: this is the function's type in CUDA's headers since 12.4.
        let Ok(info) = (unsafe { library.get::<ParamInfo>("cuFuncGetParamInfo") }) else {
            return Ok(None);
        };
        let _current = Current::push(&self.module.context)?;
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the kernel's module is loaded; both places are valid. An index beyond the
        // last parameter is an error.
        let mut there =
            |index| unsafe { info(self.raw, index, &raw mut offset, &raw mut size) == 0 };
        // More bytes no kernel has, so no more parameters.
        Ok((0..=32764).find(|&index| !there(index)))
    }

    /// Launches it with these bytes as its parameters.
    pub(crate) fn launch(
        &self,
        stream: &CudaStream,
        blocks: [u32; 3],
        threads: [u32; 3],
        parameters: &[u8],
    ) -> Result<(), CudaError> {
        let _current = Current::push(&self.module.context)?;
        let mut parameters = parameters.to_vec();
        let mut size = parameters.len();
        let tag = std::ptr::without_provenance_mut::<c_void>;
        let mut extra = [
            tag(BUFFER_POINTER),
            parameters.as_mut_ptr().cast::<c_void>(),
            tag(BUFFER_SIZE),
            (&raw mut size).cast::<c_void>(),
            tag(END),
        ];
        // A kernel without parameters has no list.
        let extra = if size == 0 { std::ptr::null_mut() } else { extra.as_mut_ptr() };
        // SAFETY: the kernel's module is loaded, the stream lives, both of one context. The
        // driver copies the parameters, `size` bytes of them, before it returns. What the kernel
        // does later it does as any device code: host memory that it can reach is pinned, and
        // this process looks at that through atomics alone.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.raw,
                blocks[0],
                blocks[1],
                blocks[2],
                threads[0],
                threads[1],
                threads[2],
                0,
                stream.cu_stream(),
                std::ptr::null_mut(),
                extra,
            )
        };
        check("cuLaunchKernel", result)
    }
}
