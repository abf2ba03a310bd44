//! The table of open files, and the standard streams beside it.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use super::slots::{Reserved, Slots};
use super::standard::StandardStreams;
use super::stream::{BytesRead, BytesWritten, FileStream, Stream};
use super::{
    CFiles, FileCounters, FileError, FilePolicy, FileStats, FileTableBuilder, Handle, Mode,
    Standard, StreamRef, Whence,
};

/// What follows each piece of a [`FileTable::write_each`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnd {
    /// Nothing: the bytes are written as they are.
    AsIs,
    /// A newline, if all of the piece was written: `puts`.
    Newline,
}

/// The files that device code has open, and its standard streams.
///
/// Clones share the table. Each stream has a lock of its own: a slow file holds up nobody who uses
/// another one, and two calls on the same stream take place one after the other. When the last clone
/// is dropped all files are flushed and closed; whether that went well is in the
/// [counters](Self::counters).
///
/// Operations may wait for the file system, or for the host's reader or writer: call them where
/// waiting is allowed. The methods here return Rust's results; [`as_c`](Self::as_c) gives the same
/// ones as C's functions, with the values that go to the device.
///
/// ```
/// use hostcall::libc::files::{Access, FilePolicy, FileTable};
/// let dir = std::env::temp_dir();
/// let files = FileTable::builder()
///     .policy(FilePolicy::everything(Access::ReadWrite))
///     .build();
/// let path = dir.join(format!("hostcall-note-{}", std::process::id()));
/// let path = path.as_os_str().as_encoded_bytes();
/// let note = files.open(path, b"w+")?;
/// assert_eq!(files.write(note, b"remember").count, 8);
/// files.close(note)?;
/// assert!(files.close(note).is_err());
/// files.remove(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FileTable(Arc<Inner>);

struct Inner {
    policy: FilePolicy,
    standard: StandardStreams,
    counters: FileCounters,
    /// Locked for look-ups only, never while a file is used.
    slots: Mutex<Slots<OpenFile>>,
}

/// A file in its slot. The stream is gone as soon as it has been closed, also for those who found
/// the file just before.
#[derive(Clone)]
struct OpenFile {
    stream: Arc<Mutex<Option<FileStream<File>>>>,
    /// Beside the lock, so that flushing everything does not wait for somebody who reads.
    writes: bool,
}

impl FileTable {
    /// A table that gives no access to files, until the builder is told otherwise.
    pub fn builder() -> FileTableBuilder {
        FileTableBuilder::new()
    }

    pub(super) fn new(policy: FilePolicy, standard: Standard, tag: u32, max_open: usize) -> Self {
        FileTable(Arc::new(Inner {
            policy,
            standard: standard.open(),
            counters: FileCounters::default(),
            slots: Mutex::new(Slots::new(tag, max_open)),
        }))
    }

    /// The same operations with C's arguments and results.
    pub fn as_c(&self) -> CFiles<'_> {
        CFiles::new(self)
    }

    /// How many files are open, or being opened or closed.
    pub fn open_files(&self) -> usize {
        self.0.slots.lock().in_use()
    }

    /// What the table did and refused so far.
    pub fn stats(&self) -> FileStats {
        self.0.counters.stats()
    }

    /// The counters themselves. They outlive the table.
    pub fn counters(&self) -> FileCounters {
        self.0.counters.clone()
    }

    /// Opens a file: `fopen`. `path` and `mode` are without their terminating zeros.
    ///
    /// # Errors
    ///
    /// If mode or path are not valid, the policy denies it, too many files are open, or the file
    /// system says no. Nothing was created or truncated then, except by the file system itself.
    pub fn open(&self, path: &[u8], mode: &[u8]) -> Result<Handle, FileError> {
        self.counted(self.try_open(path, mode))
    }

    fn try_open(&self, path: &[u8], mode: &[u8]) -> Result<Handle, FileError> {
        let mode = Mode::parse(mode)?;
        // The slot first: an open that is refused for want of slots must not truncate the file.
        let slot = self.reserve()?;
        let stream = FileStream::new(self.0.policy.open(path, mode)?, mode);
        let file = OpenFile { stream: Arc::new(Mutex::new(Some(stream))), writes: mode.writes() };
        self.0.counters.opened();
        Ok(slot.fill(file))
    }

    fn reserve(&self) -> Result<SlotGuard<'_>, FileError> {
        let mut slots = self.0.slots.lock();
        let limit = slots.limit();
        let slot = slots.reserve().ok_or(FileError::TooManyOpen { limit })?;
        Ok(SlotGuard { slots: &self.0.slots, slot: Some(slot) })
    }

    /// Writes what is pending and closes the file: `fclose`. The handle is stale afterwards,
    /// whatever the result. Waits for calls on this file that are under way.
    ///
    /// # Errors
    ///
    /// If the handle is not an open file, or not all that was written reached the file; that is
    /// lost then. What the system reports only after the last write (a network file system may) is
    /// not seen.
    pub fn close(&self, handle: Handle) -> Result<(), FileError> {
        let taken = self.0.slots.lock().take(handle);
        match taken {
            Some((slot, file)) => self.0.close(slot, &file),
            None => self.counted(Err(FileError::BadHandle { word: handle.word() })),
        }
    }

    /// Closes all files, as dropping the table does. The standard streams stay.
    ///
    /// # Errors
    ///
    /// The first error of a file that could not be written in full; all are closed nevertheless.
    pub fn close_all(&self) -> Result<(), FileError> {
        self.0.close_all()
    }

    /// Reads up to `count` bytes, and never more than `limit`: `fread`.
    ///
    /// `limit` is what the caller is ready to hold in memory for one call. Bytes beyond it stay in
    /// the file for the next call, and neither indicator is set: to the device it is a short read.
    pub fn read(&self, stream: impl Into<StreamRef>, count: u64, limit: usize) -> BytesRead {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(limit);
        self.with(stream.into(), |stream| stream.read(count))
            .unwrap_or_else(|error| BytesRead { bytes: Vec::new(), error: Some(error) })
    }

    /// Reads a line into a buffer of `size` bytes, and never more than `limit`: `fgets`. Returns
    /// what C puts into the buffer: up to `size - 1` bytes, through the first newline, and a
    /// terminating zero. Zero bytes in the file are ordinary characters.
    ///
    /// `None` means that there was nothing to read: the end of the file, or no buffer (`size` of 0
    /// or below). A buffer of one byte gets an empty string without anything being read. A smaller
    /// `limit` acts as a smaller buffer.
    ///
    /// # Errors
    ///
    /// If reading fails, also after a part of the line, which is lost as in C.
    pub fn read_line(
        &self,
        stream: impl Into<StreamRef>,
        size: i32,
        limit: usize,
    ) -> Result<Option<Vec<u8>>, FileError> {
        let size = usize::try_from(size).unwrap_or(0).min(limit);
        self.with(stream.into(), |stream| {
            let line = match size {
                0 => return Ok(None),
                1 => Some(Vec::new()),
                _ => stream.line(size - 1)?,
            };
            Ok(line.map(|mut line| {
                line.push(0);
                line
            }))
        })?
    }

    /// Writes `bytes`: `fwrite`.
    ///
    /// Standard streams pass them on and flush before this returns. Files keep up to 4096 bytes
    /// back, so an error may be reported by a later call.
    pub fn write(&self, stream: impl Into<StreamRef>, bytes: &[u8]) -> BytesWritten {
        self.with(stream.into(), |stream| stream.write(bytes))
            .unwrap_or_else(|error| BytesWritten { count: 0, error: Some(error) })
    }

    /// Writes several pieces, each followed by `end`, and returns how much of each was written,
    /// newlines included. Nobody else's output comes between them: so a warp's lanes print together.
    ///
    /// The first piece that is cut short ends the writing; the following ones count 0.
    pub fn write_each<'a>(
        &self,
        stream: impl Into<StreamRef>,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        end: LineEnd,
    ) -> (Vec<u64>, Option<FileError>) {
        let (mut together, mut lengths) = (Vec::new(), Vec::new());
        for piece in pieces {
            let start = together.len();
            together.extend_from_slice(piece);
            if end == LineEnd::Newline {
                together.push(b'\n');
            }
            lengths.push((together.len() - start) as u64);
        }
        let BytesWritten { count: mut left, error } = self.write(stream, &together);
        for length in &mut lengths {
            *length = left.min(*length);
            left -= *length;
        }
        (lengths, error)
    }

    /// Whether the end-of-file indicator is set: `feof`.
    ///
    /// # Errors
    ///
    /// [`FileError::BadHandle`].
    pub fn is_at_end(&self, stream: impl Into<StreamRef>) -> Result<bool, FileError> {
        self.with(stream.into(), |stream| stream.indicators().0)
    }

    /// Whether the error indicator is set: `ferror`.
    ///
    /// # Errors
    ///
    /// [`FileError::BadHandle`].
    pub fn has_failed(&self, stream: impl Into<StreamRef>) -> Result<bool, FileError> {
        self.with(stream.into(), |stream| stream.indicators().1)
    }

    /// Clears both indicators: `clearerr`.
    ///
    /// # Errors
    ///
    /// [`FileError::BadHandle`].
    pub fn clear_indicators(&self, stream: impl Into<StreamRef>) -> Result<(), FileError> {
        self.with(stream.into(), |stream| stream.clear_indicators())
    }

    /// Moves the position: `fseek`. Success clears the end-of-file indicator and forgets pushed-back
    /// characters; failure changes nothing. Positions beyond the end are valid.
    ///
    /// # Errors
    ///
    /// If the stream has no position (standard streams never have), the new one would be negative,
    /// or pending bytes cannot be written.
    pub fn seek(
        &self,
        stream: impl Into<StreamRef>,
        offset: i64,
        whence: Whence,
    ) -> Result<(), FileError> {
        self.with(stream.into(), |stream| stream.seek(offset, whence))?
    }

    /// The position, in bytes from the start: `ftell`. Pushed-back characters count as unread. While
    /// appended bytes are pending it is the end of the file with them.
    ///
    /// # Errors
    ///
    /// If the stream has no position, or more is pushed back than there is before it.
    pub fn position(&self, stream: impl Into<StreamRef>) -> Result<u64, FileError> {
        self.with(stream.into(), |stream| stream.tell())?
    }

    /// Writes what is pending: `fflush`. A stream that was read from has its file moved to where
    /// reading stopped.
    ///
    /// # Errors
    ///
    /// If not all could be written. What is left stays pending.
    pub fn flush(&self, stream: impl Into<StreamRef>) -> Result<(), FileError> {
        self.with(stream.into(), |stream| stream.flush())?
    }

    /// Flushes standard output, standard error output and all files that are open for writing:
    /// `fflush(NULL)`.
    ///
    /// # Errors
    ///
    /// The first error; all others are flushed nevertheless. A closed standard stream is none.
    pub fn flush_all(&self) -> Result<(), FileError> {
        let mut result = Ok(());
        for output in [&self.0.standard.stdout, &self.0.standard.stderr] {
            match output.lock().flush() {
                Err(FileError::Closed) => {}
                flushed => result = result.and(flushed),
            }
        }
        let files: Vec<_> =
            self.0.slots.lock().iter().filter(|file| file.writes).cloned().collect();
        for file in files {
            if let Some(stream) = file.stream.lock().as_mut() {
                result = result.and(stream.flush());
            }
        }
        result
    }

    /// Makes a character the next one to be read, before those pushed back earlier: `ungetc`. Clears
    /// the end-of-file indicator. `EOF` (−1) is not a character; of others the low 8 bits count.
    ///
    /// # Errors
    ///
    /// If the stream cannot be read, the character is `EOF`, or 4096 are pushed back already.
    pub fn push_back(&self, stream: impl Into<StreamRef>, character: i32) -> Result<u8, FileError> {
        self.with(stream.into(), |stream| match character {
            -1 => Err(FileError::NotPushedBack),
            _ => stream.push_back(character as u8),
        })?
    }

    /// Removes a file or an empty directory: `remove`. A file that is open stays readable.
    ///
    /// # Errors
    ///
    /// If the path is not valid, the policy denies it, or the file system says no.
    pub fn remove(&self, path: &[u8]) -> Result<(), FileError> {
        self.counted(self.0.policy.remove(path))
    }

    /// Gives a file or directory another name, replacing what has it: `rename`.
    ///
    /// # Errors
    ///
    /// If a path is not valid, the policy denies it, or the file system says no.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        self.counted(self.0.policy.rename(from, to))
    }

    /// Runs `work` on a stream, under its lock.
    fn with<T>(
        &self,
        stream: StreamRef,
        work: impl FnOnce(&mut dyn Stream) -> T,
    ) -> Result<T, FileError> {
        let standard = &self.0.standard;
        match stream {
            StreamRef::Stdin => Ok(work(&mut *standard.stdin.lock())),
            StreamRef::Stdout => Ok(work(&mut *standard.stdout.lock())),
            StreamRef::Stderr => Ok(work(&mut *standard.stderr.lock())),
            StreamRef::File(handle) => {
                let file = self.0.slots.lock().get(handle).cloned();
                let done = file.and_then(|file| file.stream.lock().as_mut().map(|s| work(s)));
                self.counted(done.ok_or(FileError::BadHandle { word: handle.word() }))
            }
        }
    }

    fn counted<T>(&self, result: Result<T, FileError>) -> Result<T, FileError> {
        result.inspect_err(|error| self.0.counters.failed(error))
    }
}

impl Inner {
    fn close(&self, slot: Reserved, file: &OpenFile) -> Result<(), FileError> {
        let guard = SlotGuard { slots: &self.slots, slot: Some(slot) };
        let stream = file.stream.lock().take();
        let result = stream.map_or(Ok(()), FileStream::close);
        // Only now: a file that is still being written counts as open.
        drop(guard);
        self.counters.closed(&result);
        result
    }

    fn close_all(&self) -> Result<(), FileError> {
        let files = self.slots.lock().take_all();
        let mut result = Ok(());
        for (slot, file) in files {
            result = result.and(self.close(slot, &file));
        }
        result
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody is left to tell; the counters keep it.
        let _ = self.close_all();
    }
}

impl fmt::Debug for FileTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTable")
            .field("policy", &self.0.policy)
            .field("open_files", &self.open_files())
            .finish_non_exhaustive()
    }
}

/// A reserved slot that is given back unless it is filled.
struct SlotGuard<'a> {
    slots: &'a Mutex<Slots<OpenFile>>,
    slot: Option<Reserved>,
}

impl SlotGuard<'_> {
    fn fill(mut self, file: OpenFile) -> Handle {
        let slot = self.slot.take().expect("filled once only");
        self.slots.lock().fill(slot, file)
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.slots.lock().release(slot);
        }
    }
}

#[cfg(all(test, feature = "sandbox"))]
mod tests;
