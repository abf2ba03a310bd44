//! Finds the AMD devices of this machine, and gives the first one a server.
//!
//! ```text
//! cargo run --features hsa --example hsa_hello
//! ```
//!
//! Without the HSA runtime, or without a device, it says what is missing and exits with status 1.

use std::error::Error;
use std::process::ExitCode;

use hostcall::backend::hsa::{self, HsaAllocator};
use hostcall::{Abi, Server};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hsa_hello: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    for (ordinal, agent) in hsa::devices()?.iter().enumerate() {
        println!("device {ordinal}: {}, {}", agent.name, agent.isas.join(", "));
    }
    let allocator = HsaAllocator::open(0)?;
    let (waves, lanes) = (allocator.agent().max_waves, allocator.agent().wavefront_size);
    let ports = waves.min(Abi::Llvm20.max_ports());
    let server = Server::builder(allocator).ports(ports).lanes(lanes).build()?;
    println!("a server of {ports} ports of {lanes} lanes at {:#x}", server.buffer().0);
    Ok(())
}
