//! The opcodes of the LLVM C library, as ordinary handlers with a policy.
//!
//! [`Services`] answers all of them. A program that prints and exits needs two lines; what else
//! device code may do is opened line by line:
//!
//! ```
//! use hostcall::libc::{Heap, Services};
//! use hostcall::{Registry, Server, backend::host::HostAllocator};
//! let services = Services::builder().heap(Heap::pool(HostAllocator, 1 << 20)?).build();
//! let registry = Registry::new();
//! services.register(&registry)?;
//! let server = Server::builder(HostAllocator).registry(&registry).owning(services).build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`files`]: C's `stdio` over a table of checked handles, and which files may be touched.
//! - [`printf`]: formats from a device into the bytes that C prints.
//! - [`Heap`]: memory for `malloc`.
//! - [`opcode`]: the numbers.

pub mod files;
mod heap;
mod memory;
pub mod opcode;
mod print;
pub mod printf;
mod process;
mod services;
mod stdio;
mod testing;

pub use heap::{Heap, HeapStats};
pub use process::ABORTED;
pub use services::{Denials, Services, ServicesBuilder};

/// The bytes in front of the first NUL; `None` where there is none.
fn until_nul(bytes: &[u8]) -> Option<&[u8]> {
    bytes.iter().position(|&byte| byte == 0).map(|end| &bytes[..end])
}
