//! Seeds and random bytes through every target, without a fuzzer:
//! `cargo test --manifest-path fuzz/Cargo.toml --no-default-features`

use std::fs;
use std::path::Path;

/// Every file of a target's seeds and, where there are any, of its found failures.
fn replay(name: &str, target: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = fs::read_dir(root.join("seeds").join(name)).expect("a folder with its seeds");
    assert!(seeds.next().is_some(), "no seeds for {name}");
    for folder in [root.join("seeds").join(name), root.join("artifacts").join(name)] {
        for file in fs::read_dir(folder).into_iter().flatten() {
            let path = file.expect("a file").path();
            println!("{}", path.display());
            target(&fs::read(path).expect("its bytes"));
        }
    }
    // The same bytes at every run.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..2000 {
        let length = random() % 600;
        let bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        target(&bytes);
    }
}

#[test]
fn a_server_survives_its_seeds() {
    replay("server", hostcall_fuzz::server);
}

#[test]
fn a_stream_survives_its_seeds() {
    replay("stream", hostcall_fuzz::stream);
}

#[test]
fn a_layout_survives_its_seeds() {
    replay("layout", hostcall_fuzz::layout);
}

#[test]
fn printf_survives_its_seeds() {
    replay("printf", hostcall_fuzz::printf);
}
