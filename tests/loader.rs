//! The loader without a GPU: what it says when something is missing or wrong, and whole programs on
//! a stand-in for the driver (`tests/gpu/fake_driver.cpp`, which needs a C++ compiler).
#![cfg(all(feature = "loader", feature = "cuda", target_os = "linux", not(hostcall_loom)))]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use hostcall::cuda::{self, CompileError, CudaAllocator, CudaError};

const LOADER: &str = env!("CARGO_BIN_EXE_hostcall-loader");

/// PTX as far as the stand-in looks at it: kernels and variables by name.
const PROGRAM: &str = "// A program.\n.version 8.0\n.target sm_70\n.address_size 64\n\
    .visible .global .align 8 .b8 __hostcall_client[552];\n\
    .visible .global .u64 __init_array_object_second_200 = f;\n\
    .visible .global .u64 __init_array_object_first_101 = f;\n\
    .visible .global .u64 __fini_array_object_only_65535 = f;\n\
    .visible .global .u64 __init_array_start;\n.visible .global .u64 __init_array_end;\n\
    .visible .global .u64 __fini_array_start;\n.visible .global .u64 __fini_array_end;\n\
    .visible .entry _begin(.param .u32 a, .param .u64 b, .param .u64 c) { ret; }\n\
    .visible .entry _start(.param .u32 a, .param .u64 b, .param .u64 c, .param .u64 d) { ret; }\n\
    .visible .entry _end() { ret; }\n";

/// A folder for files of this test run.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader");
        fs::create_dir_all(&folder).unwrap();
        folder
    })
}

fn file(name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = folder().join(name);
    fs::write(&path, contents).unwrap();
    path
}

/// A folder with a stand-in for the driver's library.
fn driver(name: &str, definition: &str) -> PathBuf {
    let path = folder().join(name);
    fs::create_dir_all(&path).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .arg(format!("-I{}", root.join("device").display()))
        .arg(format!("-D{definition}"))
        .arg(root.join("tests/gpu/fake_driver.cpp"))
        .arg("-o")
        .arg(path.join("libcuda.so"))
        .status();
    assert!(compiled.expect("a C++ compiler is installed").success());
    path
}

fn fake() -> &'static Path {
    static DRIVER: OnceLock<PathBuf> = OnceLock::new();
    DRIVER.get_or_init(|| driver("fake", "FAKE_NEW"))
}

/// A folder that hides this machine's driver, if it has one.
fn no_driver() -> PathBuf {
    let path = folder().join("none");
    fs::create_dir_all(&path).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(path.join(name), "not a library\n").unwrap();
    }
    path
}

/// How the loader ended.
#[derive(Debug)]
struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Ran { status: output.status.code(), stdout, stderr }
    }
}

fn loader(driver: &Path) -> Command {
    let mut command = Command::new(LOADER);
    command.env("LD_LIBRARY_PATH", driver).env_remove("FAKE_CUDA").stdin(Stdio::null());
    command
}

/// Runs the loader with these arguments, on the stand-in.
fn run<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    loader(fake()).args(arguments).output().unwrap().into()
}

/// Runs the program on the stand-in.
fn program(options: &[&str], arguments: &[&str]) -> Ran {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    let image = IMAGE.get_or_init(|| file("program.ptx", PROGRAM));
    loader(fake())
        .env("HOSTCALL_TEST", "a value")
        .args(options)
        .arg(image)
        .args(arguments)
        .output()
        .unwrap()
        .into()
}

/// Checks that there is one line of complaint, with these parts, and nothing else.
fn assert_complains(ran: &Ran, parts: &[&str]) {
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.starts_with("hostcall-loader: "), "{}", ran.stderr);
    for part in parts {
        assert!(ran.stderr.contains(part), "no {part:?} in {}", ran.stderr);
    }
}

/// The header of an ELF file, with no sections.
fn elf(machine: u16, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    bytes[16..18].copy_from_slice(&kind.to_le_bytes());
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[20] = 1;
    bytes[52] = 64;
    bytes[54] = 56;
    bytes[58] = 64;
    bytes
}

/// A cubin with a section of nothing and one of names, as small as may be.
fn cubin() -> Vec<u8> {
    let mut bytes = elf(190, 2);
    let names = b"\0.shstrtab\0";
    bytes[40] = 64 + 16; // section headers
    bytes[60] = 2; // of them
    bytes[62] = 1; // the one with the names
    bytes.extend(names);
    bytes.resize(64 + 16 + 64, 0);
    let mut section = [0u8; 64];
    section[0] = 1;
    section[4] = 3;
    section[24] = 64;
    section[32] = names.len() as u8;
    bytes.extend(section);
    bytes
}

#[test]
fn a_missing_driver_is_an_error_with_advice() {
    // Where there is one, the loader shows it without.
    match CudaAllocator::open(0) {
        Err(error @ CudaError::NoDriver { .. }) => {
            let message = error.to_string();
            assert!(message.contains("libcuda") && message.contains("install"), "{message}");
        }
        other => println!("this machine has a driver: {other:?}"),
    }
    let image = file("no_driver.ptx", PROGRAM);
    let none = no_driver();
    let parts = ["libcuda.so.1", "install the driver", "docker run --gpus all"];
    assert_complains(&loader(&none).arg(image).output().unwrap().into(), &parts);
    let ran = Ran::from(loader(&none).arg("--list-devices").output().unwrap());
    assert!(!ran.stdout.contains("cuda"), "{ran:?}");
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert!(parts.iter().all(|part| lines[0].contains(part)), "{ran:?}");
    assert!(lines.len() <= 2, "a line for each runtime: {ran:?}");
}

#[test]
fn the_examples_say_what_is_missing() {
    for example in ["cuda_hello", "cuda_custom_opcode"] {
        let ran: Ran = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--features", "cuda", "--example", example])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("LD_LIBRARY_PATH", no_driver())
            .output()
            .unwrap()
            .into();
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        let start = format!("{example}: the NVIDIA driver's library cannot be loaded (");
        assert!(ran.stderr.starts_with(&start), "{}", ran.stderr);
        assert!(ran.stderr.contains("libcuda.so.1"), "{}", ran.stderr);
    }
}

#[test]
fn a_driver_that_lacks_a_function_is_named() {
    let image = file("old_driver.ptx", PROGRAM);
    let old = driver("old", "FAKE_OLD");
    let ran = loader(&old).arg(image).output().unwrap().into();
    assert_complains(&ran, &["no cuEventQuery", "update it"]);
}

#[test]
fn what_the_driver_refuses_is_told_with_advice() {
    let image = file("refused.ptx", PROGRAM);
    for (fault, parts) in [
        ("no-device", &["sees no GPU", "nvidia-smi", "CUDA_VISIBLE_DEVICES"][..]),
        ("stub", &["stub", "install the driver"]),
        ("no-memory", &["cannot pin", "bytes of host memory", "fewer ports"]),
        ("bad-ptx", &["compile it for this GPU, Fake GPU, sm_90", "(218)", "line 7; fatal"]),
        ("new-ptx", &["newer than the driver", "(222)"]),
        ("no-launch", &["_begin", "not launched", "cuLaunchKernel", "--threads"]),
    ] {
        let ran = loader(fake()).env("FAKE_CUDA", fault).arg(&image).output().unwrap().into();
        assert_complains(&ran, parts);
    }
    let ran = loader(fake()).args(["--device", "3"]).arg(&image).output().unwrap().into();
    assert_complains(&ran, &["no CUDA device 3", "sees 1"]);
    // Memory that the driver does not take back is lost, not the program's status.
    let ran: Ran = loader(fake())
        .env("FAKE_CUDA", "lost")
        .arg(&image)
        .args(["return", "7"])
        .output()
        .unwrap()
        .into();
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(7), ""));
}

#[test]
fn files_that_are_no_gpu_image_are_told_apart() {
    let none = no_driver();
    for (name, contents, part) in [
        ("text", b"hello, world\n".to_vec(), "neither PTX text nor an ELF file"),
        ("empty", vec![], "the file is empty"),
        ("script", b"#!/bin/sh\n".to_vec(), "it is a script"),
        ("bitcode", b"BC\xc0\xde1234".to_vec(), "LLVM bitcode"),
        ("fat", b"\x50\xed\x55\xba1234".to_vec(), "cuobjdump"),
        ("archive", b"!<arch>\n".to_vec(), "an archive"),
        ("binary", vec![0xff; 100], "neither PTX text nor an ELF file"),
        ("arm", elf(183, 2), "64-bit Arm processors (machine 183)"),
        ("object", elf(190, 1), "for NVIDIA GPUs that has not been linked: link it with nvlink"),
        ("amd-object", elf(224, 1), "for AMD GPUs that has not been linked: link it with ld.lld"),
        ("amd-bare", elf(224, 3), "no sections"),
        ("bare", elf(190, 2), "no sections"),
        ("magic", b"\x7fELF".to_vec(), "damaged"),
        ("cut.ptx", b".version 8.0\n".to_vec(), "damaged PTX"),
        ("nul.ptx", b".version 8.0\n.target sm_70\n\0.entry".to_vec(), "a NUL byte"),
    ] {
        let path = file(name, contents);
        let ran = loader(&none).arg(&path).output().unwrap().into();
        assert_complains(&ran, &[part, path.to_str().unwrap()]);
    }
    let ran = loader(&none).arg(LOADER).output().unwrap().into();
    let machine = if cfg!(target_arch = "x86_64") { "x86-64 processors" } else { "processors" };
    assert_complains(&ran, &[machine, "--target=nvptx64-nvidia-cuda"]);
    let ran = loader(&none).arg("/there/is/no/such").output().unwrap().into();
    assert_complains(
        &ran,
        &["/there/is/no/such: cannot be read (No such file", "is the path right"],
    );
}

#[cfg(not(feature = "hsa"))]
#[test]
fn an_amd_image_says_what_to_build() {
    let mut image = cubin();
    image[18..20].copy_from_slice(&224u16.to_le_bytes());
    let ran = run([file("amd-linked", image)]);
    assert_complains(&ran, &["for AMD GPUs", "built without `hsa`", "--features loader,hsa"]);
}

#[test]
fn a_damaged_elf_never_reaches_the_driver() {
    let whole = cubin();
    let ran = run([file("whole", &whole)]);
    assert_complains(&ran, &["has no kernel _start", "crt1.o"]);
    for length in 5..whole.len() {
        let ran = run([file("cut", &whole[..length])]);
        assert_complains(&ran, &["/cut: "]);
        assert!(!ran.stderr.contains("_start"), "{length} bytes of {}", whole.len());
    }
    // Offsets and sizes that lead behind the file.
    for at in (32..64).chain(whole.len() - 64..whole.len()) {
        let mut bytes = whole.clone();
        bytes[at] = 0xff;
        let ran = run([file("bent", bytes)]);
        assert_eq!(ran.status, Some(1), "byte {at}: {ran:?}");
    }
}

#[test]
fn kernels_that_are_missing_or_of_another_loader_are_told() {
    let ran = run([file("no_start.ptx", PROGRAM.replace("_start(", "_other("))]);
    assert_complains(&ran, &["has no kernel _start", "crt1.o"]);
    let more = PROGRAM.replace("_begin(", "_begin(.param .u64 z, ");
    let ran = run([file("more.ptx", more)]);
    assert_complains(&ran, &["_begin has 4 parameters", "another loader"]);
}

#[test]
fn help_and_version_are_printed_and_mistakes_are_told() {
    let ran = run(["--help"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(ran.stdout, hostcall::loader::HELP);
    assert!(ran.stdout.lines().count() <= 40);
    let ran = run(["--version"]);
    assert_eq!(ran.stdout, format!("hostcall-loader {}\n", env!("CARGO_PKG_VERSION")));
    assert_complains(&run([""; 0]), &["which image?", "--help"]);
    assert_complains(&run(["--threads", "none", "a.ptx"]), &["--threads: ", "none", "--help"]);
    let ran = run(["--list-devices"]);
    assert_eq!(ran.status, Some(0));
    assert!(ran.stdout.starts_with("cuda 0: Fake GPU, sm_90, 1024 MiB\n"), "{ran:?}");
    assert!(ran.stderr.lines().count() <= 1, "{ran:?}");
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 1, 7, 255] {
        let ran = program(&[], &["return", &status.to_string()]);
        assert_eq!((ran.status, ran.stderr.as_str()), (Some(status), ""));
        assert_eq!(ran.stdout, "destroyed\n", "the destructors ran");
    }
    let ran = program(&[], &["exit", "9"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(9), "before the end\n"));
    assert_eq!(program(&[], &["abort"]).status, Some(134));
}

#[test]
fn arguments_environment_and_constructors_are_there() {
    let ran = program(&[], &["arguments", "", "two words", "--threads", "ü"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert_eq!(ran.stdout, "arguments\n\ntwo words\n--threads\nü\ndestroyed\n");
    assert_eq!(program(&[], &["constructed"]).status, Some(12));
}

#[test]
fn a_single_start_kernel_is_enough() {
    let alone = PROGRAM.replace("_begin(", "_other(").replace("_end(", "_another(");
    let image = file("alone.ptx", alone);
    let ran = run([image.to_str().unwrap(), "return", "3"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(3), ""));
}

#[test]
fn a_program_without_host_calls_needs_no_client() {
    let silent = PROGRAM.replace("__hostcall_client", "something_else").replace("_end(", "_no(");
    let ran = run([file("silent.ptx", silent).to_str().unwrap(), "return", "4"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(4), ""));
}

#[test]
fn standard_streams_are_passed_through() {
    let image = file("copy.ptx", PROGRAM);
    let mut child = loader(fake())
        .arg(image)
        .arg("copy")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"one\n\ntwo without an end").unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(0));
    assert_eq!(ran.stdout, "one\n\ntwo without an enddestroyed\n");
    assert_eq!(ran.stderr, "copied\n");
}

#[test]
fn malloc_gives_what_the_pool_has_and_then_null() {
    assert_eq!(program(&["--pool", "4M"], &["malloc"]).status, Some(4));
    let ran = program(&["--pool", "0"], &["malloc"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(255), ""), "nothing hangs");
}

#[test]
fn a_fault_is_told_and_what_came_before_is_there() {
    let ran = program(&[], &["fault"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), "before the fault\n"));
    let error = "hostcall-loader: _start: the kernel failed: cuEventQuery failed with \
                 CUDA_ERROR_LAUNCH_FAILED (719): ";
    assert!(ran.stderr.starts_with(error), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1);
}

#[test]
fn a_program_that_hangs_ends_with_the_time() {
    let ran = program(&["--timeout", "0.5"], &["hang"]);
    assert_complains(&ran, &["_start", "for more than 500ms", "--timeout"]);
}

#[test]
fn a_program_whose_output_nobody_reads_ends_with_the_time_too() {
    let (_reader, mut full) = std::io::pipe().unwrap();
    full.write_all(&vec![b'.'; 1 << 16]).unwrap();
    let output = loader(fake())
        .args(["--timeout", "0.2"])
        .arg(file("full.ptx", PROGRAM))
        .args(["arguments", "x"])
        .stdout(full)
        .output()
        .unwrap();
    let ran = Ran { stdout: String::new(), ..Ran::from(output) };
    // The handler that is in the way has a name: it writes to standard output.
    assert_complains(&ran, &["for more than 200ms", "'c'+", "on port"]);
}

#[test]
fn unknown_opcodes_are_told_and_the_program_goes_on() {
    let ran = program(&[], &["unknown"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(5), "destroyed\n"));
    let line = "hostcall-loader: opcode 'z'+99 (0x7a000063) on port 0: no handler is registered\n";
    assert_eq!(ran.stderr, line);
}

/// A folder of this test's own, empty.
fn empty_folder(name: &str) -> PathBuf {
    let path = folder().join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn options_say_which_files_and_commands_a_program_may_have() {
    let root = empty_folder("root");
    let outside = empty_folder("outside").join("file");
    let (root, outside) = (root.to_str().unwrap(), outside.to_str().unwrap());
    let write = |options: &[&str], path: &str| program(options, &["write", path]).status;
    assert_eq!(write(&[], outside), Some(0));
    assert_eq!(fs::read(outside).unwrap(), b"written\n");
    fs::remove_file(outside).unwrap();
    for options in [&["--files", "none"][..], &["--files", "read"], &["--root", root]] {
        assert_eq!(write(options, outside), Some(20), "{options:?}");
        assert!(!Path::new(outside).exists(), "{options:?}");
    }
    assert_eq!(write(&["--root", root], "file"), Some(0));
    assert_eq!(fs::read(Path::new(root).join("file")).unwrap(), b"written\n");
    assert_eq!(write(&["--root", root, "--files", "read"], "other"), Some(20));
    let ran = program(&["--root", "/there/is/no/such"], &["write", "file"]);
    assert_complains(&ran, &["--root /there/is/no/such: not a folder", "No such file"]);

    let command = format!("echo ran > {root}/command");
    assert_eq!(program(&["--no-system"], &["system", &command]).status, Some(30));
    assert!(!Path::new(root).join("command").exists());
    assert_eq!(program(&[], &["system", &command]).status, Some(0));
    assert_eq!(fs::read(Path::new(root).join("command")).unwrap(), b"ran\n");
}

#[test]
fn statistics_are_told_at_the_end() {
    let ran = program(&["--stats", "--pool", "4M", "--no-system"], &["malloc"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(4), "destroyed\n"));
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with("hostcall-loader: ")), "{ran:?}");
    // Four pieces, a refusal, a free, a piece again; then the destructor's line.
    for part in [
        "time ",
        "calls    8 begun, 8 done, 0 failed",
        "malloc   4194304 bytes at most, 4194304 in 4 blocks not freed, 1 refused, 0 bad frees",
        "files    0 opened, 0 closed, 0 lost data",
        "denied   0 files, 0 commands, 0 allocations, 0 functions",
    ] {
        assert!(lines.iter().any(|line| line.contains(part)), "no {part:?} in {ran:?}");
    }
    let ran = program(&["--stats", "--files=none"], &["system", "true"]);
    assert!(ran.stderr.contains("denied   0 files, 1 commands"), "{ran:?}");
}

/// Starts the program that writes a file and goes on for ever, and waits until it has written.
fn hanging(name: &str, options: &[&str]) -> (std::process::Child, PathBuf) {
    let written = empty_folder(name).join("written");
    let mut child = loader(fake())
        .args(options)
        .arg(file(&format!("{name}.ptx"), PROGRAM))
        .args(["write", written.to_str().unwrap(), "hang"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"wrote\n");
    (child, written)
}

fn send(signal: &str, child: &std::process::Child) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn signals_end_a_program_with_its_files_written() {
    // What started this test may have it ignored, as `nohup` does, and so the loader would.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let hears_hup = u64::from_str_radix(ignored, 16).unwrap() & 1 == 0;
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        if signal == "HUP" && !hears_hup {
            continue;
        }
        let (child, written) = hanging(signal, &["--stats"]);
        send(signal, &child);
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(status), ""), "{ran:?}");
        assert!(ran.stderr.contains("files    1 opened, 1 closed, 0 lost data"), "{ran:?}");
        assert_eq!(fs::read(written).unwrap(), b"written\n");
    }
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    let written = empty_folder("nohup").join("written");
    let program = file("nohup.ptx", PROGRAM);
    // The shell ignores it for what it starts.
    let script = "trap '' HUP; exec \"$0\" \"$@\"";
    let loader = loader(fake());
    let mut child = Command::new("sh")
        .args(["-c", script, loader.get_program().to_str().unwrap()])
        .envs(loader.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .arg(program)
        .args(["write", written.to_str().unwrap(), "hang"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    send("HUP", &child);
    send("TERM", &child);
    assert_eq!(child.wait().unwrap().code(), Some(143), "the first that was heard");
}

#[test]
fn a_second_signal_ends_a_program_at_once() {
    // Nobody reads what is to be told at the end, and the pipe is full: the first signal waits.
    let (_reader, mut full) = std::io::pipe().unwrap();
    full.write_all(&vec![b'.'; 1 << 16]).unwrap();
    let written = empty_folder("twice").join("written");
    let mut child = loader(fake())
        .arg("--stats")
        .arg(file("twice.ptx", PROGRAM))
        .args(["write", written.to_str().unwrap(), "hang"])
        .stdout(Stdio::piped())
        .stderr(full)
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    send("TERM", &child);
    // It has been heard once the file is written, and what is to be told cannot be.
    while fs::read(&written).unwrap() != b"written\n" {
        std::thread::yield_now();
    }
    assert_eq!(child.try_wait().unwrap(), None);
    send("INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn kernels_of_the_gpu_tests_compile_where_the_compiler_is() {
    let header = |source: &str| {
        source
            .replace("../../device/hostcall.h", "hostcall.h")
            .replace("#include \"start.h\"", include_str!("gpu/start.h"))
    };
    let start = header(include_str!("gpu/start.cpp"));
    let program = header(include_str!("gpu/program.c"));
    for (source, options) in [
        (header(include_str!("device/kernels.cu")), &["-DHOSTCALL_FAST=0"][..]),
        (header(include_str!("gpu/kernels.cu")), &[]),
        (
            format!("{start}\n#define main program_main\nextern \"C\" {{\n{program}\n}}\n"),
            &["-default-device"],
        ),
    ] {
        match cuda::compile(&source, "sm_90", options) {
            Ok(ptx) => {
                assert!(ptx.contains(".visible .entry") && ptx.contains("__hostcall_client"));
            }
            Err(CompileError::NoCompiler { reason }) => {
                assert!(reason.contains("libnvrtc.so"), "{reason}");
                println!("skipped: {reason}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    match cuda::compile("this is no C++", "sm_90", &[]) {
        Err(CompileError::Source { log, .. }) => assert!(log.contains("kernel.cu(1)"), "{log}"),
        other => assert!(matches!(other, Err(CompileError::NoCompiler { .. })), "{other:?}"),
    }
}
