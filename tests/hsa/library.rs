//! The stand-in for the HSA runtime, compiled.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Compiles the stand-in once. `None` where the runtime's headers are not.
pub(crate) fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    if !Path::new("/usr/include/hsa/hsa.h").exists() {
        assert!(env::var_os("HOSTCALL_REQUIRE_HSA_HEADER").is_none(), "no hsa/hsa.h");
        eprintln!("skipped: no hsa/hsa.h; Debian has it in libhsa-runtime-dev");
        return None;
    }
    Some(LIBRARY.get_or_init(|| {
        let manifest = env!("CARGO_MANIFEST_DIR");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(concat!(env!("CARGO_CRATE_NAME"), "-libfake-hsa.so"));
        let compiled = Command::new("g++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
            .args([&format!("-I{manifest}/device"), &format!("-I{manifest}/tests/gpu"), "-o"])
            .arg(&library)
            .arg(format!("{manifest}/tests/fake-hsa/fake_hsa.cpp"))
            .status()
            .expect("g++");
        assert!(compiled.success());
        library
    }))
}
