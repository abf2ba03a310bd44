//! The table: handles, bounds, closing, threads; and the results in C's terms.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::super::scratch::Scratch;
use super::super::{Access, Captured, Input, Output};
use super::*;

fn table(scratch: &Scratch) -> FileTableBuilder {
    FileTable::builder()
        .policy(FilePolicy::directory(scratch.path(), Access::ReadWrite).unwrap())
        .standard(Standard::null())
}

#[test]
fn a_file_is_written_and_read_back() {
    let scratch = Scratch::new();
    let files = table(&scratch).build();
    let file = files.open(b"f", b"w+").unwrap();
    assert_eq!(files.write(file, b"one\ntwo").count, 7);
    files.seek(file, 0, Whence::Start).unwrap();
    assert_eq!(files.read_line(file, 100, 100).unwrap().unwrap(), b"one\n\0");
    assert_eq!(files.position(file).unwrap(), 4);
    assert_eq!(files.read(file, 100, 100).bytes, b"two");
    assert!(files.is_at_end(file).unwrap() && !files.has_failed(file).unwrap());
    files.close(file).unwrap();
    assert_eq!((scratch.get("f"), files.open_files()), (b"one\ntwo".to_vec(), 0));
}

#[test]
fn words_that_are_no_open_file_are_errors_and_counted() {
    let scratch = Scratch::new();
    let files = table(&scratch).build();
    let other = table(&scratch).build();
    let open = files.open(b"f", b"w").unwrap().word();
    let closed = files.open(b"g", b"w").unwrap();
    files.close(closed).unwrap();
    let foreign = other.open(b"h", b"w").unwrap();
    let words = [closed.word(), foreign.word(), 0x7fff_dead_beec, !3, open + 4, 4];
    for word in words {
        let c = files.as_c();
        assert_eq!(c.fclose(word), -1);
        assert_eq!((c.fread(word, 9, 9), c.fgets(word, 9, 9)), (Vec::new(), None));
        assert_eq!(c.fwrite(StreamRef::from_untagged(word), b"x"), 0);
        assert_eq!(c.puts(StreamRef::from_untagged(word), b"x"), 0);
        assert_eq!((c.feof(word), c.ferror(word)), (1, 1), "loops end");
        c.clearerr(word);
        assert_eq!((c.fseek(word, 0, 0), c.ftell(word)), (-1, -1));
        assert_eq!((c.fflush(word), c.ungetc(65, word)), (-1, -1));
    }
    assert_eq!(files.stats().bad_handles, 12 * words.len() as u64);
    // The low bits of an untagged word are not a tag.
    assert_eq!(files.as_c().fclose(open | 1), -1);
    assert_eq!(files.as_c().fwrite(StreamRef::from_untagged(open | 2), b"x"), 0);
    assert_eq!(files.as_c().fclose(open), 0);
}

#[test]
fn the_number_of_open_files_is_bounded_and_a_refused_open_touches_nothing() {
    let scratch = Scratch::new();
    scratch.put("kept", b"kept");
    let files = table(&scratch).max_open(2).build();
    let first = files.open(b"a", b"w").unwrap();
    files.open(b"b", b"w").unwrap();
    let refused = files.open(b"kept", b"w");
    assert!(matches!(refused, Err(FileError::TooManyOpen { limit: 2 })));
    assert_eq!((scratch.get("kept"), files.stats().too_many_open), (b"kept".to_vec(), 1));
    assert!(files.open(b"none/x", b"r").is_err());
    files.close(first).unwrap();
    for _ in 0..10 {
        assert!(files.open(b"none", b"r").is_err(), "a failed open gives its slot back");
    }
    files.open(b"kept", b"r").unwrap();
}

#[test]
fn a_table_for_no_files_opens_none() {
    let scratch = Scratch::new();
    let files = table(&scratch).max_open(0).build();
    assert_eq!(files.as_c().fopen(b"a", b"w"), 0);
    assert!(!scratch.path().join("a").exists());
}

#[test]
fn the_same_tag_gives_the_same_handles() {
    let scratch = Scratch::new();
    let handle = |tag| table(&scratch).tag(tag).build().open(b"a", b"w").unwrap();
    assert_eq!(handle(7), handle(7));
    assert_ne!(handle(7), handle(8));
}

#[test]
fn dropping_the_last_clone_writes_everything() {
    let scratch = Scratch::new();
    let files = table(&scratch).build();
    let counters = files.counters();
    for name in ["a", "b", "c"] {
        let file = files.open(name.as_bytes(), b"w").unwrap();
        assert_eq!(files.write(file, b"kept").count, 4);
    }
    let clone = files.clone();
    drop(files);
    assert_eq!((scratch.get("a"), counters.stats().closed), (Vec::new(), 0));
    drop(clone);
    for name in ["a", "b", "c"] {
        assert_eq!(scratch.get(name), b"kept");
    }
    assert_eq!((counters.stats().closed, counters.stats().failed_closes), (3, 0));
    assert!(counters.first_lost().is_none());
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_lost_when_the_table_is_dropped_can_be_seen() {
    let files = FileTable::builder().policy(FilePolicy::everything(Access::ReadWrite)).build();
    let counters = files.counters();
    let c = files.as_c();
    let closed = c.fopen(b"/dev/full", b"w");
    let flushed = c.fopen(b"/dev/full", b"w");
    for word in [closed, flushed] {
        assert_eq!(c.fwrite(StreamRef::from_untagged(word), b"lost"), 4);
    }
    assert_eq!((c.fflush(flushed), c.ferror(flushed), c.fflush(0)), (-1, 1, -1));
    assert_eq!(c.fclose(closed), -1);
    assert_eq!((counters.stats().closed, counters.stats().failed_closes), (1, 1));
    drop(files);
    assert_eq!((counters.stats().closed, counters.stats().failed_closes), (2, 2));
    let Some(FileError::Io(error)) = counters.first_lost() else { panic!("no error kept") };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn closing_everything_makes_all_handles_stale() {
    let scratch = Scratch::new();
    let files = table(&scratch).build();
    let handles = [b"a", b"b"].map(|name| files.open(name, b"w").unwrap());
    files.close_all().unwrap();
    for handle in handles {
        assert!(matches!(files.close(handle), Err(FileError::BadHandle { .. })));
    }
    assert_eq!(files.open_files(), 0);
    files.open(b"a", b"r").unwrap();
}

#[test]
fn the_limit_makes_reads_short_without_losing_anything() {
    let scratch = Scratch::new();
    scratch.put("f", b"0123456789\nrest");
    let files = table(&scratch).build();
    let file = files.open(b"f", b"r").unwrap();
    let read = files.read(file, u64::MAX, 4);
    assert_eq!((read.bytes.as_slice(), read.error.is_none()), (&b"0123"[..], true));
    assert!(!files.is_at_end(file).unwrap() && !files.has_failed(file).unwrap());
    assert_eq!(files.read_line(file, i32::MAX, 4).unwrap().unwrap(), b"456\0");
    assert_eq!(files.read_line(file, i32::MAX, 99).unwrap().unwrap(), b"789\n\0");
    assert_eq!(files.read_line(file, i32::MAX, 0).unwrap(), None);
    assert_eq!(files.read(file, 9, 0).bytes, b"");
    assert_eq!(files.read(file, u64::MAX, usize::MAX).bytes, b"rest");
}

#[test]
fn fgets_knows_small_sizes() {
    let scratch = Scratch::new();
    scratch.put("f", b"a\0b\ncd");
    let files = table(&scratch).build();
    let c = files.as_c();
    let word = c.fopen(b"f", b"r");
    for size in [0, -1, i32::MIN] {
        assert_eq!(c.fgets(word, size, 99), None);
    }
    assert_eq!(c.fgets(word, 1, 99).unwrap(), b"\0");
    assert_eq!(c.ftell(word), 0, "nothing was read");
    assert_eq!(c.fgets(word, 2, 99).unwrap(), b"a\0");
    assert_eq!(c.fgets(word, 99, 99).unwrap(), b"\0b\n\0");
    assert_eq!(c.feof(word), 0);
    assert_eq!(c.fgets(word, 99, 99).unwrap(), b"cd\0");
    assert_eq!((c.feof(word), c.ferror(word)), (1, 0));
    assert_eq!(c.fgets(word, 99, 99), None);
    assert_eq!(c.fgets(word, 1, 99).unwrap(), b"\0", "as glibc, also at the end");
}

#[test]
fn ungetc_takes_characters_and_not_eof() {
    let scratch = Scratch::new();
    scratch.put("f", b"a");
    let files = table(&scratch).build();
    let c = files.as_c();
    let word = c.fopen(b"f", b"r");
    assert_eq!(c.ungetc(-1, word), -1);
    assert_eq!(c.ungetc(0xff, word), 0xff);
    assert_eq!(c.ungetc(0x1_41, word), 0x41, "the low eight bits");
    assert_eq!(c.ungetc(-2, word), 0xfe);
    assert_eq!(c.fread(word, 9, 9), [0xfe, 0x41, 0xff, b'a']);
    assert_eq!(c.ungetc(-1, word), -1);
    assert_eq!(c.feof(word), 1, "EOF changes nothing");
}

#[test]
fn results_in_c_terms() {
    let scratch = Scratch::new();
    let files = table(&scratch).build();
    let c = files.as_c();
    assert_eq!(c.fopen(b"none", b"r"), 0);
    assert_eq!(c.fopen(b"f", b"rw"), 0);
    let word = c.fopen(b"f", b"w+");
    assert_eq!((word != 0, word & 3), (true, 0));
    assert_eq!(c.puts(StreamRef::from_tagged(word), b"hello"), 6);
    assert_eq!((c.ftell(word), c.fseek(word, 0, 3), c.fseek(word, -1, 0)), (6, -1, -1));
    assert_eq!((c.fseek(word, -2, 2), c.ftell(word)), (0, 4));
    assert_eq!((c.fflush(word), c.fflush(0), c.fclose(word), c.fclose(word)), (0, 0, 0, -1));
    assert_eq!((c.rename(b"f", b"g"), c.rename(b"f", b"g")), (0, -1));
    assert_eq!((c.remove(b"g"), c.remove(b"g")), (0, -1));
}

#[test]
fn an_open_file_survives_its_removal() {
    let scratch = Scratch::new();
    scratch.put("f", b"still here");
    let files = table(&scratch).build();
    let file = files.open(b"f", b"r").unwrap();
    files.remove(b"f").unwrap();
    assert_eq!(files.read(file, 99, 99).bytes, b"still here");
}

#[test]
fn flushing_everything_writes_all_files() {
    let scratch = Scratch::new();
    let files = table(&scratch).build();
    for name in ["a", "b"] {
        let file = files.open(name.as_bytes(), b"a").unwrap();
        assert_eq!(files.write(file, b"x").count, 1);
    }
    assert_eq!(files.as_c().fflush(0), 0);
    assert_eq!((scratch.get("a"), scratch.get("b")), (b"x".to_vec(), b"x".to_vec()));
}

#[test]
fn pieces_of_several_lanes_lie_together_and_short_writes_are_told_apart() {
    let scratch = Scratch::new();
    let captured = Captured::bounded(8);
    let files = table(&scratch).standard(Standard::null().stdout(captured.clone())).build();
    let pieces: [&[u8]; 4] = [b"ab", b"", b"cdef", b"gh"];
    let counts = files.as_c().fwrite_each(StreamRef::Stdout, pieces, LineEnd::Newline);
    assert_eq!((counts, captured.take()), (vec![3, 1, 4, 0], b"ab\n\ncdef".to_vec()));
    assert_eq!(files.as_c().ferror(2), 1);
    let counts = files.as_c().fwrite_each(StreamRef::Stdout, pieces, LineEnd::AsIs);
    assert_eq!((counts, captured.take()), (vec![2, 0, 4, 2], b"abcdefgh".to_vec()));
    assert!(files.as_c().fwrite_each(StreamRef::Stdout, [], LineEnd::Newline).is_empty());

    let file = files.open(b"f", b"w").unwrap();
    let counts = files.as_c().fwrite_each(file.into(), pieces, LineEnd::Newline);
    files.close(file).unwrap();
    assert_eq!((counts, scratch.get("f")), (vec![3, 1, 5, 3], b"ab\n\ncdef\ngh\n".to_vec()));
}

#[test]
fn many_threads_write_one_file_without_mixing_lines() {
    let scratch = Scratch::new();
    let files = table(&scratch).build();
    let file = files.open(b"f", b"w").unwrap();
    thread::scope(|scope| {
        for name in *b"abcd" {
            let files = &files;
            scope.spawn(move || {
                for length in 1..300 {
                    let line = vec![name; length];
                    assert_eq!(files.as_c().puts(file.into(), &line), length as u64 + 1);
                }
            });
        }
    });
    files.close(file).unwrap();
    let content = scratch.get("f");
    let lines: Vec<_> = content.trim_ascii_end().split(|&byte| byte == b'\n').collect();
    assert_eq!(lines.len(), 4 * 299);
    assert!(lines.iter().all(|line| line.iter().all(|byte| *byte == line[0])));
}

/// A writer that waits to be let go.
struct Slow(Sender<()>, Receiver<()>);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(()).map_err(io::Error::other)?;
        self.1.recv().map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_slow_stream_holds_up_nobody_else() {
    let scratch = Scratch::new();
    let ((started, start), (go, let_go)) = (channel(), channel());
    let standard = Standard::null().stdout(Output::writer(Slow(started, let_go)));
    let files = table(&scratch).standard(standard).build();
    thread::scope(|scope| {
        let slow = scope.spawn(|| files.write(StreamRef::Stdout, b"slow").count);
        start.recv().unwrap();
        let file = files.open(b"f", b"w").unwrap();
        assert_eq!(files.write(file, b"x").count, 1);
        assert_eq!(files.write(StreamRef::Stderr, b"x").count, 1);
        files.close(file).unwrap();
        assert!(!slow.is_finished());
        go.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), 4);
    });
}

#[test]
fn opening_and_closing_from_many_threads_keeps_the_count() {
    let scratch = Scratch::new();
    let files = table(&scratch).max_open(8).build();
    thread::scope(|scope| {
        for name in [b"a", b"b", b"c", b"d"] {
            let files = &files;
            scope.spawn(move || {
                for _ in 0..100 {
                    let file = files.open(name, b"w").unwrap();
                    assert_eq!(files.write(file, b"x").count, 1);
                    files.close(file).unwrap();
                    assert!(files.close(file).is_err());
                }
            });
        }
    });
    assert_eq!((files.open_files(), files.stats().opened, files.stats().closed), (0, 400, 400));
}

#[test]
fn tagged_words_reach_the_standard_streams() {
    let (out, err) = (Captured::new(), Captured::new());
    let standard = Standard::default()
        .stdin(Input::reader(&b"line\nrest"[..]))
        .stdout(out.clone())
        .stderr(err.clone());
    let files = FileTable::builder().standard(standard).build();
    let c = files.as_c();
    let device_address = 0x7f00_0000_1230;
    assert_eq!(c.fgets(device_address | 1, 99, 99).unwrap(), b"line\n\0");
    assert_eq!(c.ungetc(65, device_address | 1), 65);
    assert_eq!(c.fread(1, 99, 99), b"Arest");
    assert_eq!((c.feof(1), c.ferror(1), c.feof(2)), (1, 0, 0));
    c.clearerr(1);
    assert_eq!((c.feof(1), c.fflush(1), c.fflush(2), c.fflush(3)), (0, 0, 0, 0));
    assert_eq!(c.fwrite(StreamRef::from_tagged(device_address | 2), b"out"), 3);
    assert_eq!(c.fwrite(StreamRef::from_tagged(device_address | 3), b"err"), 3);
    for word in 1..4 {
        assert_eq!((c.fseek(word, 0, 0), c.ftell(word)), (-1, -1));
    }
    assert_eq!((out.contents(), err.contents()), (b"out".to_vec(), b"err".to_vec()));
    assert_eq!(files.stats(), FileStats::default());
}
