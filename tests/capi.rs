//! The C interface: its header is the sources', and the C and C++ examples do what they promise, linked
//! statically and dynamically, and under valgrind.
#![cfg(all(target_os = "linux", not(hostcall_loom)))]

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// Whether a program is here. One that the environment requires must be.
fn has(program: &str, required: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    assert!(found || env::var_os(required).is_none(), "no {program}");
    if !found {
        eprintln!("skipped: no {program} here");
    }
    found
}

/// Runs a command and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.current_dir(MANIFEST).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?}\n{stderr}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The folder with both libraries, built by the documented command.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["rustc", "--quiet", "--release", "--lib", "--features", "capi"]);
        cargo.args(["--crate-type", "staticlib,cdylib", "--target-dir"]).arg(&target);
        run(cargo.env_remove("RUSTFLAGS"));
        target.join("release")
    })
}

/// Compiles an example, with warnings as errors.
fn example(compiler: &str, standard: &str, source: &str, shared: bool) -> PathBuf {
    let program = format!("{source}-{}", if shared { "shared" } else { "static" });
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program.replace('.', "-"));
    let mut command = Command::new(compiler);
    command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command
        .args(["-Isrc/capi", "-Idevice", &format!("examples/capi/{source}"), "-o"])
        .arg(&program);
    if shared {
        let mut path = std::ffi::OsString::from("-Wl,-rpath,");
        path.push(libraries());
        command.arg(path).arg("-L").arg(libraries()).arg("-lhostcall");
    } else {
        command.arg(libraries().join("libhostcall.a")).args(["-ldl", "-lm"]);
    }
    run(&mut command);
    program
}

fn says_what_it_promises(compiler: &str, standard: &str, source: &str, promised: &str) {
    for shared in [false, true] {
        let program = example(compiler, standard, source, shared);
        assert_eq!(run(&mut Command::new(&program)), promised);
        if has("valgrind", "HOSTCALL_REQUIRE_VALGRIND") {
            let mut valgrind = Command::new("valgrind");
            valgrind.args([
                "--quiet",
                "--error-exitcode=9",
                "--leak-check=full",
                "--fair-sched=yes",
            ]);
            valgrind.arg("--errors-for-leak-kinds=definite,indirect").arg(program);
            assert_eq!(run(&mut valgrind), promised);
        }
    }
}

#[test]
fn the_c_example() {
    let promised = "32 lanes: the squares add up to 10416\nolleh\n\
                    64 lanes: the squares add up to 85344\nolleh\nall memory came back\n";
    says_what_it_promises("cc", "-std=c11", "square.c", promised);
}

#[test]
fn the_cpp_example() {
    let promised = "the sum is 42\nprinted by the device\n2 callbacks failed, and nothing else\n";
    says_what_it_promises("c++", "-std=c++17", "waiting.cpp", promised);
}

#[test]
fn the_header_may_be_included_twice_by_any_standard() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("twice.inc");
    let text = "#include \"hostcall_rpc.h\"\n#include \"hostcall_rpc.h\"\nint unused;\n";
    fs::write(&source, text).expect("it can be written");
    let c = ["-std=c99", "-std=c11", "-std=c17"].map(|standard| ("cc", "c", standard));
    let cpp = ["-std=c++98", "-std=c++11", "-std=c++14", "-std=c++20"];
    let cpp = cpp.map(|standard| ("c++", "c++", standard));
    for (compiler, language, standard) in c.into_iter().chain(cpp) {
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-Isrc/capi"]);
        // Of 1998, it has no `long long`, which stdint.h needs.
        command.args(["-Wno-long-long", "-fsyntax-only", "-x", language]).arg(&source);
        run(&mut command);
    }
}

/// `HOSTCALL_UPDATE_HEADER=1` writes the header anew. The files one after the other are one source for
/// cbindgen, which would take constants of the whole crate otherwise.
#[test]
fn the_header_is_the_sources() {
    // Others lay it out differently, or do not parse the sources.
    const VERSION: &str = "cbindgen 0.29.";
    let version = Command::new("cbindgen").arg("--version").output();
    if !version.is_ok_and(|output| output.stdout.starts_with(VERSION.as_bytes())) {
        assert!(env::var_os("HOSTCALL_REQUIRE_CBINDGEN").is_none(), "no {VERSION}x");
        eprintln!("skipped: no {VERSION}x here (cargo install cbindgen@0.29.4)");
        return;
    }
    let folder = Path::new(MANIFEST).join("src/capi");
    let mut source = String::new();
    for file in ["status", "device", "port", "original"] {
        let text = fs::read_to_string(folder.join(file).with_extension("rs")).expect("a file");
        for line in text.lines().filter(|line| !line.starts_with("//!")) {
            writeln!(source, "{line}").expect("a String takes all");
        }
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi.rs");
    fs::write(&file, source).expect("it can be written");
    let mut cbindgen = Command::new("cbindgen");
    let made = run(cbindgen.arg("--config").arg(folder.join("cbindgen.toml")).arg(file));
    let header = folder.join("hostcall_rpc.h");
    if env::var_os("HOSTCALL_UPDATE_HEADER").is_some() {
        fs::write(&header, &made).expect("it can be written");
    }
    let header = fs::read_to_string(header).expect("the header");
    assert!(
        header == made,
        "src/capi/hostcall_rpc.h is stale: HOSTCALL_UPDATE_HEADER=1 cargo test --features capi --test capi"
    );
    assert!(header.contains("rpc_status_t rpc_handle(void);") && !header.contains("PACKET_SIZE"));
}
