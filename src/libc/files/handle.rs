//! What the device holds in place of a `FILE*`.

use std::fmt;

/// The name of an open file: the word that device code carries as its `FILE*`.
///
/// It is a key into the table that gave it out, never an address. Any word makes a `Handle`; only
/// the table knows whether it names an open file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

impl Handle {
    /// The handle that a device sent.
    pub const fn from_word(word: u64) -> Self {
        Handle(word)
    }

    /// The word to send to the device. Its low two bits are 0 for every handle of a table, and it
    /// is never 0.
    pub const fn word(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:#x})", self.0)
    }
}

/// Which stream the device means (PROTOCOL.md §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamRef {
    /// Standard input.
    Stdin,
    /// Standard output.
    Stdout,
    /// Standard error output.
    Stderr,
    /// A file that the device opened.
    File(Handle),
}

impl StreamRef {
    /// The stream of a tagged word: its low two bits are 1, 2, 3 for the standard streams, whatever
    /// the other bits are, and 0 for a handle.
    ///
    /// Tagged are the words of read, fgets, feof, ferror, clearerr, fseek, ftell, fflush, ungetc.
    pub const fn from_tagged(word: u64) -> Self {
        match word & 3 {
            1 => StreamRef::Stdin,
            2 => StreamRef::Stdout,
            3 => StreamRef::Stderr,
            _ => StreamRef::File(Handle(word)),
        }
    }

    /// The stream of an untagged word, which is a handle always.
    ///
    /// Untagged are the words of write-to-stream, fclose, printf-to-stream. A device that passes
    /// one of its standard streams there sends an address of its own, which is no handle.
    pub const fn from_untagged(word: u64) -> Self {
        StreamRef::File(Handle(word))
    }
}

impl From<Handle> for StreamRef {
    fn from(handle: Handle) -> Self {
        StreamRef::File(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_two_bits_of_a_tagged_word_choose_the_stream() {
        for upper in [0, 0x7f00_1234_5678_9abc, !3] {
            assert_eq!(StreamRef::from_tagged(upper | 1), StreamRef::Stdin);
            assert_eq!(StreamRef::from_tagged(upper | 2), StreamRef::Stdout);
            assert_eq!(StreamRef::from_tagged(upper | 3), StreamRef::Stderr);
            assert_eq!(StreamRef::from_tagged(upper), StreamRef::File(Handle(upper)));
        }
    }

    #[test]
    fn an_untagged_word_is_a_handle_whatever_its_low_bits() {
        for word in [0, 1, 2, 3, 0xdead_beef] {
            assert_eq!(StreamRef::from_untagged(word), StreamRef::File(Handle(word)));
        }
    }
}
