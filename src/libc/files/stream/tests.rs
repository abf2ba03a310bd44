//! A file under a stream that can be made to fail, and what C says about each operation.

use std::io::Cursor;

use super::*;

/// A file in memory, with faults.
#[derive(Default)]
struct Fake {
    content: Cursor<Vec<u8>>,
    appends: bool,
    /// A pipe: no positions.
    pipe: bool,
    /// How many bytes it still takes.
    room: Option<usize>,
    reads_fail: bool,
}

impl Read for Fake {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.reads_fail {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            self.content.read(buffer)
        }
    }
}

impl Write for Fake {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        if taken == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.appends {
            self.content.seek(SeekFrom::End(0))?;
        }
        self.room = self.room.map(|room| room - taken);
        self.content.write(&bytes[..taken])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Fake {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.pipe { Err(io::ErrorKind::NotSeekable.into()) } else { self.content.seek(to) }
    }
}

fn open(mode: &str, content: &[u8]) -> FileStream<Fake> {
    let mode = Mode::parse(mode.as_bytes()).unwrap();
    let content = Cursor::new(if mode.truncates() { Vec::new() } else { content.to_vec() });
    FileStream::new(Fake { content, appends: mode.appends(), ..Fake::default() }, mode)
}

fn content(stream: &FileStream<Fake>) -> &[u8] {
    stream.file.get_ref().content.get_ref()
}

fn fake(stream: &mut FileStream<Fake>) -> &mut Fake {
    stream.file.get_mut()
}

fn read(stream: &mut FileStream<Fake>, count: usize) -> Vec<u8> {
    stream.read(count).bytes
}

fn write(stream: &mut FileStream<Fake>, bytes: &[u8]) -> u64 {
    stream.write(bytes).count
}

#[test]
fn a_write_waits_in_the_buffer_until_it_is_flushed() {
    let mut stream = open("w", b"old");
    assert_eq!(write(&mut stream, b"new"), 3);
    assert_eq!(content(&stream), b"");
    assert_eq!(stream.tell().unwrap(), 3);
    stream.flush().unwrap();
    assert_eq!(content(&stream), b"new");
}

#[test]
fn the_buffer_is_bounded_and_keeps_the_order() {
    let mut stream = open("w", b"");
    let mut expected = Vec::new();
    for length in [1, 4095, 1, 5000, 10, 20_000, 4096, 4095] {
        let bytes = vec![length as u8; length];
        assert_eq!(write(&mut stream, &bytes), length as u64);
        assert!(stream.pending.len() <= BUFFER);
        expected.extend(bytes);
        assert_eq!(stream.tell().unwrap(), expected.len() as u64);
    }
    stream.flush().unwrap();
    assert!(content(&stream) == expected);
}

#[test]
fn reading_what_was_opened_for_writing_only_is_an_error() {
    let mut stream = open("w", b"");
    assert_eq!(read(&mut stream, 0), b"");
    assert_eq!(stream.indicators(), (false, false), "nothing was asked for");
    let result = stream.read(1);
    assert!(matches!(result.error, Some(FileError::NotReadable)) && result.bytes.is_empty());
    assert_eq!(stream.indicators(), (false, true));
    stream.clear_indicators();
    assert!(matches!(stream.line(9), Err(FileError::NotReadable)));
    assert_eq!(stream.indicators(), (false, true));
    assert!(matches!(stream.push_back(b'a'), Err(FileError::NotReadable)));
}

#[test]
fn writing_what_was_opened_for_reading_only_is_an_error() {
    let mut stream = open("r", b"abc");
    assert_eq!(write(&mut stream, b""), 0);
    assert_eq!(stream.indicators(), (false, false));
    let result = stream.write(b"x");
    assert!(matches!(result.error, Some(FileError::NotWritable)) && result.count == 0);
    assert_eq!(stream.indicators(), (false, true));
    assert_eq!(read(&mut stream, 3), b"abc", "reading goes on");
    assert_eq!(stream.indicators(), (false, true), "the indicator is sticky");
}

#[test]
fn the_end_is_seen_by_the_read_that_does_not_get_all() {
    let mut stream = open("r", b"abc");
    assert_eq!(read(&mut stream, 3), b"abc");
    assert_eq!(stream.indicators(), (false, false));
    assert_eq!(read(&mut stream, 1), b"");
    assert_eq!(stream.indicators(), (true, false));
    stream.seek(0, Whence::Here).unwrap();
    assert_eq!(stream.indicators(), (false, false));
}

#[test]
fn appending_goes_to_the_end_whatever_the_position_is() {
    let mut stream = open("a+", b"0123");
    assert_eq!((stream.tell().unwrap(), read(&mut stream, 2)), (0, b"01".to_vec()));
    stream.seek(1, Whence::Start).unwrap();
    write(&mut stream, b"ab");
    assert_eq!(stream.tell().unwrap(), 6);
    stream.seek(1, Whence::Start).unwrap();
    assert_eq!(content(&stream), b"0123ab");
    assert_eq!(read(&mut stream, 9), b"123ab");
    assert_eq!(open("a", b"0123").tell().unwrap(), 4);
}

#[test]
fn positions_count_from_start_here_and_end() {
    let mut stream = open("r", b"0123456789");
    for (offset, whence, next) in
        [(3, Whence::Start, b"3"), (2, Whence::Here, b"6"), (-3, Whence::Here, b"4")]
    {
        stream.seek(offset, whence).unwrap();
        assert_eq!(read(&mut stream, 1), next);
    }
    stream.seek(-1, Whence::End).unwrap();
    assert_eq!(read(&mut stream, 5), b"9");
    for (offset, whence) in [
        (-1, Whence::Start),
        (-11, Whence::End),
        (-11, Whence::Here),
        (i64::MIN, Whence::Here),
        (i64::MAX, Whence::Here),
        (i64::MIN, Whence::Start),
        (i64::MIN, Whence::End),
    ] {
        assert!(stream.seek(offset, whence).is_err(), "{offset} {whence:?}");
    }
    assert_eq!((stream.tell().unwrap(), stream.indicators()), (10, (true, false)));
    stream.seek(5, Whence::End).unwrap();
    assert_eq!((stream.tell().unwrap(), read(&mut stream, 1)), (15, Vec::new()));
}

#[test]
fn whence_is_zero_one_or_two() {
    let known = [Whence::Start, Whence::Here, Whence::End];
    for (number, whence) in (0..).zip(known) {
        assert_eq!(Whence::from_c(number).unwrap(), whence);
    }
    for whence in [-1, 3, 4, i32::MIN, i32::MAX] {
        assert!(matches!(Whence::from_c(whence), Err(FileError::BadWhence { .. })));
    }
}

#[test]
fn a_hole_reads_as_zeros() {
    let mut stream = open("w+", b"");
    stream.seek(3, Whence::Start).unwrap();
    write(&mut stream, b"x");
    stream.seek(0, Whence::Start).unwrap();
    assert_eq!(read(&mut stream, 9), b"\0\0\0x");
}

#[test]
fn a_change_of_direction_without_a_seek_loses_nothing() {
    let mut stream = open("r+", b"0123456789");
    assert_eq!(read(&mut stream, 2), b"01");
    write(&mut stream, b"ab");
    assert_eq!(read(&mut stream, 2), b"45");
    stream.push_back(b'x').unwrap();
    write(&mut stream, b"c");
    stream.flush().unwrap();
    assert_eq!(content(&stream), b"01ab4c6789");
    assert_eq!(read(&mut stream, 1), b"6");
}

#[test]
fn pushed_back_characters_count_as_unread_and_a_seek_forgets_them() {
    let mut stream = open("r", b"0123");
    read(&mut stream, 2);
    stream.push_back(b'x').unwrap();
    assert_eq!(stream.tell().unwrap(), 1);
    assert!(stream.seek(-9, Whence::Here).is_err());
    assert_eq!(read(&mut stream, 1), b"x", "a seek that failed forgets nothing");
    stream.push_back(b'x').unwrap();
    stream.seek(0, Whence::Here).unwrap();
    assert_eq!(read(&mut stream, 2), b"12");
    stream.push_back(b'x').unwrap();
    stream.flush().unwrap();
    assert_eq!(read(&mut stream, 2), b"23", "a flush moves the file to where the stream was");
}

#[test]
fn there_is_no_position_before_the_start() {
    let mut stream = open("r+", b"01");
    stream.push_back(b'x').unwrap();
    assert!(matches!(stream.tell(), Err(FileError::BadPosition)));
    assert_eq!(read(&mut stream, 1), b"x");
    stream.push_back(b'y').unwrap();
    stream.flush().unwrap();
    assert_eq!(stream.tell().unwrap(), 0);
}

#[test]
fn pushing_back_clears_the_end_which_comes_again() {
    let mut stream = open("r", b"a");
    read(&mut stream, 2);
    assert_eq!(stream.push_back(b'b').unwrap(), b'b');
    assert_eq!(stream.indicators(), (false, false));
    assert_eq!(read(&mut stream, 2), b"b");
    assert_eq!(stream.indicators(), (true, false));
}

#[test]
fn a_flush_moves_the_file_to_where_reading_stopped() {
    let mut stream = open("r", b"0123456789");
    read(&mut stream, 3);
    assert_eq!(fake(&mut stream).content.position(), 10, "read ahead");
    stream.flush().unwrap();
    assert_eq!(fake(&mut stream).content.position(), 3);
    assert_eq!(read(&mut stream, 2), b"34");
}

#[test]
fn a_failed_flush_keeps_what_it_could_not_write() {
    let mut stream = open("w", b"");
    fake(&mut stream).room = Some(2);
    assert_eq!(write(&mut stream, b"abcd"), 4, "still in the buffer");
    assert!(stream.flush().is_err());
    assert_eq!((content(&stream), stream.indicators()), (&b"ab"[..], (false, true)));
    assert!(stream.seek(0, Whence::Start).is_err());
    fake(&mut stream).room = None;
    stream.flush().unwrap();
    assert_eq!((content(&stream), stream.indicators()), (&b"abcd"[..], (false, true)));
}

#[test]
fn a_write_that_does_not_fit_is_short() {
    let mut stream = open("w", b"");
    fake(&mut stream).room = Some(5000);
    let result = stream.write(&[7; 9000]);
    assert_eq!((result.count, result.error.is_some()), (5000, true));
    assert!(stream.indicators().1);

    let mut stream = open("w", b"");
    fake(&mut stream).room = Some(0);
    assert_eq!(write(&mut stream, &[7; 4000]), 4000);
    let result = stream.write(&[7; 4000]);
    assert_eq!((result.count, result.error.is_some()), (96, true), "the buffer took a part");
    assert_eq!(write(&mut stream, b"x"), 0);
    assert!(stream.close().is_err());
}

#[test]
fn a_read_error_sets_the_indicator_and_does_not_look_like_the_end() {
    let mut stream = open("r", b"abc");
    fake(&mut stream).reads_fail = true;
    assert!(stream.read(1).error.is_some());
    assert!(stream.line(9).is_err());
    assert_eq!(stream.indicators(), (false, true));
    fake(&mut stream).reads_fail = false;
    assert_eq!(read(&mut stream, 3), b"abc");
    stream.seek(0, Whence::Start).unwrap();
    assert_eq!(stream.indicators(), (false, true), "a seek does not clear errors");
}

#[test]
fn a_pipe_has_no_position_and_keeps_what_was_read_ahead() {
    let mut stream = open("r+", b"0123");
    fake(&mut stream).pipe = true;
    assert_eq!(read(&mut stream, 1), b"0");
    assert!(matches!(stream.tell(), Err(FileError::NotSeekable)));
    for whence in [Whence::Start, Whence::Here, Whence::End] {
        assert!(matches!(stream.seek(0, whence), Err(FileError::NotSeekable)));
    }
    stream.flush().unwrap();
    assert_eq!(write(&mut stream, b"ab"), 2);
    assert_eq!(read(&mut stream, 3), b"123");
    assert_eq!(stream.indicators(), (false, false));
    assert_eq!(content(&stream), b"0123ab");
}
