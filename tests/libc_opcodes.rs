//! Every opcode of the C library, as the device's half of it would call: the exchange, the reply, and
//! what failure looks like. On one lane, and on wider warps with holes in their masks.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod device_libc;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device_libc::{SHAPES, STDERR, STDIN, STDOUT, Warp, with_nul};
use hostcall::backend::host::HostAllocator;
use hostcall::libc::files::{Access, Captured, FilePolicy, Input, Standard};
use hostcall::libc::{ABORTED, Heap, Services, ServicesBuilder, opcode};
use hostcall::{Abi, LaneMask, Registry, Server, Worker};

/// A directory of the test's own.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("hostcall-libc-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `test` for every shape against services of these settings.
fn with(configure: impl Fn(ServicesBuilder) -> ServicesBuilder, test: impl Fn(Warp<'_>, &Served)) {
    for (lanes, mask) in SHAPES {
        let registry = Registry::new();
        let printed = [Captured::new(), Captured::new()];
        let standard = Standard::default()
            .stdin(Input::reader(&b"first line\nsecond\nthird"[..]))
            .stdout(printed[0].clone())
            .stderr(printed[1].clone());
        let services = configure(Services::builder().standard(standard)).build();
        services.register(&registry).unwrap();
        let server = Server::builder(HostAllocator)
            .lanes(lanes)
            .ports(4)
            .registry(&registry)
            .owning(())
            .build()
            .unwrap();
        let worker = Worker::start(server).unwrap();
        let [out, err] = printed;
        let served = Served { services, out, err, server: worker.server().clone() };
        test(Warp::new(worker.server(), mask), &served);
        assert_eq!(worker.server().stats().failed(), 0, "{:?}", worker.server().first_error());
        drop(served);
        worker.stop().unwrap();
    }
}

struct Served {
    services: Services,
    out: Captured,
    err: Captured,
    server: Arc<Server<HostAllocator>>,
}

fn defaults(services: ServicesBuilder) -> ServicesBuilder {
    services
}

fn files_in(directory: &Path) -> impl Fn(ServicesBuilder) -> ServicesBuilder {
    let policy = FilePolicy::directory(directory, Access::ReadWrite).unwrap();
    move |services| services.files(policy.clone())
}

fn name(lane: u32) -> Vec<u8> {
    format!("file-{lane}").into_bytes()
}

#[test]
fn every_opcode_of_the_table_has_a_handler() {
    let registry = Registry::new();
    let services = Services::builder().build();
    services.register(&registry).unwrap();
    for (opcode, name) in opcode::ALL {
        assert!(registry.handles(*opcode), "{name}");
    }
    assert_eq!(opcode::ALL.len(), 33);
    assert!(services.register(&registry).is_err(), "they have owners now");
}

#[test]
fn noop_is_taken_note_of() {
    with(defaults, |warp, served| {
        warp.client.notify(opcode::NOOP, warp.mask, |_| 7u64).unwrap();
        warp.call(opcode::NOOP, |_| [0; 3]);
        let stats = served.server.stats();
        assert_eq!((stats.accepted, stats.completed, stats.failed()), (2, 2, 0));
    });
}

#[test]
fn writes_reach_the_standard_streams_whole_and_in_lane_order() {
    with(defaults, |warp, served| {
        let text = |lane: u32| format!("<{lane}:{}>", "x".repeat(lane as usize * 7)).into_bytes();
        let lengths: Vec<_> = warp.mask.iter().map(|lane| text(lane).len() as u64).collect();
        let all: Vec<u8> = warp.mask.iter().flat_map(text).collect();
        assert_eq!(warp.active(&warp.write(opcode::WRITE_TO_STDOUT, text)), lengths);
        assert_eq!(warp.active(&warp.write(opcode::WRITE_TO_STDERR, text)), lengths);
        assert_eq!((served.out.take(), served.err.take()), (all.clone(), all));

        let lines: Vec<_> = lengths.iter().map(|length| length + 1).collect();
        assert_eq!(warp.active(&warp.write(opcode::WRITE_TO_STDOUT_NEWLINE, text)), lines);
        let all: Vec<u8> =
            warp.mask.iter().flat_map(|lane| [text(lane), vec![b'\n']].concat()).collect();
        assert_eq!(served.out.take(), all);
        assert_eq!(
            warp.active(&warp.write(opcode::WRITE_TO_STDOUT, |_| vec![])),
            vec![0; lines.len()]
        );
    });
}

#[test]
fn a_full_sink_gives_short_counts() {
    let bounded = |services: ServicesBuilder| {
        services.standard(Standard::null().stdout(Captured::bounded(10)))
    };
    with(bounded, |warp, _| {
        let counts = warp.active(&warp.write(opcode::WRITE_TO_STDOUT, |_| vec![b'x'; 8]));
        let expected: Vec<_> =
            (0..counts.len()).map(|lane| [8, 2].get(lane).copied().unwrap_or(0)).collect();
        assert_eq!(counts, expected);
        assert_eq!(
            warp.printf(
                opcode::PRINTF_TO_STDOUT,
                None,
                |_| with_nul(b"more".to_vec()),
                |_| vec![],
                |_, _| vec![]
            ),
            vec![-1; counts.len()]
        );
    });
}

#[test]
fn files_are_written_and_read_back_through_handles() {
    let directory = Directory::new();
    with(files_in(&directory.0), |warp, served| {
        let body = |lane: u32| (0..1000 + lane).map(|i| (i * (lane + 1)) as u8).collect::<Vec<_>>();
        let files = warp.fopen(name, "w+b");
        assert!(warp.mask.iter().all(|lane| files[lane as usize] != 0));
        assert!(
            warp.mask.iter().all(|lane| files[lane as usize].trailing_zeros() >= 2),
            "room for tags"
        );
        let file = |lane: u32| files[lane as usize];
        let written = warp.fwrite(file, body);
        assert!(warp.mask.iter().all(|lane| written[lane as usize] == body(lane).len() as u64));
        assert_eq!(warp.active(&warp.on_stream(opcode::FTELL, file)), warp.active(&written));
        assert_eq!(warp.active(&warp.fseek(file, 10, 0)), vec![0; served_lanes(&warp)]);
        let (bytes, counts) = warp.fread(file, |_| 5000);
        for lane in warp.mask {
            assert_eq!(bytes.get(lane).unwrap(), &body(lane)[10..]);
            assert_eq!(counts[lane as usize], body(lane).len() as u64 - 10, "a short count");
        }
        assert_eq!(warp.active(&warp.on_stream(opcode::FEOF, file)), vec![1; served_lanes(&warp)]);
        assert_eq!(
            warp.active(&warp.on_stream(opcode::FERROR, file)),
            vec![0; served_lanes(&warp)]
        );
        warp.on_stream(opcode::CLEARERR, file);
        assert_eq!(warp.active(&warp.on_stream(opcode::FEOF, file)), vec![0; served_lanes(&warp)]);
        assert_eq!(
            warp.active(&warp.on_stream(opcode::FFLUSH, file)),
            vec![0; served_lanes(&warp)]
        );
        assert_eq!(warp.active(&warp.fclose(file)), vec![0; served_lanes(&warp)]);
        for lane in warp.mask {
            assert_eq!(directory.read(&format!("file-{lane}")), body(lane));
        }
        assert_eq!(served.services.files().open_files(), 0);
    });
}

fn served_lanes(warp: &Warp<'_>) -> usize {
    warp.mask.count() as usize
}

fn all(warp: &Warp<'_>, value: i64) -> Vec<u64> {
    vec![value as u64; served_lanes(warp)]
}

#[test]
fn lines_end_at_newlines_sizes_and_the_end() {
    let directory = Directory::new();
    std::fs::write(directory.0.join("lines"), "one\ntwo\n\nno newline").unwrap();
    with(files_in(&directory.0), |warp, _| {
        let files = warp.fopen(|_| b"lines".to_vec(), "r");
        let file = |lane: u32| files[lane as usize];
        let line = |size: u64| {
            warp.fgets(file, |_| size).get(warp.mask.first().unwrap()).unwrap().to_vec()
        };
        assert_eq!(line(100), b"one\n\0");
        assert_eq!(line(3), b"tw\0");
        assert_eq!(line(100), b"o\n\0");
        assert_eq!(line(2), b"\n\0");
        assert_eq!(line(100), b"no newline\0");
        assert_eq!(line(100), b"", "a null result");
        assert_eq!(warp.active(&warp.on_stream(opcode::FEOF, file)), all(&warp, 1));
        assert_eq!(line(0), b"");
        assert_eq!(line(-1i32 as u32 as u64), b"");
        assert_eq!(warp.active(&warp.fseek(file, -3, 2)), all(&warp, 0));
        assert_eq!(warp.active(&warp.ungetc(b'>'.into(), file)), all(&warp, b'>'.into()));
        assert_eq!(line(100), b">ine\0");
        warp.fclose(file);
    });
}

#[test]
fn standard_input_is_read_in_order() {
    with(defaults, |warp, _| {
        let first = warp.mask.first().unwrap();
        let one = Warp { mask: LaneMask::lane(first), ..warp };
        assert_eq!(one.fgets(|_| STDIN, |_| 100).get(first), Some(&b"first line\n\0"[..]));
        let (bytes, counts) = one.fread(|_| STDIN, |_| 4);
        assert_eq!((bytes.get(first), counts[first as usize]), (Some(&b"seco"[..]), 4));
        assert_eq!(one.active(&one.ungetc(b'O'.into(), |_| STDIN)), [b'O'.into()]);
        let (bytes, _) = one.fread(|_| STDIN, |_| 100);
        assert_eq!(bytes.get(first), Some(&b"Ond\nthird"[..]));
        assert_eq!(one.active(&one.on_stream(opcode::FEOF, |_| STDIN)), [1]);
        one.on_stream(opcode::CLEARERR, |_| STDIN);
        assert_eq!(one.active(&one.on_stream(opcode::FEOF, |_| STDIN)), [0]);
    });
}

#[test]
fn streams_refuse_what_they_are_not_for() {
    let directory = Directory::new();
    std::fs::write(directory.0.join("there"), "text").unwrap();
    with(files_in(&directory.0), |warp, _| {
        let files = warp.fopen(|_| b"there".to_vec(), "r");
        let file = |lane: u32| files[lane as usize];
        assert_eq!(warp.active(&warp.fwrite(file, |_| b"no".to_vec())), all(&warp, 0));
        assert_eq!(warp.active(&warp.on_stream(opcode::FERROR, file)), all(&warp, 1));
        assert_eq!(warp.active(&warp.fseek(file, 0, 7)), all(&warp, -1));
        assert_eq!(warp.active(&warp.fseek(file, -1, 0)), all(&warp, -1));
        let (bytes, counts) = warp.fread(|_| STDOUT, |_| 10);
        assert_eq!(
            (bytes.get(warp.mask.first().unwrap()), warp.active(&counts)),
            (Some(&[][..]), all(&warp, 0))
        );
        assert_eq!(warp.active(&warp.on_stream(opcode::FTELL, |_| STDERR)), all(&warp, -1));
        assert_eq!(warp.active(&warp.fclose(file)), all(&warp, 0));
        for mode in ["", "q", "rw", "r++"] {
            assert_eq!(
                warp.active(&warp.fopen(|_| b"there".to_vec(), mode)),
                all(&warp, 0),
                "{mode}"
            );
        }
        assert_eq!(warp.active(&warp.fopen(|_| b"not there".to_vec(), "r")), all(&warp, 0));
        assert_eq!(
            warp.active(&warp.on_stream(opcode::FFLUSH, |_| 0)),
            all(&warp, 0),
            "all streams"
        );
    });
}

#[test]
fn handles_that_are_not_open_files_are_refused_and_crash_nothing() {
    let directory = Directory::new();
    with(files_in(&directory.0), |warp, _| {
        let files = warp.fopen(name, "w");
        let stale = |lane: u32| files[lane as usize];
        warp.fclose(stale);
        let forged = |lane: u32| [0x7fff_dead_beef_0000, !3, 8, 4][lane as usize % 4];
        for file in [&stale as &dyn Fn(u32) -> u64, &forged] {
            assert_eq!(warp.active(&warp.fwrite(file, |_| b"x".to_vec())), all(&warp, 0));
            assert_eq!(warp.active(&warp.fclose(file)), all(&warp, -1));
            assert_eq!(warp.active(&warp.fread(file, |_| u64::MAX).1), all(&warp, 0));
            assert_eq!(warp.fgets(file, |_| 100).get(warp.mask.first().unwrap()), Some(&[][..]));
            assert_eq!(warp.active(&warp.fseek(file, 0, 0)), all(&warp, -1));
            assert_eq!(warp.active(&warp.on_stream(opcode::FTELL, file)), all(&warp, -1));
            assert_eq!(warp.active(&warp.on_stream(opcode::FFLUSH, file)), all(&warp, -1));
            assert_eq!(warp.active(&warp.ungetc(65, file)), all(&warp, -1));
            warp.on_stream(opcode::CLEARERR, file);
            let printed = warp.printf(
                opcode::PRINTF_TO_STREAM,
                Some(file(0)),
                |_| with_nul(b"x".to_vec()),
                |_| vec![],
                |_, _| vec![],
            );
            assert_eq!(printed, vec![-1; served_lanes(&warp)]);
        }
    });
}

#[test]
fn paths_that_lead_out_are_denied_and_counted() {
    let directory = Directory::new();
    let outside = Directory::new();
    std::fs::write(outside.0.join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(&outside.0, directory.0.join("link")).unwrap();
    with(files_in(&directory.0), |warp, served| {
        let absolute = outside.0.join("secret");
        let absolute = absolute.to_str().unwrap();
        let up = format!("../{}/secret", outside.0.file_name().unwrap().to_str().unwrap());
        for path in [absolute, &up, "link/secret", "..", "../"] {
            let path = |_| path.as_bytes().to_vec();
            for mode in ["r", "w", "a+"] {
                assert_eq!(warp.active(&warp.fopen(path, mode)), all(&warp, 0));
            }
            assert_eq!(warp.active(&warp.remove(path)), all(&warp, -1));
            assert_eq!(warp.active(&warp.rename(path, |_| b"mine".to_vec())), all(&warp, -1));
        }
        warp.fopen(name, "w");
        let out = |_| up.clone().into_bytes();
        assert_eq!(warp.active(&warp.rename(name, out)), all(&warp, -1));
        assert!(served.services.denials().files.total() > 0);
        assert_eq!(outside.read("secret"), b"secret");
    });
}

#[test]
fn remove_and_rename_return_what_c_does() {
    let directory = Directory::new();
    with(files_in(&directory.0), |warp, _| {
        let other = |lane: u32| format!("other-{lane}").into_bytes();
        let files = warp.fopen(name, "w");
        warp.fwrite(|lane| files[lane as usize], |lane| vec![lane as u8]);
        warp.fclose(|lane| files[lane as usize]);
        assert_eq!(warp.active(&warp.rename(name, other)), all(&warp, 0));
        assert_eq!(warp.active(&warp.rename(name, other)), all(&warp, -1), "moved away");
        for lane in warp.mask {
            assert_eq!(directory.read(&format!("other-{lane}")), [lane as u8]);
        }
        assert_eq!(warp.active(&warp.remove(other)), all(&warp, 0));
        assert_eq!(warp.active(&warp.remove(other)), all(&warp, -1));
    });
}

#[test]
fn without_a_policy_nothing_can_be_opened_allocated_run_or_called() {
    with(defaults, |warp, served| {
        let lanes = served_lanes(&warp) as u64;
        assert_eq!(warp.active(&warp.fopen(|_| b"/etc/hostname".to_vec(), "r")), all(&warp, 0));
        assert_eq!(warp.active(&warp.remove(|_| b"/etc/hostname".to_vec())), all(&warp, -1));
        assert_eq!(warp.active(&warp.call(opcode::MALLOC, |_| [64, 0, 0])), all(&warp, 0));
        assert_eq!(
            warp.active(&warp.write(opcode::SYSTEM, |_| with_nul(b"exit 3".to_vec()))),
            all(&warp, -1)
        );
        assert_eq!(warp.active(&warp.host_call(|_| 1, |_| vec![1, 2])), all(&warp, -1));
        let denials = served.services.denials();
        assert_eq!(
            (denials.files.total(), denials.allocations, denials.commands, denials.functions),
            (2 * lanes, lanes, lanes, lanes)
        );
    });
}

#[test]
fn malloc_takes_from_the_heap_and_free_gives_back() {
    let heap = Heap::pool(HostAllocator, 64 << 20).unwrap();
    let shared = heap.clone();
    with(
        move |services| services.heap(shared.clone()),
        |warp, _| {
            let lanes = served_lanes(&warp) as u64;
            let blocks = warp.call(opcode::MALLOC, |lane| [100 + u64::from(lane), 0, 0]);
            let mut addresses = warp.active(&blocks);
            addresses.sort_unstable();
            addresses.dedup();
            assert_eq!(addresses.len() as u64, lanes, "each its own");
            assert_eq!(heap.stats().live, lanes);
            let free = |address: &dyn Fn(u32) -> u64| {
                warp.client.notify(opcode::FREE, warp.mask, address).unwrap();
                // A call of its own, so that the notification before it has been served.
                warp.call(opcode::TEST_INCREMENT, |_| [0; 3]);
            };
            let slab = Warp { mask: LaneMask::lane(warp.mask.first().unwrap()), ..warp };
            let address = slab.active(&slab.call(opcode::MALLOC, |_| [2 << 20, 0, 0]))[0];
            assert_eq!(address % (2 << 20), 0, "slabs are aligned to their size");
            slab.client.notify(opcode::FREE, slab.mask, |_| address).unwrap();
            assert_eq!(
                warp.active(&warp.call(opcode::MALLOC, |_| [u64::MAX, 0, 0])),
                all(&warp, 0)
            );
            free(&|lane| blocks[lane as usize]);
            let bad = heap.stats().bad_frees;
            free(&|lane| blocks[lane as usize]);
            free(&|_| 0xdead_beef);
            warp.client.notify(opcode::FREE, warp.mask, |_| 0u64).unwrap();
            while heap.stats().live > 0 || heap.stats().bad_frees < bad + 2 * lanes {
                std::thread::yield_now();
            }
            assert_eq!(
                heap.stats().bad_frees,
                bad + 2 * lanes,
                "twice, and forged; null is nothing"
            );
        },
    );
}

#[test]
fn host_functions_are_called_by_their_id_and_their_result_comes_back() {
    let configure = |services: ServicesBuilder| {
        services
            .host_function(1, |bytes| bytes.iter().map(|&byte| u64::from(byte)).sum())
            .host_function(0x7fff_1234_5678, |bytes| bytes.len() as u64)
    };
    with(configure, |warp, served| {
        let bytes = |lane: u32| vec![2; 100 + lane as usize];
        let function = |lane: u32| if lane.is_multiple_of(2) { 1 } else { 0x7fff_1234_5678 };
        let results = warp.host_call(function, bytes);
        for lane in warp.mask {
            let length = 100 + u64::from(lane);
            let expected = if lane.is_multiple_of(2) { 2 * length } else { length };
            assert_eq!(results[lane as usize], expected);
        }
        assert_eq!(warp.active(&warp.host_call(|_| 2, bytes)), all(&warp, -1));
        assert_eq!(served.services.denials().functions, served_lanes(&warp) as u64);
    });
}

#[test]
fn system_returns_the_wait_status_of_the_shell() {
    with(ServicesBuilder::allow_system, |warp, _| {
        let one = Warp { mask: LaneMask::lane(warp.mask.first().unwrap()), ..warp };
        let run =
            |command: &[u8]| one.active(&one.write(opcode::SYSTEM, |_| command.to_vec()))[0] as i64;
        assert_eq!(run(b"exit 3\0"), 3 << 8);
        assert_eq!(run(b"true\0"), 0);
        assert_eq!(run(b"kill -9 $$\0"), 9);
        assert_eq!(run(b"no terminator"), -1);
    });
}

#[test]
fn exit_and_abort_are_reported_with_the_first_lanes_status() {
    with(defaults, |warp, served| {
        let first = warp.mask.first().unwrap();
        warp.end(opcode::EXIT, |lane| u64::from(lane + 40));
        let exit = wait_for_exit(served);
        assert_eq!((exit.status, exit.aborted, exit.lane), (first as i32 + 40, false, first));
    });
    with(defaults, |warp, served| {
        warp.end(opcode::ABORT, |_| 0);
        let exit = wait_for_exit(served);
        assert_eq!((exit.status, exit.aborted), (ABORTED, true));
    });
}

fn wait_for_exit(served: &Served) -> hostcall::ExitRequest {
    loop {
        if let Some(exit) = served.server.exit_request() {
            return exit;
        }
        std::thread::yield_now();
    }
}

#[test]
fn printf_prints_each_lane_in_one_piece() {
    with(defaults, |warp, served| {
        let format = |_| with_nul(b"lane %d: %s and %s, %.2f%%\n".to_vec());
        // 4 bytes, padding, two pointers, a double; the second string is null on odd lanes.
        let arguments = |lane: u32| {
            let second = if lane.is_multiple_of(2) { 0x2000 + u64::from(lane) } else { 0 };
            let words = [u64::from(lane), 0x1000 + u64::from(lane), second, 1.005f64.to_bits()];
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let string = |lane: u32, pointer: u64| {
            let long = "s".repeat(lane as usize * 5);
            format!("{}{long}", if pointer < 0x2000 { "first" } else { "second" }).into_bytes()
        };
        let results = warp.printf(opcode::PRINTF_TO_STDOUT, None, format, arguments, string);
        let expected: Vec<_> = warp
            .mask
            .iter()
            .map(|lane| {
                let first = String::from_utf8(string(lane, 0x1000)).unwrap();
                let second = if lane.is_multiple_of(2) {
                    String::from_utf8(string(lane, 0x2000)).unwrap()
                } else {
                    "(null)".to_owned()
                };
                format!("lane {lane}: {first} and {second}, 1.00%\n")
            })
            .collect();
        assert_eq!(String::from_utf8(served.out.take()).unwrap(), expected.concat());
        let lengths: Vec<_> = expected.iter().map(|text| text.len() as i32).collect();
        assert_eq!(results, lengths);
    });
}

#[test]
fn the_six_printf_opcodes_differ_in_stream_and_layout() {
    let directory = Directory::new();
    with(files_in(&directory.0), |warp, served| {
        let one = Warp { mask: LaneMask::lane(warp.mask.first().unwrap()), ..warp };
        let file = one.active(&one.fopen(|_| b"out".to_vec(), "w"))[0];
        let aligned = |_| [&[b'x', 0, 0, 0, 9, 9, 9, 9][..], &2.5f64.to_le_bytes()].concat();
        let packed = |_| [&[b'x', 0, 0, 0][..], &2.5f64.to_le_bytes()].concat();
        let format = |_| with_nul(b"%c%g ".to_vec());
        let none = |_, _| vec![];
        for (opcode, file) in [
            (opcode::PRINTF_TO_STDOUT, None),
            (opcode::PRINTF_TO_STDERR, None),
            (opcode::PRINTF_TO_STREAM, Some(file)),
        ] {
            assert_eq!(one.printf(opcode, file, format, aligned, none), [5]);
        }
        for (opcode, file) in [
            (opcode::PRINTF_TO_STDOUT_PACKED, None),
            (opcode::PRINTF_TO_STDERR_PACKED, None),
            (opcode::PRINTF_TO_STREAM_PACKED, Some(file)),
        ] {
            assert_eq!(one.printf(opcode, file, format, packed, none), [5]);
        }
        one.fclose(|_| file);
        assert_eq!(served.out.take(), b"x2.5 x2.5 ");
        assert_eq!(served.err.take(), b"x2.5 x2.5 ");
        assert_eq!(directory.read("out"), b"x2.5 x2.5 ");
    });
}

#[test]
fn a_printf_that_cannot_be_prints_nothing_and_the_others_go_on() {
    with(defaults, |warp, served| {
        let first = warp.mask.first().unwrap();
        let formats: [&[u8]; 4] =
            [b"no terminator", b"ends inside %-3\0", b"%1048577d\0", b"%2147483647s|\0"];
        for bad in formats {
            let format =
                |lane| if lane == first { bad.to_vec() } else { with_nul(b"fine\n".to_vec()) };
            let results =
                warp.printf(opcode::PRINTF_TO_STDERR, None, format, |_| vec![0; 16], |_, _| vec![]);
            let mut expected = vec![5; results.len()];
            expected[0] = -1;
            assert_eq!(results, expected, "{bad:?}");
            assert_eq!(served.err.take(), b"fine\n".repeat(results.len() - 1));
        }
    });
}

#[test]
fn a_warp_prints_no_more_than_its_budget() {
    let quiet = |services: ServicesBuilder| services.standard(Standard::null());
    with(quiet, |warp, _| {
        if warp.mask.0 != 0x8421_0f02 {
            return;
        }
        // 20 MiB a lane: three fit into the budget of 64 MiB.
        let format = |_| with_nul(b"%1048576d".repeat(20));
        let results =
            warp.printf(opcode::PRINTF_TO_STDOUT, None, format, |_| vec![0; 80], |_, _| vec![]);
        let expected: Vec<_> =
            (0..results.len()).map(|lane| if lane < 3 { 20 << 20 } else { -1 }).collect();
        assert_eq!(results, expected);
    });
}

#[test]
fn the_test_opcodes_answer_as_llvms_tests_expect() {
    with(defaults, |warp, _| {
        let counts = warp.call(opcode::TEST_INCREMENT, |lane| [u64::from(lane), 0, 0]);
        assert!(warp.mask.iter().all(|lane| counts[lane as usize] == u64::from(lane) + 1));
        let echo = warp.client.open(opcode::TEST_STREAM, warp.mask).unwrap();
        let message: Vec<u8> = (0..251).map(|i| i as u8).collect();
        let mut port = echo.send_stream(|_| &message).unwrap();
        let mut back = Vec::new();
        port.recv_stream(|_, _, part| back.extend_from_slice(part)).unwrap();
        port.close();
        assert_eq!(back.len(), 251 * served_lanes(&warp));

        for ends_in_receive in [true, false] {
            let open = warp.client.open(opcode::TEST_INTERFACE, warp.mask).unwrap();
            let mut port = open.send(|lane| lane.set_word(0, u64::from(ends_in_receive)));
            let mut count = 0;
            macro_rules! send {
                () => {{
                    count += 1;
                    port.send(|lane| lane.set_word(0, count)).unwrap()
                }};
            }
            macro_rules! recv {
                () => {
                    port.recv(|lane| count = lane.word(0)).unwrap()
                };
            }
            send!();
            recv!();
            send!();
            recv!();
            send!();
            send!();
            recv!();
            recv!();
            if ends_in_receive {
                send!();
            } else {
                recv!();
            }
            assert_eq!(count, 9);
        }
    });
}

#[test]
fn older_releases_reach_the_same_handlers_by_their_numbers() {
    for abi in Abi::ALL {
        let registry = Registry::new();
        let printed = Captured::new();
        let services = Services::builder()
            .standard(Standard::null().stderr(printed.clone()))
            .heap(Heap::growing(HostAllocator, 1 << 20))
            .build();
        services.register(&registry).unwrap();
        let server =
            Server::builder(HostAllocator).abi(abi).registry(&registry).owning(services).build();
        let worker = Worker::start(server.unwrap()).unwrap();
        let warp = Warp::new(worker.server(), 0xf0f0);
        assert_eq!(
            warp.active(&warp.write(opcode::WRITE_TO_STDERR, |_| vec![b'.'])),
            [1; 8],
            "{abi}"
        );
        assert_eq!(printed.contents(), b"........", "{abi}");
        assert!(warp.active(&warp.call(opcode::MALLOC, |_| [8, 0, 0])).iter().all(|&at| at != 0));
        worker.stop().unwrap();
    }
}

#[test]
fn handlers_that_outlive_their_server_refuse() {
    let directory = Directory::new();
    let registry = Registry::new();
    let policy = FilePolicy::directory(&directory.0, Access::ReadWrite).unwrap();
    let services = Services::builder().files(policy).build();
    services.register(&registry).unwrap();
    let counters = services.files().counters();
    let server =
        Server::builder(HostAllocator).registry(&registry).owning(services).build().unwrap();
    let worker = Worker::start(server).unwrap();
    let warp = Warp::new(worker.server(), 1);
    let files = warp.fopen(|_| b"kept".to_vec(), "w");
    warp.fwrite(|_| files[0], |_| b"not flushed yet".to_vec());
    worker.stop().unwrap();
    assert_eq!(directory.read("kept"), b"not flushed yet", "closed with the server");
    assert_eq!((counters.stats().opened, counters.stats().closed), (1, 1));

    let other = Worker::start(Server::builder(HostAllocator).registry(&registry).build().unwrap());
    let other = other.unwrap();
    let refused = other.server().client().call(
        opcode::MALLOC,
        LaneMask(1),
        |_| 8u64,
        |_, _: u64| unreachable!("the services are gone"),
    );
    assert!(refused.is_err());
    other.stop().unwrap();
}
