//! Files and standard streams for device code, with the semantics of C's `stdio`.
//!
//! A [`FileTable`] holds the files that device code has open. The device knows each by a [`Handle`],
//! a checked key that takes the place of its `FILE*`; [`StreamRef`] tells handles and standard
//! streams apart. A [`FilePolicy`] says which files can be opened at all: none, unless the host
//! program allows it. [`Standard`] says where the standard streams lead.
//!
//! The table works in Rust's terms, with errors that say what happened. [`FileTable::as_c`] gives
//! the same operations in C's terms, for the wire.
//!
//! # Which stdio
//!
//! Where C leaves a choice, the result is that of glibc on Linux:
//!
//! - Files are fully buffered, 4096 bytes in each direction. Standard output and standard error
//!   output are passed on and flushed with every call.
//! - The end-of-file indicator is sticky: while it is set nothing is read. A successful `fseek`,
//!   `ungetc`, or `clearerr` clears it.
//! - `"a"` starts at the end of the file, `"a+"` at its start; both always write at the end.
//! - A directory can be opened for reading (where the system allows it); reading it is an error.
//!
//! Where C leaves the behaviour undefined it is defined here, and never loses data: reading directly
//! after writing writes first, writing directly after reading writes where reading stopped. Where
//! glibc is lax, this is strict: modes are checked to the letter, and `ungetc` to a stream that
//! cannot be read fails. A failed flush keeps what it could not write for another attempt.
//!
//! ```
//! use hostcall::libc::files::{Captured, FileTable, Standard, StreamRef};
//! let printed = Captured::new();
//! let files = FileTable::builder()
//!     .standard(Standard::default().stdout(printed.clone()))
//!     .build();
//! let c = files.as_c();
//! assert_eq!(c.puts(StreamRef::Stdout, b"hello"), 6);
//! assert_eq!(printed.contents(), b"hello\n");
//! // No policy was set, so there are no files.
//! assert_eq!(c.fopen(b"/etc/passwd", b"r"), 0);
//! assert_eq!(files.stats().denials.no_files, 1);
//! ```

mod builder;
mod c;
mod captured;
mod counters;
mod error;
mod handle;
mod input;
mod mode;
mod policy;
#[cfg(feature = "sandbox")]
mod sandbox;
mod slots;
mod standard;
mod stream;
mod table;

pub use builder::{DEFAULT_MAX_OPEN, FileTableBuilder};
pub use c::CFiles;
pub use captured::Captured;
pub use counters::{Denials, FileCounters, FileStats};
pub use error::{Denial, FileError, PathFault};
pub use handle::{Handle, StreamRef};
pub use mode::Mode;
pub use policy::{Access, FilePolicy, PATH_LIMIT};
pub use standard::{Input, Output, Standard};
pub use stream::{BytesRead, BytesWritten, Whence};
pub use table::{FileTable, LineEnd};

#[cfg(all(test, feature = "sandbox"))]
mod scratch;
