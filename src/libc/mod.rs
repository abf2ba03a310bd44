//! The opcodes of the LLVM C library, as ordinary handlers.
//!
//! [`stderr`] and [`exit`] are enough for a program that prints and ends:
//!
//! ```
//! use hostcall::{Registry, libc};
//! let registry = Registry::new();
//! registry.register(libc::opcode::WRITE_TO_STDERR, libc::stderr(std::io::stderr()))?;
//! registry.register(libc::opcode::EXIT, libc::exit(libc::ExitPolicy::Report))?;
//! # Ok::<(), hostcall::RegisterError>(())
//! ```

mod heap;
pub mod opcode;
pub mod printf;
mod process;
mod stdio;

pub use heap::{Heap, HeapStats};
pub use process::{ExitPolicy, exit};
pub use stdio::stderr;
