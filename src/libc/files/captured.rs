//! Output that the host program looks at.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// A buffer that collects what device code prints. Clones share it.
///
/// What one call writes lies together, also when several streams write to the same buffer.
///
/// ```
/// use std::io::Write;
/// use hostcall::libc::files::Captured;
/// let mut captured = Captured::new();
/// captured.clone().write_all(b"hello")?;
/// assert_eq!(captured.take(), b"hello");
/// assert!(captured.contents().is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Captured {
    bytes: Arc<Mutex<Vec<u8>>>,
    limit: usize,
}

impl Captured {
    /// A buffer without a bound. Device code that prints for ever fills the memory.
    pub fn new() -> Self {
        Captured::bounded(usize::MAX)
    }

    /// A buffer that holds at most `bytes` bytes. A full one takes nothing, so the device sees short
    /// writes and the error indicator; [`take`](Self::take) makes room again.
    pub fn bounded(bytes: usize) -> Self {
        Captured { bytes: Arc::default(), limit: bytes }
    }

    /// What was collected, as a copy.
    pub fn contents(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }

    /// What was collected, leaving the buffer empty.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock())
    }

    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        self.bytes.lock().len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Captured {
    fn default() -> Self {
        Captured::new()
    }
}

/// The buffer, kept from other writers.
pub(super) struct Locked<'a> {
    bytes: MutexGuard<'a, Vec<u8>>,
    limit: usize,
}

impl Captured {
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { bytes: self.bytes.lock(), limit: self.limit }
    }
}

impl Write for Locked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.limit.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("len", &self.len()).finish_non_exhaustive()
    }
}
