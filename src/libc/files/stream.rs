//! A file as C's `FILE` presents it: buffered, with indicators and push-back.

use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use super::input::Input;
use super::{FileError, Mode};

/// Size of a stream's two buffers, in bytes.
const BUFFER: usize = 4096;

/// Where an offset counts from: the third argument of `fseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The start of the file (0).
    Start,
    /// The position of the stream (1).
    Here,
    /// The end of the file (2).
    End,
}

impl Whence {
    /// Reads the value that C gives it.
    ///
    /// # Errors
    ///
    /// [`FileError::BadWhence`].
    pub fn from_c(whence: i32) -> Result<Self, FileError> {
        match whence {
            0 => Ok(Whence::Start),
            1 => Ok(Whence::Here),
            2 => Ok(Whence::End),
            _ => Err(FileError::BadWhence { whence }),
        }
    }
}

/// How much a read got, and what ended it early.
#[derive(Debug, Default)]
#[must_use]
pub struct BytesRead {
    /// The bytes, in order.
    pub bytes: Vec<u8>,
    /// Why there are not more, if it was an error; `None` at the end of the file and at the
    /// caller's limit.
    pub error: Option<FileError>,
}

/// How much a write put into its stream, and what ended it early.
#[derive(Debug, Default)]
#[must_use]
pub struct BytesWritten {
    /// How many bytes were taken, from the first one on.
    pub count: u64,
    /// What went wrong. With a full count: the bytes were taken, but could not be passed on yet.
    pub error: Option<FileError>,
}

/// What every kind of stream can be asked. Streams without a direction or a position answer as C
/// streams do: with an error, and the error indicator where C sets it.
pub(super) trait Stream {
    /// Reads up to `count` bytes.
    fn read(&mut self, count: usize) -> BytesRead;
    /// Reads to the end of the line, at most `room` bytes.
    fn line(&mut self, room: usize) -> Result<Option<Vec<u8>>, FileError>;
    /// Makes `character` the next one to be read.
    fn push_back(&mut self, character: u8) -> Result<u8, FileError>;
    /// Writes all of `bytes`, or as much as goes.
    fn write(&mut self, bytes: &[u8]) -> BytesWritten;
    /// Passes on what was written.
    fn flush(&mut self) -> Result<(), FileError>;
    /// Moves the position.
    fn seek(&mut self, _offset: i64, _whence: Whence) -> Result<(), FileError> {
        Err(FileError::NotSeekable)
    }
    /// The position.
    fn tell(&mut self) -> Result<u64, FileError> {
        Err(FileError::NotSeekable)
    }
    /// The indicators for the end of the file and for errors.
    fn indicators(&self) -> (bool, bool);
    /// Clears both.
    fn clear_indicators(&mut self);
}

/// An open file.
///
/// Both directions have a buffer, and at most one of them is in use: a change of direction first
/// writes what is pending, or moves the file to where reading stopped. (Where the file cannot be
/// moved there are two independent directions, and both buffers stay.) So nothing is lost even in
/// the sequences that C leaves undefined, a read directly after a write and the reverse.
///
/// Bytes that could not be written stay pending: flushing again tries again.
#[derive(Debug)]
pub(super) struct FileStream<F> {
    file: BufReader<F>,
    mode: Mode,
    input: Input,
    /// Written, and not yet in the file.
    pending: Vec<u8>,
}

impl<F: Read + Write + Seek> FileStream<F> {
    pub(super) fn new(mut file: F, mode: Mode) -> Self {
        if mode.appends() && !mode.reads() {
            // C leaves open where such a stream starts; glibc and musl start it at the end. What
            // cannot be moved has no position to be wrong.
            let _ = file.seek(SeekFrom::End(0));
        }
        let file = BufReader::with_capacity(BUFFER, file);
        FileStream { file, mode, input: Input::default(), pending: Vec::new() }
    }

    /// Writes what is pending and closes the file.
    pub(super) fn close(mut self) -> Result<(), FileError> {
        self.write_pending()
    }

    fn write_pending(&mut self) -> Result<(), FileError> {
        let (written, error) = write_most(self.file.get_mut(), &self.pending);
        self.pending.drain(..written);
        match error {
            Some(error) => {
                self.input.error = true;
                Err(error.into())
            }
            None => Ok(()),
        }
    }

    /// Moves the file to where the stream is and forgets what was read ahead or pushed back. Does
    /// nothing to a file that cannot be moved.
    fn stop_reading(&mut self) -> Result<(), FileError> {
        if self.file.buffer().is_empty() && self.input.pushed() == 0 {
            return Ok(());
        }
        let position = match self.read_position() {
            // Pushed back before the start of the file: the start is as far as it goes.
            Ok(position) => position.max(0),
            Err(FileError::NotSeekable) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.file.seek(SeekFrom::Start(position as u64))?;
        self.input.drop_pushed();
        Ok(())
    }

    /// Where the next byte comes from; negative if more is pushed back than there is before it.
    fn read_position(&mut self) -> Result<i64, FileError> {
        let ahead = self.file.buffer().len() + self.input.pushed();
        // Not `BufReader::stream_position`: it panics on devices that are always at 0.
        let position = self.file.get_mut().stream_position()?;
        i64::try_from(position).map(|at| at - ahead as i64).map_err(|_| FileError::BadPosition)
    }

    fn start_writing(&mut self) -> Result<(), FileError> {
        let ready =
            if self.mode.writes() { self.stop_reading() } else { Err(FileError::NotWritable) };
        ready.inspect_err(|_| self.input.error = true)
    }

    fn start_reading(&mut self) -> Result<(), FileError> {
        if !self.mode.reads() {
            self.input.error = true;
            return Err(FileError::NotReadable);
        }
        self.write_pending()
    }

    fn write_buffered(&mut self, mut bytes: &[u8]) -> BytesWritten {
        let mut count = 0;
        if !self.pending.is_empty() {
            // A device may send its output byte by byte: fill the buffer before passing it on.
            let (fits, rest) =
                bytes.split_at(bytes.len().min(BUFFER.saturating_sub(self.pending.len())));
            self.pending.extend_from_slice(fits);
            (count, bytes) = (fits.len() as u64, rest);
            if bytes.is_empty() {
                return BytesWritten { count, error: None };
            }
            if let Err(error) = self.write_pending() {
                return BytesWritten { count, error: Some(error) };
            }
        }
        if bytes.len() < BUFFER {
            self.pending.extend_from_slice(bytes);
            return BytesWritten { count: count + bytes.len() as u64, error: None };
        }
        let (written, error) = write_most(self.file.get_mut(), bytes);
        self.input.error |= error.is_some();
        BytesWritten { count: count + written as u64, error: error.map(FileError::from) }
    }
}

impl<F: Read + Write + Seek> Stream for FileStream<F> {
    fn read(&mut self, count: usize) -> BytesRead {
        if count == 0 {
            return BytesRead::default();
        }
        if let Err(error) = self.start_reading() {
            return BytesRead { bytes: Vec::new(), error: Some(error) };
        }
        let (bytes, error) = self.input.read(&mut self.file, count);
        BytesRead { bytes, error: error.map(FileError::from) }
    }

    fn line(&mut self, room: usize) -> Result<Option<Vec<u8>>, FileError> {
        self.start_reading()?;
        Ok(self.input.line(&mut self.file, room)?)
    }

    fn push_back(&mut self, character: u8) -> Result<u8, FileError> {
        if !self.mode.reads() {
            return Err(FileError::NotReadable);
        }
        self.write_pending()?;
        self.input.push_back(character)
    }

    fn write(&mut self, bytes: &[u8]) -> BytesWritten {
        if bytes.is_empty() {
            return BytesWritten::default();
        }
        match self.start_writing() {
            Ok(()) => self.write_buffered(bytes),
            Err(error) => BytesWritten { count: 0, error: Some(error) },
        }
    }

    fn flush(&mut self) -> Result<(), FileError> {
        self.write_pending()?;
        // POSIX: the position of an input stream becomes that of the file.
        self.stop_reading()
    }

    fn seek(&mut self, offset: i64, whence: Whence) -> Result<(), FileError> {
        self.write_pending()?;
        let target = match whence {
            Whence::Start => SeekFrom::Start(position(offset)?),
            Whence::End => SeekFrom::End(offset),
            Whence::Here => {
                let target = self.read_position()?.checked_add(offset);
                SeekFrom::Start(position(target.ok_or(FileError::BadPosition)?)?)
            }
        };
        self.file.seek(target)?;
        self.input.drop_pushed();
        self.input.eof = false;
        Ok(())
    }

    fn tell(&mut self) -> Result<u64, FileError> {
        if self.pending.is_empty() {
            return position(self.read_position()?);
        }
        // Where appended bytes will lie depends on nothing but the end of the file; the position
        // that is given up here has no meaning before they are written.
        let here = if self.mode.appends() { SeekFrom::End(0) } else { SeekFrom::Current(0) };
        let start = self.file.get_mut().seek(here)?;
        Ok(start.saturating_add(self.pending.len() as u64))
    }

    fn indicators(&self) -> (bool, bool) {
        (self.input.eof, self.input.error)
    }

    fn clear_indicators(&mut self) {
        self.input.clear_indicators();
    }
}

fn position(offset: i64) -> Result<u64, FileError> {
    u64::try_from(offset).map_err(|_| FileError::BadPosition)
}

/// Writes as much as goes.
pub(super) fn write_most(
    sink: &mut (impl Write + ?Sized),
    bytes: &[u8],
) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match sink.write(&bytes[written..]) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            // A sink that claims more than it was given took all of it.
            Ok(taken) => written = (written + taken).min(bytes.len()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

#[cfg(test)]
mod tests;
