//! The numbers, as of LLVM 20 (PROTOCOL.md §4.2). Servers of older interfaces translate.

use crate::protocol::Opcode;

/// The class byte of the LLVM C library.
pub const CLASS: u8 = b'c';

macro_rules! opcodes {
    ($($number:literal $name:ident $doc:literal)*) => {
        $(#[doc = $doc] pub const $name: Opcode = Opcode::new(CLASS, $number);)*

        /// Every opcode of the library, test opcodes included, with its name.
        pub const ALL: &[(Opcode, &str)] = &[$(($name, stringify!($name)),)*];
    };
}

opcodes! {
    0 NOOP "Takes note of nothing."
    1 EXIT "Ends the program."
    2 WRITE_TO_STDOUT "Writes bytes to the standard output stream."
    3 WRITE_TO_STDERR "Writes bytes to the standard error stream."
    4 WRITE_TO_STREAM "Writes bytes to an open file."
    5 WRITE_TO_STDOUT_NEWLINE "Writes bytes and a newline to the standard output stream: `puts`."
    6 READ_FROM_STREAM "Reads bytes: `fread`."
    7 READ_FGETS "Reads a line: `fgets`."
    8 OPEN_FILE "Opens a file: `fopen`."
    9 CLOSE_FILE "Closes a file: `fclose`."
    10 MALLOC "Allocates memory that the device can use."
    11 FREE "Frees memory of `MALLOC`."
    12 HOST_CALL "Calls a function of the host program."
    13 ABORT "Gives the program up."
    14 FEOF "Whether a stream is at its end."
    15 FERROR "Whether a stream has had an error."
    16 CLEARERR "Forgets end and error of a stream."
    17 FSEEK "Moves the position of a stream."
    18 FTELL "The position of a stream."
    19 FFLUSH "Writes what a stream has buffered."
    20 UNGETC "Pushes a character back into a stream."
    21 PRINTF_TO_STDOUT "Prints to the standard output stream, arguments aligned (NVPTX)."
    22 PRINTF_TO_STDERR "Prints to the standard error stream, arguments aligned."
    23 PRINTF_TO_STREAM "Prints to an open file, arguments aligned."
    24 PRINTF_TO_STDOUT_PACKED "Prints to the standard output stream, arguments packed (AMDGPU)."
    25 PRINTF_TO_STDERR_PACKED "Prints to the standard error stream, arguments packed."
    26 PRINTF_TO_STREAM_PACKED "Prints to an open file, arguments packed."
    27 REMOVE "Removes a file."
    28 RENAME "Renames a file."
    29 SYSTEM "Runs a command of the host."
    0x8000 TEST_INCREMENT "LLVM's test of a call. The number is unverified (PROTOCOL.md §4.1)."
    0x8001 TEST_INTERFACE "LLVM's test of mixed sends and receives. The number is unverified."
    0x8002 TEST_STREAM "LLVM's test of streams. The number is unverified."
}

/// LLVM's offload runtime: as [`HOST_CALL`].
pub const OFFLOAD_HOST_CALL: Opcode = Opcode::new(b'o', 0);
