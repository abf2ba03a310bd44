//! The examples print what they promise.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

use std::process::{Command, Output};

fn run(example: &str) -> Output {
    Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--example", example])
        .args(if cfg!(feature = "sandbox") { &["--features", "sandbox"][..] } else { &[] })
        .args(if cfg!(debug_assertions) { &[][..] } else { &["--release"] })
        // The examples as they are, whatever sanitizer this test itself was built with.
        .env_remove("RUSTFLAGS")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs")
}

#[test]
fn quickstart_prints_through_the_host_and_ends_with_the_devices_status() {
    let output = run("quickstart");
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let said: Vec<_> = stderr.lines().filter(|line| line.starts_with("lane ")).collect();
    let promised: Vec<_> =
        (0..32).map(|lane| format!("lane {lane} says hello through its host")).collect();
    assert_eq!(said, promised);
    assert_eq!(
        stdout,
        "the squares of 0 to 31 add up to 10416\n\
         1048576 bytes came back reversed: true\n\
         4 conversations served, exit status 7\n"
    );
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn custom_opcode_shows_four_ways_to_answer() {
    let output = run("custom_opcode");
    let stdout = String::from_utf8(output.stdout).unwrap();
    for line in [
        "lane 3 is 15 away",
        "lane 1's average is 5.5",
        "CARGO_PKG_NAME is \"hostcall\"",
        "30 steps of progress",
    ] {
        assert!(stdout.lines().any(|printed| printed == line), "{line:?} not in {stdout}");
    }
    assert!(output.status.success());
}

#[test]
fn unit_test_a_handler_replays_its_seed() {
    let output = run("unit_test_a_handler");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("100 seeds pass; seed 42 takes "), "{stdout}");
    assert!(output.status.success());
}

#[cfg(feature = "sandbox")]
#[test]
fn sandboxed_files_shows_what_a_device_sees() {
    let output = run("sandboxed_files");
    let stdout = String::from_utf8(output.stdout).unwrap();
    for line in [
        "device: fwrite gives 20, fclose gives 0",
        "device: fopen(\"/etc/passwd\", \"r\") gives 0",
        "device: fclose of a forged handle gives -1",
        "host:   3 paths led outside",
    ] {
        assert!(stdout.lines().any(|printed| printed == line), "{line:?} not in {stdout}");
    }
    assert!(output.status.success());
}
