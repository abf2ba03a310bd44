//! Kernels from source text.

use cudarc::driver::CudaContext;

use crate::backend::cuda::{CompileError, CudaError, nvrtc};
use crate::device::HEADER;

/// Compiles CUDA C++ to PTX with CUDA's run-time compiler, which is looked for now.
///
/// The source may say `#include "hostcall.h"`, with `#define HOSTCALL_DEFINE_CLIENT` before it.
/// `architecture` is as [`architecture`] says it, `options` are the compiler's, to go with C++17 and
/// visible symbols. The result goes to cudarc as `Ptx::from_src`.
///
/// ```no_run
/// use hostcall::cuda::{self, cudarc::{driver::CudaContext, nvrtc::Ptx}};
/// const KERNEL: &str = r#"
///     #define HOSTCALL_DEFINE_CLIENT
///     #include "hostcall.h"
///     extern "C" __global__ void hello() { hostcall::print("hello\n"); }
/// "#;
/// let context = CudaContext::new(0)?;
/// let ptx = cuda::compile(KERNEL, &cuda::architecture(&context)?, &[])?;
/// let module = context.load_module(Ptx::from_src(ptx))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`CompileError`].
pub fn compile(source: &str, architecture: &str, options: &[&str]) -> Result<String, CompileError> {
    let architecture = format!("--gpu-architecture={architecture}");
    let mut all = vec![architecture.as_str(), "-std=c++17", "-rdc=true"];
    all.extend(options);
    nvrtc::compile(source, &[("hostcall.h", HEADER)], &all)
}

/// The architecture of a context's device, as compilers call it: `sm_90`.
///
/// # Errors
/// What the driver says.
pub fn architecture(context: &CudaContext) -> Result<String, CudaError> {
    let capability = context.compute_capability();
    let (major, minor) =
        capability.map_err(|error| CudaError::new("cuDeviceGetAttribute", error))?;
    Ok(format!("sm_{major}{minor}"))
}
