//! The reading half of a C stream: indicators, pushed-back characters, `fread` and `fgets`.

use std::io::{self, BufRead, Read};

use super::FileError;

/// How many characters can be pushed back. C promises one.
pub(super) const PUSHBACK: usize = 4096;

/// What C keeps beside a stream's source.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Pushed-back characters, the next one last.
    pushed: Vec<u8>,
    /// The end-of-file indicator. While it is set nothing is read: C wants it sticky.
    pub(super) eof: bool,
    /// The error indicator.
    pub(super) error: bool,
}

impl Input {
    /// How many characters are pushed back.
    pub(super) fn pushed(&self) -> usize {
        self.pushed.len()
    }

    /// Forgets pushed-back characters, as repositioning does.
    pub(super) fn drop_pushed(&mut self) {
        self.pushed.clear();
    }

    pub(super) fn clear_indicators(&mut self) {
        (self.eof, self.error) = (false, false);
    }

    /// `fread`: up to `count` bytes, fewer at the end of the file or at an error.
    pub(super) fn read(
        &mut self,
        source: &mut dyn BufRead,
        count: usize,
    ) -> (Vec<u8>, Option<io::Error>) {
        let mut bytes = Vec::new();
        while bytes.len() < count
            && let Some(character) = self.pushed.pop()
        {
            bytes.push(character);
        }
        let missing = count - bytes.len();
        if missing == 0 || self.eof {
            return (bytes, None);
        }
        // Grows with what arrives: a device that asks for a terabyte costs what the file has.
        match source.take(missing as u64).read_to_end(&mut bytes) {
            Ok(taken) => self.eof = taken < missing,
            Err(error) => {
                self.error = true;
                return (bytes, Some(error));
            }
        }
        (bytes, None)
    }

    /// `fgets` without the terminating zero: up to `room` bytes, to the end of the line, or `None`
    /// at the end of the file. As in C an error loses the part of the line before it.
    pub(super) fn line(
        &mut self,
        source: &mut dyn BufRead,
        room: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        while line.len() < room && line.last() != Some(&b'\n') {
            if let Some(character) = self.pushed.pop() {
                line.push(character);
                continue;
            }
            if self.eof {
                break;
            }
            match source.fill_buf() {
                Ok([]) => self.eof = true,
                Ok(chunk) => {
                    let chunk = &chunk[..chunk.len().min(room - line.len())];
                    let end = chunk.iter().position(|&byte| byte == b'\n');
                    let chunk = &chunk[..end.map_or(chunk.len(), |end| end + 1)];
                    line.extend_from_slice(chunk);
                    let taken = chunk.len();
                    source.consume(taken);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.error = true;
                    return Err(error);
                }
            }
        }
        Ok((!line.is_empty()).then_some(line))
    }

    /// `ungetc`: the next character to be read. Clears the end-of-file indicator.
    pub(super) fn push_back(&mut self, character: u8) -> Result<u8, FileError> {
        if self.pushed.len() >= PUSHBACK {
            return Err(FileError::NotPushedBack);
        }
        self.pushed.push(character);
        self.eof = false;
        Ok(character)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads as the script says.
    struct Scripted(Vec<io::Result<&'static [u8]>>);

    impl io::Read for Scripted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let bytes = self.0.remove(0)?;
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        }
    }

    fn scripted(script: Vec<io::Result<&'static [u8]>>) -> io::BufReader<Scripted> {
        io::BufReader::new(Scripted(script))
    }

    fn failure(kind: io::ErrorKind) -> io::Result<&'static [u8]> {
        Err(kind.into())
    }

    #[test]
    fn a_read_gathers_what_comes_in_pieces_and_survives_interruption() {
        let mut input = Input::default();
        let mut source =
            scripted(vec![Ok(b"ab"), failure(io::ErrorKind::Interrupted), Ok(b"c"), Ok(b"de")]);
        assert_eq!(input.read(&mut source, 4).0, b"abcd");
        assert!(!input.eof);
        assert_eq!(input.read(&mut source, 4).0, b"e");
        assert!(input.eof && !input.error);
    }

    #[test]
    fn the_end_is_sticky_even_if_more_arrives() {
        let mut input = Input::default();
        let mut source = scripted(vec![Ok(b"a"), Ok(b""), Ok(b"b")]);
        assert_eq!(input.read(&mut source, 2).0, b"a");
        assert_eq!(input.read(&mut source, 2).0, b"");
        assert_eq!(input.line(&mut source, 2).unwrap(), None);
        input.clear_indicators();
        assert_eq!(input.read(&mut source, 1).0, b"b");
    }

    #[test]
    fn an_error_keeps_what_a_read_had_and_loses_the_line() {
        let mut input = Input::default();
        let mut source = scripted(vec![Ok(b"ab"), failure(io::ErrorKind::TimedOut), Ok(b"c\n")]);
        let (bytes, error) = input.read(&mut source, 5);
        assert_eq!(
            (bytes.as_slice(), error.unwrap().kind()),
            (&b"ab"[..], io::ErrorKind::TimedOut)
        );
        assert!(input.error && !input.eof);
        assert_eq!(input.line(&mut source, 9).unwrap().unwrap(), b"c\n");

        let mut source = scripted(vec![Ok(b"ab"), failure(io::ErrorKind::TimedOut)]);
        assert!(Input::default().line(&mut source, 9).is_err());
    }

    #[test]
    fn a_line_stops_after_its_newline_or_when_the_room_is_used() {
        let mut input = Input::default();
        let mut source = scripted(vec![Ok(b"one\nt\0"), Ok(b"wo\nrest")]);
        assert_eq!(input.line(&mut source, 99).unwrap().unwrap(), b"one\n");
        assert_eq!(input.line(&mut source, 3).unwrap().unwrap(), b"t\0w");
        assert_eq!(input.line(&mut source, 99).unwrap().unwrap(), b"o\n");
        assert_eq!(input.line(&mut source, 99).unwrap().unwrap(), b"rest");
        assert!(input.eof);
        assert_eq!(input.line(&mut source, 99).unwrap(), None);
    }

    #[test]
    fn pushed_back_characters_come_first_last_one_first() {
        let mut input = Input::default();
        let mut source = scripted(vec![Ok(b"c\n")]);
        input.push_back(b'b').unwrap();
        input.push_back(b'a').unwrap();
        assert_eq!(input.line(&mut source, 9).unwrap().unwrap(), b"abc\n");
        input.push_back(b'\n').unwrap();
        assert_eq!(input.line(&mut source, 9).unwrap().unwrap(), b"\n");
        assert_eq!(source.buffer(), b"", "nothing was read beyond the pushed-back newline");
    }

    #[test]
    fn pushing_back_clears_the_end_and_has_a_bound() {
        let mut input = Input { eof: true, ..Input::default() };
        input.push_back(0xff).unwrap();
        assert!(!input.eof);
        for _ in 1..PUSHBACK {
            input.push_back(b'x').unwrap();
        }
        assert!(matches!(input.push_back(b'x'), Err(FileError::NotPushedBack)));
    }

    #[test]
    fn a_huge_count_allocates_no_more_than_there_is() {
        let mut input = Input::default();
        let (bytes, _) = input.read(&mut &b"small"[..], usize::MAX);
        assert_eq!(bytes, b"small");
        assert!(bytes.capacity() <= 4096);
    }
}
