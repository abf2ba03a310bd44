//! Where the device's standard streams lead.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};

use parking_lot::Mutex;

use super::input::Input as InputState;
use super::stream::{BytesRead, BytesWritten, Stream, write_most};
use super::{Captured, FileError};

/// Where standard input comes from.
#[non_exhaustive]
pub enum Input {
    /// The process's own standard input. Nothing is taken from it beyond what device code asked
    /// for. A read waits for a terminal as C's does: serve it where waiting is allowed.
    Process,
    /// Any reader; see [`Input::reader`].
    Reader(Box<dyn BufRead + Send>),
    /// Nothing: reading finds the end of the file.
    Empty,
    /// Closed: reading is an error.
    Closed,
}

/// Where standard output or standard error output goes.
#[non_exhaustive]
pub enum Output {
    /// The process's own stream of that name. A call's output is not mixed with what other threads
    /// of the process print.
    Process,
    /// Any writer; see [`Output::writer`].
    Writer(Box<dyn Write + Send>),
    /// A buffer that the host program looks at.
    Captured(Captured),
    /// Nowhere: writing succeeds.
    Null,
    /// Closed: writing is an error.
    Closed,
}

/// Where the three standard streams of device code lead.
///
/// By default output goes to the process's own streams and input is empty: device code cannot take
/// what a user types at the host program.
///
/// ```
/// use hostcall::libc::files::{Captured, Input, Output, Standard};
/// let printed = Captured::new();
/// let standard = Standard::default()
///     .stdin(Input::reader(&b"1 2 3\n"[..]))
///     .stdout(Output::Captured(printed.clone()));
/// ```
#[derive(Debug)]
#[must_use]
pub struct Standard {
    stdin: Input,
    stdout: Output,
    stderr: Output,
}

impl Input {
    /// Standard input from a reader. It is buffered, so more may be taken from it than device code
    /// asked for.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        Input::Reader(Box::new(BufReader::new(reader)))
    }
}

impl Output {
    /// Output to a writer. It is flushed after each call.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Output::Writer(Box::new(writer))
    }
}

impl From<Captured> for Output {
    fn from(captured: Captured) -> Self {
        Output::Captured(captured)
    }
}

impl Default for Standard {
    fn default() -> Self {
        Standard { stdin: Input::Empty, stdout: Output::Process, stderr: Output::Process }
    }
}

impl Standard {
    /// All three streams of the process itself, as a C program has them.
    pub fn process() -> Self {
        Standard::default().stdin(Input::Process)
    }

    /// No input, and output that goes nowhere.
    pub fn null() -> Self {
        Standard::default().stdout(Output::Null).stderr(Output::Null)
    }

    /// Sets where standard input comes from.
    pub fn stdin(mut self, input: Input) -> Self {
        self.stdin = input;
        self
    }

    /// Sets where standard output goes.
    pub fn stdout(mut self, output: impl Into<Output>) -> Self {
        self.stdout = output.into();
        self
    }

    /// Sets where standard error output goes.
    pub fn stderr(mut self, output: impl Into<Output>) -> Self {
        self.stderr = output.into();
        self
    }

    pub(super) fn open(self) -> StandardStreams {
        StandardStreams {
            stdin: Mutex::new(InputStream { source: self.stdin, state: InputState::default() }),
            stdout: Mutex::new(OutputStream::new(self.stdout, || Box::new(io::stdout().lock()))),
            stderr: Mutex::new(OutputStream::new(self.stderr, || Box::new(io::stderr().lock()))),
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Input::Process => "Process",
            Input::Reader(_) => "Reader",
            Input::Empty => "Empty",
            Input::Closed => "Closed",
        })
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Process => f.write_str("Process"),
            Output::Writer(_) => f.write_str("Writer"),
            Output::Captured(captured) => captured.fmt(f),
            Output::Null => f.write_str("Null"),
            Output::Closed => f.write_str("Closed"),
        }
    }
}

/// The three streams at work, each under a lock of its own.
pub(super) struct StandardStreams {
    pub(super) stdin: Mutex<InputStream>,
    pub(super) stdout: Mutex<OutputStream>,
    pub(super) stderr: Mutex<OutputStream>,
}

pub(super) struct InputStream {
    source: Input,
    state: InputState,
}

impl InputStream {
    /// Runs `work` on the source.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&mut InputState, &mut dyn BufRead) -> T,
    ) -> Result<T, FileError> {
        Ok(match &mut self.source {
            Input::Process => work(&mut self.state, &mut io::stdin().lock()),
            Input::Reader(reader) => work(&mut self.state, reader),
            Input::Empty => work(&mut self.state, &mut io::empty()),
            Input::Closed => {
                self.state.error = true;
                return Err(FileError::Closed);
            }
        })
    }
}

impl Stream for InputStream {
    fn read(&mut self, count: usize) -> BytesRead {
        if count == 0 {
            return BytesRead::default();
        }
        match self.with(|state, source| state.read(source, count)) {
            Ok((bytes, error)) => BytesRead { bytes, error: error.map(FileError::from) },
            Err(error) => BytesRead { bytes: Vec::new(), error: Some(error) },
        }
    }

    fn line(&mut self, room: usize) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self.with(|state, source| state.line(source, room))??)
    }

    fn push_back(&mut self, character: u8) -> Result<u8, FileError> {
        match self.source {
            Input::Closed => Err(FileError::Closed),
            _ => self.state.push_back(character),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> BytesWritten {
        if bytes.is_empty() {
            return BytesWritten::default();
        }
        self.state.error = true;
        BytesWritten { count: 0, error: Some(FileError::NotWritable) }
    }

    fn flush(&mut self) -> Result<(), FileError> {
        Ok(())
    }

    fn indicators(&self) -> (bool, bool) {
        (self.state.eof, self.state.error)
    }

    fn clear_indicators(&mut self) {
        self.state.clear_indicators();
    }
}

/// Standard output or standard error output. Each call is passed on and flushed before it returns,
/// so output appears while the kernel runs.
pub(super) struct OutputStream {
    output: Output,
    /// Locks the process's stream of this name.
    process: fn() -> Box<dyn Write>,
    error: bool,
}

impl OutputStream {
    fn new(output: Output, process: fn() -> Box<dyn Write>) -> Self {
        OutputStream { output, process, error: false }
    }

    fn with_sink<T>(&mut self, work: impl FnOnce(&mut dyn Write) -> T) -> Result<T, FileError> {
        Ok(match &mut self.output {
            Output::Process => work(&mut (self.process)()),
            Output::Writer(writer) => work(writer),
            Output::Captured(captured) => work(&mut captured.lock()),
            Output::Null => work(&mut io::sink()),
            Output::Closed => return Err(FileError::Closed),
        })
    }
}

impl Stream for OutputStream {
    fn read(&mut self, count: usize) -> BytesRead {
        if count == 0 {
            return BytesRead::default();
        }
        self.error = true;
        BytesRead { bytes: Vec::new(), error: Some(FileError::NotReadable) }
    }

    fn line(&mut self, _room: usize) -> Result<Option<Vec<u8>>, FileError> {
        self.error = true;
        Err(FileError::NotReadable)
    }

    fn push_back(&mut self, _character: u8) -> Result<u8, FileError> {
        Err(FileError::NotReadable)
    }

    fn write(&mut self, bytes: &[u8]) -> BytesWritten {
        if bytes.is_empty() {
            return BytesWritten::default();
        }
        let written = self.with_sink(|sink| {
            let (count, error) = write_most(sink, bytes);
            // Also what a short write got through shall be seen.
            let flushed = sink.flush();
            BytesWritten {
                count: count as u64,
                error: error.or(flushed.err()).map(FileError::from),
            }
        });
        let written = written.unwrap_or_else(|error| BytesWritten { count: 0, error: Some(error) });
        self.error |= written.error.is_some();
        written
    }

    fn flush(&mut self) -> Result<(), FileError> {
        match self.with_sink(|sink| sink.flush()) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                self.error = true;
                Err(error.into())
            }
            Err(error) => Err(error),
        }
    }

    fn indicators(&self) -> (bool, bool) {
        (false, self.error)
    }

    fn clear_indicators(&mut self) {
        self.error = false;
    }
}

#[cfg(test)]
mod tests;
