//! The numbers, as of LLVM 20 (PROTOCOL.md §4.2). Servers of older interfaces translate.

use crate::protocol::Opcode;

/// The class byte of the LLVM C library.
pub const CLASS: u8 = b'c';

/// Ends the program.
pub const EXIT: Opcode = Opcode::new(CLASS, 1);
/// Writes bytes to the standard error stream.
pub const WRITE_TO_STDERR: Opcode = Opcode::new(CLASS, 3);
