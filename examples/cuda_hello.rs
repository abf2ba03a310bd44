//! A kernel prints through its host. The kernel's source is below; it is compiled when this runs, so
//! this needs an NVIDIA GPU with its driver and CUDA's run-time compiler (libnvrtc). You see a line
//! from each of 64 threads; without a GPU you see what is missing, and the exit status is 1.
#![expect(unsafe_code, reason = "to launch a kernel is to trust it")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use hostcall::cuda::cudarc::driver::LaunchConfig;
use hostcall::cuda::cudarc::nvrtc::Ptx;
use hostcall::cuda::{self, CudaAllocator};
use hostcall::libc::Services;
use hostcall::{Registry, Server};

const KERNEL: &str = r#"
    #define HOSTCALL_DEFINE_CLIENT
    #include "hostcall.h"

    extern "C" __global__ void hello() {
        char text[] = "hello from block 0, thread 00\n";
        text[17] += blockIdx.x;
        text[27] += threadIdx.x / 10;
        text[28] += threadIdx.x % 10;
        hostcall::print(text);
    }
"#;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cuda_hello: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // The device, and memory that it shares with this process.
    let allocator = CudaAllocator::open(0)?;
    let context = allocator.context().clone();
    let stream = context.new_stream()?;

    // The kernel.
    let ptx = cuda::compile(KERNEL, &cuda::architecture(&context)?, &[])?;
    let module = context.load_module(Ptx::from_src(ptx))?;
    let kernel = module.load_function("hello")?;

    // The host: it may print.
    let registry = Registry::new();
    let services = Services::builder().build();
    services.register(&registry)?;
    let server = Server::builder(allocator).registry(&registry).owning(services).build()?;
    let server = Arc::new(server);

    // Where the kernel finds it, then the launch: served until the kernel ends.
    cuda::publish(&module, &stream, &server)?;
    let shape = LaunchConfig { grid_dim: (2, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel has no parameters and touches no memory but its client's.
    cuda::serve_launch(&server, &stream, || unsafe {
        stream.launch_builder(&kernel).launch(shape)
    })?;
    println!("{} conversations served", server.stats().completed);
    Ok(())
}
