//! The C library's view: device words in, C's results out.

use super::{BytesRead, FileError, FileTable, Handle, LineEnd, StreamRef, Whence};

/// `EOF`, and what most functions return when they failed.
const FAILED: i32 = -1;

/// The operations of a [`FileTable`] with the arguments that device code sends and the results that
/// C's functions return. The only place where an error becomes a C value.
///
/// Words named `tagged` may mean a standard stream, others are handles always ([`StreamRef`]). A
/// word that is no open file, which is undefined behaviour in C, is an error here:
///
/// | result | of | where C's is an error |
/// |---|---|---|
/// | handle, 0 | `fopen` | 0 |
/// | number of bytes | `fwrite`, `puts` | a short count |
/// | bytes | `fread` | fewer bytes |
/// | string or nothing | `fgets` | nothing |
/// | 0, −1 | `fclose`, `fseek`, `fflush`, `remove`, `rename` | −1 |
/// | position, −1 | `ftell` | −1 |
/// | character, −1 | `ungetc` | −1 |
/// | 1, 0 | `feof`, `ferror` | 1: a loop until either ends |
#[derive(Clone, Copy, Debug)]
pub struct CFiles<'a> {
    files: &'a FileTable,
}

impl<'a> CFiles<'a> {
    pub(super) fn new(files: &'a FileTable) -> Self {
        CFiles { files }
    }

    /// `fopen`: the handle's word, or 0. Both strings come without their terminating zeros.
    pub fn fopen(self, path: &[u8], mode: &[u8]) -> u64 {
        self.files.open(path, mode).map_or(0, Handle::word)
    }

    /// `fclose`: 0, or −1 if something that was written is lost or the word is no open file.
    pub fn fclose(self, handle: u64) -> i32 {
        status(self.files.close(Handle::from_word(handle)))
    }

    /// `fread`: up to `count` bytes, at most `limit`. The device's result is their number.
    pub fn fread(self, tagged: u64, count: u64, limit: usize) -> Vec<u8> {
        let BytesRead { bytes, .. } = self.files.read(StreamRef::from_tagged(tagged), count, limit);
        bytes
    }

    /// `fgets` into `size` bytes, at most `limit`: the string with its terminating zero, or `None`
    /// for the null pointer. The wire carries `size` as a word whose low 32 bits are C's `int`.
    pub fn fgets(self, tagged: u64, size: i32, limit: usize) -> Option<Vec<u8>> {
        self.files.read_line(StreamRef::from_tagged(tagged), size, limit).unwrap_or(None)
    }

    /// `fwrite`: how many of the bytes were written.
    pub fn fwrite(self, stream: StreamRef, bytes: &[u8]) -> u64 {
        self.files.write(stream, bytes).count
    }

    /// `puts`: how many bytes were written, with the newline, which follows only if all of `bytes`
    /// was written.
    pub fn puts(self, stream: StreamRef, bytes: &[u8]) -> u64 {
        self.fwrite_each(stream, [bytes], LineEnd::Newline).first().copied().unwrap_or(0)
    }

    /// Writes the pieces of several lanes together; how much of each was written, in their order.
    pub fn fwrite_each<'p>(
        self,
        stream: StreamRef,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        end: LineEnd,
    ) -> Vec<u64> {
        self.files.write_each(stream, pieces, end).0
    }

    /// `feof`: 1 if the end-of-file indicator is set, else 0.
    pub fn feof(self, tagged: u64) -> i32 {
        i32::from(self.files.is_at_end(StreamRef::from_tagged(tagged)).unwrap_or(true))
    }

    /// `ferror`: 1 if the error indicator is set, else 0.
    pub fn ferror(self, tagged: u64) -> i32 {
        i32::from(self.files.has_failed(StreamRef::from_tagged(tagged)).unwrap_or(true))
    }

    /// `clearerr`, which has no result.
    pub fn clearerr(self, tagged: u64) {
        // Of a word that is no open file there is nothing to clear.
        let _ = self.files.clear_indicators(StreamRef::from_tagged(tagged));
    }

    /// `fseek`: 0, or −1. `whence` is 0 from the start, 1 from here, 2 from the end.
    pub fn fseek(self, tagged: u64, offset: i64, whence: i32) -> i32 {
        let stream = StreamRef::from_tagged(tagged);
        status(Whence::from_c(whence).and_then(|whence| self.files.seek(stream, offset, whence)))
    }

    /// `ftell`: the position in bytes, or −1.
    pub fn ftell(self, tagged: u64) -> i64 {
        let position = self.files.position(StreamRef::from_tagged(tagged));
        position.ok().and_then(|position| i64::try_from(position).ok()).unwrap_or(-1)
    }

    /// `fflush`: 0, or −1. A word of 0 is C's null pointer: all streams.
    pub fn fflush(self, tagged: u64) -> i32 {
        status(match tagged {
            0 => self.files.flush_all(),
            _ => self.files.flush(StreamRef::from_tagged(tagged)),
        })
    }

    /// `ungetc`: the character as an unsigned byte, or −1.
    pub fn ungetc(self, character: i32, tagged: u64) -> i32 {
        let pushed = self.files.push_back(StreamRef::from_tagged(tagged), character);
        pushed.map_or(FAILED, i32::from)
    }

    /// `remove`: 0, or −1. The path comes without its terminating zero.
    pub fn remove(self, path: &[u8]) -> i32 {
        status(self.files.remove(path))
    }

    /// `rename`: 0, or −1. Both paths come without their terminating zeros.
    pub fn rename(self, from: &[u8], to: &[u8]) -> i32 {
        status(self.files.rename(from, to))
    }
}

fn status(result: Result<(), FileError>) -> i32 {
    result.map_or(FAILED, |()| 0)
}
