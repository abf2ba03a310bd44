//! The HSA backend where there is no AMD device: its declarations against the real header, what it says
//! when the runtime or the device is missing, and all else over a stand-in.
#![cfg(all(unix, not(hostcall_loom)))]
#![allow(unsafe_code)]

#[path = "hsa/library.rs"]
mod library;
#[path = "hsa/stand_in.rs"]
mod stand_in;

use std::env;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// The example, with this file as the runtime.
fn hello(runtime: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--features", "hsa", "--example", "hsa_hello"]);
    // The example as it is, whatever sanitizer this test itself was built with.
    command.env_remove("RUSTFLAGS").current_dir(MANIFEST);
    command.env("HOSTCALL_HSA_RUNTIME", runtime.unwrap_or_default());
    command.output().expect("cargo runs")
}

/// The one line of an example that failed.
fn failure(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(stderr.starts_with("hsa_hello: ") && !stderr.contains("panicked"), "{stderr}");
    stderr
}

#[test]
fn without_the_runtime_the_error_says_what_to_install() {
    let stderr = failure(hello(Some("/nonexistent/libhsa-runtime64.so.1")));
    assert!(stderr.contains("/nonexistent/libhsa-runtime64.so.1"), "{stderr}");
    assert!(stderr.contains("install"), "{stderr}");
}

#[test]
fn a_library_that_is_no_runtime_is_named_with_the_function_it_lacks() {
    let stderr = failure(hello(Some("libc.so.6")));
    assert!(stderr.contains("hsa_"), "{stderr}");
}

#[test]
fn the_example_gives_a_large_device_a_server() {
    let Some(stand_in) = library::library() else { return };
    let output = hello(stand_in.to_str());
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("a server of 4096 ports of 64 lanes"), "{stdout}");
}

/// The runtime of Debian starts only where its kernel driver is.
#[test]
fn without_a_device_the_error_is_another_one() {
    let name = "libhsa-runtime64.so.1";
    // SAFETY: loading it runs its initialisers, which the example does too.
    if Path::new("/dev/kfd").exists() || unsafe { libloading::Library::new(name) }.is_err() {
        eprintln!("skipped: no {name} here, or a device to go with it");
        return;
    }
    let stderr = failure(hello(None));
    let missing = failure(hello(Some("/nonexistent")));
    assert!(stderr.contains("hsa_init") && stderr != missing, "{stderr}");
}

/// Constants, sizes, offsets and signatures.
#[test]
fn declarations_are_those_of_the_real_header() {
    if !Path::new("/usr/include/hsa/hsa.h").exists() {
        assert!(env::var_os("HOSTCALL_REQUIRE_HSA_HEADER").is_none(), "no hsa/hsa.h");
        eprintln!("skipped: no hsa/hsa.h; Debian has it in libhsa-runtime-dev");
        return;
    }
    let source = Command::new("python3")
        .arg(format!("{MANIFEST}/tests/hsa/header.py"))
        .arg(format!("{MANIFEST}/src/backend/hsa/ffi.rs"))
        .output()
        .expect("python3");
    assert!(source.status.success(), "{}", String::from_utf8_lossy(&source.stderr));
    let compiles = |source: &[u8]| {
        let mut compiler = Command::new("cc")
            .args(["-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a C compiler");
        compiler.stdin.take().expect("a pipe").write_all(source).expect("it reads");
        let output = compiler.wait_with_output().expect("it ends");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(compiles(&source.stdout), (true, String::new()));
    // The check can fail: one constant is another number.
    let text = String::from_utf8(source.stdout).expect("UTF-8");
    let (before, after) = text.split_once(" == ").expect("an assertion");
    assert!(!compiles(format!("{before} == 77 + {after}").as_bytes()).0);
}
