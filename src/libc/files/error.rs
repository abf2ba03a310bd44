//! Why a file operation did not happen.

use std::io;
use std::sync::Arc;

/// Why an operation on a [`FileTable`](super::FileTable) did not happen.
///
/// Device code never sees these: the wire carries what C's functions return and no `errno`.
/// [`CFiles`](super::CFiles) is where one becomes the other.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The word is not a handle of an open file of this table: closed already, forged, or another
    /// table's.
    #[error("{word:#x} is not an open file of this table")]
    BadHandle {
        /// The word as the device sent it.
        word: u64,
    },
    /// The mode is not one of C's.
    #[error("not a mode of fopen")]
    BadMode,
    /// The path cannot name a file.
    #[error("not a path: {0}")]
    BadPath(PathFault),
    /// The policy does not allow it.
    #[error("denied: {0}")]
    Denied(Denial),
    /// As many files are open as the table allows.
    #[error("{limit} files are open already")]
    TooManyOpen {
        /// The most files that may be open at once.
        limit: usize,
    },
    /// The stream was not opened for reading.
    #[error("the stream is not open for reading")]
    NotReadable,
    /// The stream was not opened for writing.
    #[error("the stream is not open for writing")]
    NotWritable,
    /// The stream has no position: a standard stream, a pipe, a terminal.
    #[error("the stream has no position")]
    NotSeekable,
    /// `whence` is none of 0 (start), 1 (here), 2 (end).
    #[error("{whence} does not say where an offset counts from")]
    BadWhence {
        /// The value as the device sent it.
        whence: i32,
    },
    /// The position would lie before the start of the file or beyond what can be counted.
    #[error("no such position in a file")]
    BadPosition,
    /// The character to push back is `EOF`, or too many are pushed back already.
    #[error("the character cannot be pushed back")]
    NotPushedBack,
    /// The host program configured this standard stream as closed.
    #[error("the stream is closed")]
    Closed,
    /// The operating system, or the host program's reader or writer, reported an error.
    #[error(transparent)]
    Io(Arc<io::Error>),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotSeekable => FileError::NotSeekable,
            _ => FileError::Io(Arc::new(error)),
        }
    }
}

/// What is wrong with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathFault {
    /// It has no characters.
    #[error("empty")]
    Empty,
    /// It is longer than [`PATH_LIMIT`](super::PATH_LIMIT).
    #[error("too long")]
    TooLong,
    /// A zero byte is part of it.
    #[error("contains a zero byte")]
    Nul,
    /// Its bytes are not text, on a platform where paths are text.
    #[error("not UTF-8")]
    Encoding,
}

/// What a [`FilePolicy`](super::FilePolicy) refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denial {
    /// Any access to the file system.
    #[error("no access to files")]
    NoFiles,
    /// A change, where only reading is allowed.
    #[error("files are read-only")]
    ReadOnly,
    /// A path that leads out of the directory: by `..`, from the root, or over a link.
    #[error("the path leads out of the directory")]
    Outside,
    /// A file in the directory that is neither regular nor a directory: a FIFO, a socket, a device.
    #[error("not a regular file")]
    SpecialFile,
}
