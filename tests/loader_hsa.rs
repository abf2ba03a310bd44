//! The loader for AMD code objects: real ones, which clang compiles and lld links, over a stand-in for the HSA
//! runtime (`tests/fake-hsa`), which runs the test program in their place.
#![cfg(all(target_os = "linux", not(hostcall_loom)))]

#[path = "hsa/library.rs"]
mod library;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const LOADER: &str = env!("CARGO_BIN_EXE_hostcall-loader");
const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// A folder for files of this test run.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader-hsa");
        fs::create_dir_all(&folder).unwrap();
        folder
    })
}

/// Whether the tools are here. Where the environment says so, they must be.
fn tools() -> bool {
    let header = Path::new("/usr/include/hsa/hsa.h").exists();
    let clang = Command::new("clang-22").arg("--version").stdout(Stdio::null()).status().is_ok();
    let required = env::var_os("HOSTCALL_REQUIRE_HSA_HEADER").is_some();
    assert!(!required || (header && clang), "no clang-22 or no hsa/hsa.h");
    if !header || !clang {
        eprintln!("skipped: needs clang-22, lld-22, llvm-22 and libhsa-runtime-dev");
    }
    header && clang
}

/// The stand-in's library.
fn stand_in() -> &'static Path {
    library::library().expect("the tools are here")
}

/// The test program, linked for a processor, with more options for the compiler.
fn build(name: &str, processor: &str, options: &[&str]) -> PathBuf {
    let folder = folder().join(name);
    let built = Command::new(format!("{MANIFEST}/tests/gpu/build_amd.sh"))
        .arg(&folder)
        .arg(processor)
        .args(options)
        .output()
        .expect("bash");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder.join(format!("program-{processor}.co"))
}

fn gfx90a() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build("gfx90a", "gfx90a", &[]))
}

fn gfx1100() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build("gfx1100", "gfx1100", &[]))
}

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    Command::new(LOADER)
        .env("HOSTCALL_HSA_RUNTIME", stand_in())
        .env("HOSTCALL_TEST", "a value")
        .stdin(Stdio::null())
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs the program for gfx90a.
fn program(options: &[&str], arguments: &[&str]) -> (Option<i32>, String, String) {
    let image = gfx90a().to_str().unwrap();
    let output = run(options.iter().chain([&image]).chain(arguments));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Checks that a file is refused in one line with this in it.
fn assert_refused(options: &[&str], image: &Path, part: &str) {
    let output = run(options.iter().map(OsStr::new).chain([image.as_os_str()]));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(part) && stderr.lines().count() == 1, "{part}: {stderr}");
}

#[test]
fn programs_run_with_arguments_constructors_and_their_status() {
    if !tools() {
        return;
    }
    let said = |status, text: &str| (Some(status), text.to_owned(), String::new());
    assert_eq!(program(&[], &["return", "7"]), said(7, "destroyed\n"));
    assert_eq!(program(&[], &["arguments", "x y"]), said(0, "arguments\nx y\ndestroyed\n"));
    assert_eq!(program(&[], &["constructed"]), said(12, "destroyed\n"));
    assert_eq!(program(&[], &["exit", "5"]), said(5, "before the end\n"));
    assert_eq!(program(&["--pool", "3M"], &["malloc"]), said(3, "destroyed\n"));
    assert_eq!(program(&["--pool", "0"], &["malloc"]), said(255, "destroyed\n"));
    let wave32 = run([gfx1100().as_os_str(), "return".as_ref(), "9".as_ref()]);
    assert_eq!(wave32.status.code(), Some(9), "{wave32:?}");
}

#[test]
fn a_fault_and_a_hang_end_with_a_line_of_advice() {
    if !tools() {
        return;
    }
    let (status, stdout, stderr) = program(&[], &["fault"]);
    assert_eq!((status, stdout.as_str()), (Some(1), "before the fault\n"));
    assert!(stderr.contains("_start: the kernel failed") && stderr.contains("a planned fault"));
    let (status, _, stderr) = program(&["--timeout", "0.2"], &["hang"]);
    assert!(status == Some(1) && stderr.contains("--timeout"), "{stderr}");
}

#[test]
fn the_device_is_chosen_by_the_image() {
    if !tools() {
        return;
    }
    let list = run(["--list-devices"]);
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("hsa 0: Stand-in Instinct (gfx90a:sramecc+:xnack-)"), "{list}");
    assert!(list.contains("hsa 1: gfx1100 (gfx1100)"), "{list}");
    let here = "here are: gfx90a:sramecc+:xnack-, gfx1100";
    assert_refused(&[], &build("other", "gfx1030", &[]), here);
    assert_refused(&[], &build("xnack", "gfx90a:xnack+", &[]), "is for gfx90a:xnack+");
    assert_refused(&["--device", "1"], gfx90a(), here);
    assert_refused(&["--device", "2"], gfx90a(), "no HSA device 2");
    assert_refused(&["--threads", "1025"], gfx90a(), "1024 at most");
    assert_refused(&["--abi", "main"], gfx90a(), "leave --abi away");
}

#[test]
fn without_a_runtime_the_line_says_what_to_install() {
    if !tools() {
        return;
    }
    let output = Command::new(LOADER)
        .env("HOSTCALL_HSA_RUNTIME", "/nonexistent")
        .arg(gfx90a())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("install"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1);
}

/// The stand-in says so where something is in use when the runtime is shut down.
#[test]
fn each_call_of_the_runtime_may_fail_and_all_is_given_back() {
    if !tools() {
        return;
    }
    for n in 1.. {
        let output = Command::new(LOADER)
            .env("HOSTCALL_HSA_RUNTIME", stand_in())
            .env("FAKE_HSA_REFUSE", n.to_string())
            .args([gfx90a().as_os_str(), "return".as_ref(), "3".as_ref()])
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        if output.status.code() == Some(3) {
            assert!(n > 100 && stderr.is_empty(), "{n}: {stderr}");
            return;
        }
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{n}: {stderr}");
        let reason =
            stderr.contains("refused by the stand-in") || stderr.contains("cannot allocate");
        assert!(reason, "{n}: {stderr}");
    }
}

#[test]
fn what_the_runtime_finds_in_the_image_is_checked() {
    if !tools() {
        return;
    }
    let run = |odd: &str, options: &[&str]| {
        let output = Command::new(LOADER)
            .env("HOSTCALL_HSA_RUNTIME", stand_in())
            .env("FAKE_HSA_ODD", odd)
            .args(options.iter().map(OsStr::new).chain([gfx90a().as_os_str(), "return".as_ref()]))
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (odd, part) in [
        ("two-clients", "the program has __llvm_rpc_client as well"),
        ("llvm17-client", "programs of LLVM 20 and later run on AMD GPUs"),
        ("odd-client", "no known client object has 100 bytes"),
        ("no-kernels", "no kernel _start"),
        ("no-isas", "gfx90a"),
    ] {
        let (status, stderr) = run(odd, &["--timeout", "10"]);
        assert_eq!((status, stderr.lines().count()), (Some(1), 1), "{odd}: {stderr}");
        assert!(stderr.contains(part), "{odd}: {stderr}");
    }
    // What it says, nobody hears; it runs all the same.
    assert_eq!(run("no-client", &["--timeout", "10"]), (Some(0), String::new()));
    let (status, stderr) = run("", &["--abi", "llvm20"]);
    assert_eq!(status, Some(0), "the one that it is: {stderr}");
    let (status, stderr) = run("", &["--abi", "main"]);
    assert!(status == Some(1) && stderr.contains("leave --abi away"), "{stderr}");
    let listed = Command::new(LOADER)
        .env("HOSTCALL_HSA_RUNTIME", stand_in())
        .env("FAKE_HSA_ODD", "no-isas")
        .arg("--list-devices")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("hsa 0: Stand-in Instinct\n"));
}

/// The stand-in ends the process where the kernel gets another stack than it says here.
#[test]
fn a_kernel_whose_stack_the_compiler_does_not_know_gets_one() {
    if !tools() {
        return;
    }
    for (options, stack) in [(&[] as &[&str], "16384"), (&["--stack", "64K"], "65536")] {
        let output = Command::new(LOADER)
            .env("HOSTCALL_HSA_RUNTIME", stand_in())
            .env("FAKE_HSA_STACK", stack)
            .args(options.iter().map(OsStr::new).chain([gfx90a().as_os_str(), "return".as_ref()]))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{stack}: {output:?}");
    }
}

/// Where a text stands in bytes.
fn position(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|window| window == text).expect("it is there")
}

#[test]
fn broken_copies_are_refused_or_run_and_nothing_else() {
    if !tools() {
        return;
    }
    let image = fs::read(gfx90a()).unwrap();
    let broken = |name: &str, change: &dyn Fn(&mut Vec<u8>), part: &str| {
        let mut copy = image.clone();
        change(&mut copy);
        let path = folder().join(name);
        fs::write(&path, copy).unwrap();
        assert_refused(&[], &path, part);
    };
    broken("cut", &|copy| copy.truncate(image.len() / 2), "a damaged ELF file");
    broken("no-name", &|copy| copy[position(&image, b"AMDGPU\0")] = b'X', "it has none");
    let at = |name: &[u8]| position(&image, name) + name.len();
    broken("no-list", &|copy| copy[at(b"amdhsa.kernels") - 1] = b'Z', "no list of kernels");
    broken("no-target", &|copy| copy[at(b"amdhsa.target") - 1] = b'T', "no target");
    broken("two-widths", &|copy| copy[at(b".wavefront_size")] = 32, "32");
    broken("lanes", &|copy| copy[at(b".wavefront_size")] = 17, "waves of 17 lanes");
    broken(
        "size",
        &|copy| {
            // 280 as a number of two bytes.
            let size = at(b".kernarg_segment_size");
            copy[size + 1..size + 3].copy_from_slice(&[0, 1]);
        },
        "an argument of",
    );
    broken(
        "no-start",
        &|copy| {
            let name = position(&image, b"_start.kd");
            copy[name..name + 9].copy_from_slice(b"_steam.kd");
            let name = image.windows(9).rposition(|window| window == b"_start.kd").unwrap();
            copy[name..name + 9].copy_from_slice(b"_steam.kd");
        },
        "no kernel _start",
    );
    // Bytes all over the metadata in turn: an end without a panic, whichever it is.
    let start = position(&image, b"AMDGPU\0");
    let end = position(&image, b"amdhsa.version");
    let path = folder().join("flipped");
    for at in (start..end).step_by(41) {
        let mut copy = image.clone();
        copy[at] ^= 0x55;
        fs::write(&path, copy).unwrap();
        let output = run([path.as_os_str(), "return".as_ref(), "3".as_ref()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 3)), "{at}: {stderr}");
        assert!(!stderr.contains("panicked"), "{at}: {stderr}");
    }
}
