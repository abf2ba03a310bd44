//! Opcodes of your own, from kernels of a program that has its own cudarc context, stream and module.
//! Each thread asks the host for the price of an item, and tells it what it sold. You see the host's
//! sum next to the device's; without a GPU you see what is missing, and the exit status is 1.
#![expect(unsafe_code, reason = "to launch a kernel is to trust it")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hostcall::cuda::cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use hostcall::cuda::cudarc::nvrtc::Ptx;
use hostcall::cuda::{self, CudaAllocator};
use hostcall::{Opcode, Registry, Server, Worker};

const PRICE: Opcode = Opcode::new(b'x', 1);
const SOLD: Opcode = Opcode::new(b'x', 2);

const KERNEL: &str = r#"
    #define HOSTCALL_DEFINE_CLIENT
    #include "hostcall.h"

    // Plain data of at most 64 bytes, the same on both sides.
    struct Sale { unsigned item, count; unsigned long long paid; };

    extern "C" __global__ void sell(unsigned price, unsigned sold, unsigned long long *total) {
        Sale sale{threadIdx.x % 10, blockIdx.x + 1, 0};
        sale.paid = sale.count * hostcall::call<unsigned long long>(price, sale.item);
        hostcall::notify(sold, sale); // nobody waits
        atomicAdd(total, sale.paid);
    }
"#;

/// What the device sends with `SOLD`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Sale {
    item: u32,
    count: u32,
    paid: u64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cuda_custom_opcode: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // What a program that uses cudarc has anyway. Asking for the devices first turns a missing
    // driver into an error; cudarc would panic.
    cuda::device_count()?;
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let ptx = cuda::compile(KERNEL, &cuda::architecture(&context)?, &[])?;
    let module = context.load_module(Ptx::from_src(ptx))?;
    let kernel = module.load_function("sell")?;
    let mut total = stream.alloc_zeros::<u64>(1)?;

    // The handlers.
    let registry = Registry::new();
    registry.unary(PRICE, |_, item: u32| u64::from(item) * 5 + 100)?;
    let takings = Arc::new(AtomicU64::new(0));
    let sum = takings.clone();
    registry.notification(SOLD, move |_, sale: Sale| {
        sum.fetch_add(sale.paid, Ordering::Relaxed);
    })?;

    // A server for this context, and a thread that serves whatever is launched.
    let allocator = CudaAllocator::new(context.clone());
    let worker = Worker::start(Server::builder(allocator).registry(&registry).build()?)?;
    cuda::publish(&module, &stream, worker.server())?;

    let shape = LaunchConfig { grid_dim: (20, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&PRICE.0).arg(&SOLD.0).arg(&mut total);
    // SAFETY: the parameters have the types that the kernel declares, in its order.
    unsafe { launch.launch(shape)? };
    // Until the kernel has ended and all that it sent has been served.
    cuda::wait(&worker, &stream)?;

    let total = stream.clone_dtoh(&total)?;
    stream.synchronize()?;
    println!("the device took {}, the host knows of {}", total[0], takings.load(Ordering::Relaxed));
    println!("{} conversations served", worker.server().stats().completed);
    worker.stop()?;
    Ok(())
}
