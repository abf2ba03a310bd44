//! The device header `device/hostcall.h`, compiled for the CPU as a warp of one lane, against the real
//! server. Needs a C++ compiler.
#![cfg(all(feature = "host", target_os = "linux", not(hostcall_loom)))]
#![expect(unsafe_code, reason = "calls into a C++ library that this test compiles")]

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hostcall::backend::host::HostAllocator;
use hostcall::libc::Services;
use hostcall::libc::files::{Captured, Standard};
use hostcall::{Abi, HandlerError, Opcode, Registry, Request, Server, Status, Worker};
use libloading::{Library, Symbol};

const INCREMENT: Opcode = Opcode::new(b'x', 1);
const ECHO: Opcode = Opcode::new(b'x', 2);
const TELL: Opcode = Opcode::new(b'x', 3);
const FAIL: Opcode = Opcode::new(b'x', 4);
const UNKNOWN: Opcode = Opcode::new(b'x', 5);

/// Compiles the header with its C entry points and loads it.
fn header(abi: Abi) -> Library {
    let name = format!("libhostcall_header_{abi:?}.so");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/host_shim.cpp");
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .args((abi == Abi::Hostcall).then_some("-DTEST_FAST"))
        .arg(source)
        .arg("-o")
        .arg(&library)
        .status();
    assert!(compiled.expect("a C++ compiler is installed").success());
    // SAFETY: the library was just compiled from our source and has no initialisers of its own.
    unsafe { Library::new(library) }.unwrap()
}

/// A function of the library.
fn function<'l, F>(library: &'l Library, name: &str) -> Symbol<'l, F> {
    // SAFETY: callers name the type that host_shim.cpp declares for the function.
    unsafe { library.get(name.as_bytes()) }.unwrap()
}

#[test]
fn the_header_talks_to_the_server() {
    talk(Abi::Llvm20);
}

#[test]
fn the_header_talks_to_the_server_on_the_crates_own_wire() {
    talk(Abi::Hostcall);
}

fn talk(abi: Abi) {
    let (registry, printed) = (Registry::new(), Captured::new());
    let services = Services::builder().standard(Standard::null().stdout(printed.clone())).build();
    services.register(&registry).unwrap();
    registry.unary(INCREMENT, |_, number: u64| number + 1).unwrap();
    registry.bytes(ECHO, |_, bytes| bytes).unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let sum = told.clone();
    registry
        .notification(TELL, move |_, number: u64| {
            sum.fetch_add(number, Ordering::Relaxed);
        })
        .unwrap();
    registry.register(FAIL, |_: Request<'_>| Err(HandlerError::new("as the test wants"))).unwrap();
    let server = Server::builder(HostAllocator).abi(abi).lanes(1).ports(3).registry(&registry);
    let worker = Worker::start(server.owning(services).build().unwrap()).unwrap();
    let server = worker.server();

    let library = header(abi);
    let publish: Symbol<'_, unsafe extern "C" fn(*const c_void, usize) -> c_int> =
        function(&library, "hc_test_publish");
    let call: Symbol<'_, unsafe extern "C" fn(u32, u64) -> u64> =
        function(&library, "hc_test_call");
    let try_call: Symbol<'_, unsafe extern "C" fn(u32, u64, *mut u64) -> u32> =
        function(&library, "hc_test_try_call");
    let notify: Symbol<'_, unsafe extern "C" fn(u32, u64)> = function(&library, "hc_test_notify");
    let echo: Symbol<
        '_,
        unsafe extern "C" fn(u32, *const c_void, usize, *mut c_void, usize) -> usize,
    > = function(&library, "hc_test_stream_echo");
    let print: Symbol<'_, unsafe extern "C" fn(c_int, *const c_char) -> u64> =
        function(&library, "hc_test_print");
    let exit: Symbol<'_, unsafe extern "C" fn(u32)> = function(&library, "hc_test_request_exit");

    let image = server.client_image();
    let bytes = image.as_bytes();
    // SAFETY: the image is valid for its length; no client thread runs yet.
    assert_eq!(unsafe { publish(bytes.as_ptr().cast(), bytes.len()) }, 0);

    // SAFETY: as above. A client of ports that have been used already goes on where they stand.
    assert_eq!(unsafe { call(INCREMENT.0, 1) }, 2);
    let image = server.client_image();
    // SAFETY: as above.
    assert_eq!(unsafe { publish(image.as_bytes().as_ptr().cast(), bytes.len()) }, 0);

    // More threads than ports, each with calls of its own.
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let call = &call;
            scope.spawn(move || {
                for number in 0..500 {
                    let number = thread << 32 | number;
                    // SAFETY: plain values; the image was published and its server lives.
                    assert_eq!(unsafe { call(INCREMENT.0, number) }, number + 1);
                }
            });
        }
    });

    for length in [0, 1, 55, 56, 57, 119, 120, 121, 251, 1 << 20] {
        let message: Vec<u8> = (0..length).map(|i| (i * 31) as u8).collect();
        let mut back = vec![0; length + 1];
        // SAFETY: both buffers are valid for the lengths given.
        let received = unsafe {
            echo(ECHO.0, message.as_ptr().cast(), length, back.as_mut_ptr().cast(), length)
        };
        assert_eq!((received, &back[..length]), (length, &message[..]));
    }

    // SAFETY: the text is a C string; the rest are plain values and a valid place for the reply.
    unsafe {
        assert_eq!(print(1, c"printed by the header\n".as_ptr()), 22);
        assert_eq!(printed.contents(), b"printed by the header\n");

        let mut reply = 7;
        assert_eq!(try_call(INCREMENT.0, 1, &raw mut reply), 0);
        assert_eq!(reply, 2);
        assert_eq!(try_call(UNKNOWN.0, 1, &raw mut reply), Status::UnknownOpcode.to_wire());
        assert_eq!(reply, 0, "a refused client reads zeros");
        assert_eq!(try_call(FAIL.0, 1, &raw mut reply), Status::HandlerFailed.to_wire());

        (0..100).for_each(|number| notify(TELL.0, number));
        exit(5);
    }
    while server.exit_request().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(server.exit_request().unwrap().status, 5);
    let stats =
        worker.stop().map(|_| ()).and(Ok::<_, hostcall::WorkerError>(told.load(Ordering::Relaxed)));
    assert_eq!(stats.unwrap(), 4950, "drained");
}
