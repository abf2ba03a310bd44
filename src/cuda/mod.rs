//! CUDA devices: memory, publishing a client, and running kernels that call the host.
//!
//! A program that uses `cudarc` keeps its contexts, streams and modules, and adds four lines:
//!
//! ```no_run
//! use std::sync::Arc;
//! use hostcall::cuda::{self, CudaAllocator, cudarc::driver::{CudaContext, LaunchConfig}};
//! use hostcall::{Opcode, Registry, Server};
//! # fn f(context: Arc<CudaContext>, ptx: cuda::cudarc::nvrtc::Ptx) -> Result<(), Box<dyn std::error::Error>> {
//! let stream = context.new_stream()?;
//! let module = context.load_module(ptx)?;
//! let kernel = module.load_function("kernel")?;
//!
//! let registry = Registry::new();
//! registry.unary(Opcode::new(b'x', 1), |_, number: u64| number * number)?;
//! let allocator = CudaAllocator::new(context);
//! let server = Arc::new(Server::builder(allocator).ports(1024).registry(&registry).build()?);
//! cuda::publish(&module, &stream, &server)?;
//! cuda::serve_launch(&server, &stream, || unsafe {
//!     stream.launch_builder(&kernel).launch(LaunchConfig::for_num_elems(1024))
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`CudaAllocator`]: pinned memory, for a context or a device number.
//! - [`compile`]: kernels from source text that include [`device::HEADER`](crate::device::HEADER).
//! - [`publish`], [`DeviceClient`]: find the client object in a module and fill it in.
//! - [`serve_launch`], [`Launcher`]: launch a kernel, serve it, wait for its end, drain.
//! - [`wait`]: the same for a [`Worker`](crate::Worker) that runs already.
//!
//! # What deadlocks
//!
//! A kernel that waits for its host and a host that waits for the kernel. So while a kernel runs that
//! calls the host, do not, on a thread that serves it or in a handler: synchronise a stream, an event
//! or the context, copy synchronously, free memory, unload a module, drop the server. Use non-blocking
//! streams ([`CudaContext::new_stream`](cudarc::driver::CudaContext::new_stream)): work on the default stream
//! waits for kernels on blocking ones. The first launch of a kernel loads it, which may wait for running
//! kernels too; `CUDA_MODULE_LOADING=EAGER` loads all with the module.
//!
//! # CUDA versions
//!
//! The bindings are `cudarc`'s. Their version is the toolkit's that is installed where the program is
//! built, or the newest; any other by `cudarc`'s feature (`cudarc = { version = "0.19", features =
//! ["cuda-12080"] }` beside this crate) or by `CUDARC_CUDA_VERSION=12080`. This crate uses functions
//! of CUDA 11.4, and newer ones only where the driver has them.

mod client;
mod compile;
mod launch;

pub use crate::backend::cuda::{
    CompileError, CudaAllocator, CudaError, Global, Globals, Module, device_count,
};
pub use crate::launch::{KernelState, Served};
pub use client::{DeviceClient, PublishError, publish};
pub use compile::{architecture, compile};
pub use cudarc;
#[cfg(feature = "loader")]
pub(crate) use launch::serve;
pub use launch::{LaunchError, Launcher, serve_launch, wait};
