//! Standard streams with each kind of source and sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn output(output: impl Into<Output>) -> StandardStreams {
    Standard::null().stdout(output).open()
}

#[test]
fn by_default_input_is_empty_and_output_is_the_processes() {
    let standard = Standard::default();
    assert!(matches!(standard.stdin, Input::Empty));
    assert!(matches!((&standard.stdout, &standard.stderr), (Output::Process, Output::Process)));
    assert!(matches!(Standard::process().stdin, Input::Process));
}

#[test]
fn empty_input_ends_at_once_and_takes_back_characters() {
    let mut stdin = Standard::default().open().stdin.into_inner();
    assert!(stdin.read(5).error.is_none());
    assert_eq!(stdin.indicators(), (true, false));
    stdin.push_back(b'a').unwrap();
    assert_eq!(stdin.line(5).unwrap().unwrap(), b"a");
    assert_eq!(stdin.line(5).unwrap(), None);
}

#[test]
fn closed_streams_report_errors() {
    let standard = Standard::default()
        .stdin(Input::Closed)
        .stdout(Output::Closed)
        .stderr(Output::Closed)
        .open();
    let mut stdin = standard.stdin.into_inner();
    assert!(matches!(stdin.read(1).error, Some(FileError::Closed)));
    assert_eq!(stdin.indicators(), (false, true));
    assert!(matches!(stdin.line(1), Err(FileError::Closed)));
    assert!(matches!(stdin.push_back(b'a'), Err(FileError::Closed)));
    let mut stdout = standard.stdout.into_inner();
    let written = stdout.write(b"x");
    assert!(written.count == 0 && matches!(written.error, Some(FileError::Closed)));
    assert_eq!(stdout.indicators(), (false, true));
    assert!(matches!(stdout.flush(), Err(FileError::Closed)));
}

#[test]
fn null_takes_everything() {
    let mut stdout = output(Output::Null).stdout.into_inner();
    assert_eq!(stdout.write(&[0; 10_000]).count, 10_000);
    assert_eq!(stdout.indicators(), (false, false));
}

#[test]
fn the_wrong_direction_is_an_error() {
    let standard = Standard::null().open();
    let mut stdin = standard.stdin.into_inner();
    assert!(matches!(stdin.write(b"x").error, Some(FileError::NotWritable)));
    assert_eq!((stdin.indicators(), stdin.write(b"").count), ((false, true), 0));
    let mut stdout = standard.stdout.into_inner();
    assert!(stdout.read(0).error.is_none() && !stdout.indicators().1);
    assert!(matches!(stdout.read(1).error, Some(FileError::NotReadable)));
    assert!(stdout.indicators().1);
    stdout.clear_indicators();
    assert!(matches!(stdout.line(5), Err(FileError::NotReadable)));
    assert!(stdout.indicators().1);
    assert!(matches!(stdout.push_back(b'a'), Err(FileError::NotReadable)));
}

/// Counts its flushes, takes three bytes at a time and `room` in all.
struct Narrow {
    room: usize,
    flushes: Arc<AtomicUsize>,
    flush_fails: bool,
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(3).min(self.room);
        self.room -= taken;
        if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if self.flush_fails { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

#[test]
fn each_write_is_flushed_and_a_short_one_is_told() {
    let flushes = Arc::<AtomicUsize>::default();
    let writer = Narrow { room: 12, flushes: flushes.clone(), flush_fails: false };
    let mut stdout = output(Output::writer(writer)).stdout.into_inner();
    assert_eq!(stdout.write(b"12345678").count, 8);
    assert_eq!((flushes.load(Ordering::Relaxed), stdout.indicators().1), (1, false));
    let written = stdout.write(b"12345678");
    assert_eq!((written.count, written.error.is_some()), (4, true));
    assert_eq!((flushes.load(Ordering::Relaxed), stdout.indicators().1), (2, true));
}

#[test]
fn a_writer_that_cannot_flush_is_an_error_with_a_full_count() {
    let writer = Narrow { room: 99, flushes: Arc::default(), flush_fails: true };
    let mut stdout = output(Output::writer(writer)).stdout.into_inner();
    let written = stdout.write(b"1234");
    assert_eq!((written.count, written.error.is_some()), (4, true));
    stdout.clear_indicators();
    assert!(stdout.flush().is_err() && stdout.indicators().1);
}

#[test]
fn two_streams_into_one_buffer_do_not_mix_within_a_call() {
    let captured = Captured::new();
    let standard = Standard::default().stdout(captured.clone()).stderr(captured.clone()).open();
    std::thread::scope(|scope| {
        for (stream, letter) in [(&standard.stdout, b'a'), (&standard.stderr, b'b')] {
            scope.spawn(move || {
                for _ in 0..500 {
                    assert_eq!(stream.lock().write(&[letter; 7]).count, 7);
                }
            });
        }
    });
    assert_eq!(captured.len(), 7000);
    assert!(captured.take().chunks(7).all(|call| call.iter().all(|byte| *byte == call[0])));
    assert!(captured.is_empty());
}

#[test]
fn the_process_streams_take_bytes() {
    let standard = Standard::process().open();
    assert_eq!(standard.stdout.into_inner().write(b"\n").count, 1);
    assert_eq!(standard.stderr.into_inner().write(b"\n").count, 1);
}
