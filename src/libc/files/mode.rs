//! How a file is opened: the mode argument of `fopen`.

use super::FileError;

/// A mode of `fopen`, checked.
///
/// ```text
/// mode = ("r" | "w" | "a"), then any order of: "+"  "b"  "e"  "x" (not with "r"), each at most once
/// ```
///
/// `b` and `e` say nothing new: bytes are never translated, and files are never inherited by child
/// processes. Whatever C leaves open (other letters, doubled letters, `x` with `r`) is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    purpose: Purpose,
    update: bool,
    exclusive: bool,
}

/// The first letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Read,
    Write,
    Append,
}

impl Mode {
    /// Reads a mode, without its terminating zero.
    ///
    /// # Errors
    ///
    /// [`FileError::BadMode`].
    pub fn parse(text: &[u8]) -> Result<Self, FileError> {
        let (first, letters) = text.split_first().ok_or(FileError::BadMode)?;
        let purpose = match first {
            b'r' => Purpose::Read,
            b'w' => Purpose::Write,
            b'a' => Purpose::Append,
            _ => return Err(FileError::BadMode),
        };
        for (at, letter) in letters.iter().enumerate() {
            let known = matches!(letter, b'+' | b'b' | b'e' | b'x');
            if !known || letters[..at].contains(letter) {
                return Err(FileError::BadMode);
            }
        }
        let exclusive = letters.contains(&b'x');
        if exclusive && purpose == Purpose::Read {
            return Err(FileError::BadMode);
        }
        Ok(Mode { purpose, update: letters.contains(&b'+'), exclusive })
    }

    /// Whether the stream can be read.
    pub fn reads(self) -> bool {
        self.update || self.purpose == Purpose::Read
    }

    /// Whether the stream can be written.
    pub fn writes(self) -> bool {
        self.update || self.purpose != Purpose::Read
    }

    /// Whether all writing goes to the end of the file, wherever the position is.
    pub fn appends(self) -> bool {
        self.purpose == Purpose::Append
    }

    /// Whether what was in the file is thrown away.
    pub fn truncates(self) -> bool {
        self.purpose == Purpose::Write && !self.exclusive
    }

    /// Whether a missing file is made.
    pub fn creates(self) -> bool {
        self.purpose != Purpose::Read
    }

    /// Whether a file that exists is an error.
    pub fn is_exclusive(self) -> bool {
        self.exclusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_of_c_are_understood() {
        // reads, writes, appends, truncates, creates
        for (text, expected) in [
            ("r", [true, false, false, false, false]),
            ("w", [false, true, false, true, true]),
            ("a", [false, true, true, false, true]),
            ("r+", [true, true, false, false, false]),
            ("w+", [true, true, false, true, true]),
            ("a+", [true, true, true, false, true]),
            ("rb", [true, false, false, false, false]),
            ("rb+", [true, true, false, false, false]),
            ("r+b", [true, true, false, false, false]),
            ("re", [true, false, false, false, false]),
            ("w+bx", [true, true, false, false, true]),
            ("wx", [false, true, false, false, true]),
            ("ax", [false, true, true, false, true]),
        ] {
            let mode = Mode::parse(text.as_bytes()).expect(text);
            let found =
                [mode.reads(), mode.writes(), mode.appends(), mode.truncates(), mode.creates()];
            assert_eq!(found, expected, "{text}");
            assert_eq!(mode.is_exclusive(), text.contains('x'), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "+",
            "b",
            "x",
            "R",
            "rw",
            "r++",
            "rbb",
            "rx",
            "rt",
            "r,ccs=UTF-8",
            " r",
            "r\0",
            "q",
        ] {
            assert!(matches!(Mode::parse(text.as_bytes()), Err(FileError::BadMode)), "{text:?}");
        }
    }
}
