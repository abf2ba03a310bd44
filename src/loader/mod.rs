//! Runs GPU programs as if they were local ones: what `hostcall-loader` does, as a library.
//!
//! A program is a linked image with a kernel `_start`, which gets `argc`, `argv`, `envp` and a place
//! for its result; `_begin` and `_end`, where it has them, run before and after (PROTOCOL.md §7.1).
//! Its host calls are answered by [`libc::Services`](crate::libc::Services) with this process's
//! streams, files and environment. `malloc` gets memory that is taken before the start. Programs for AMD
//! GPUs have run over a stand-in for the HSA runtime, not yet on hardware.
//!
//! ```no_run
//! use hostcall::loader::{self, Options};
//! let mut options = Options::new("program.ptx");
//! options.threads = [32, 1, 1];
//! options.arguments.push("--verbose".into());
//! let status = loader::run(&options)?;
//! # Ok::<(), hostcall::loader::LoaderError>(())
//! ```

#[cfg(any(feature = "cuda", feature = "hsa"))]
mod arguments;
#[cfg(feature = "hsa")]
mod code_object;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
#[cfg(feature = "hsa")]
mod hsa;
mod image;
mod options;
#[cfg(any(feature = "cuda", feature = "hsa"))]
mod program;
mod ptx;
#[cfg_attr(
    not(any(feature = "cuda", feature = "hsa")),
    expect(dead_code, reason = "runs no programs then")
)]
mod signals;
#[cfg(any(feature = "cuda", feature = "hsa"))]
mod summary;

use std::ffi::OsString;
use std::io::{self, Write};

pub use error::LoaderError;
#[cfg(any(feature = "cuda", feature = "hsa"))]
pub use error::RuntimeError;
pub use image::{Image, ImageError, ImageKind};
pub use options::{Command, Files, HELP, Options, UsageError};

use signals::Signals;

/// The exit status for what goes wrong here, as opposed to in the program.
pub const FAILED: i32 = 1;

/// The program `hostcall-loader`: understands a command line, does it, and returns the exit status.
///
/// The process should end with it and not wait for anything else: a program that is given up may
/// still run on the device. While a program runs, SIGINT, SIGTERM and SIGHUP end the process, as the
/// [help](HELP) says.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    let done = Command::parse(arguments).map_err(LoaderError::from).and_then(|command| {
        match command {
            Command::Run(options) => {
                let signals = Signals::catch().map_err(LoaderError::Signals)?;
                return execute(&options, Some(&signals));
            }
            Command::ListDevices => return list_devices(),
            Command::Help => print(HELP)?,
            Command::Version => {
                print(concat!("hostcall-loader ", env!("CARGO_PKG_VERSION"), "\n"))?;
            }
        }
        Ok(0)
    });
    done.unwrap_or_else(|error| {
        complain(&error);
        FAILED
    })
}

/// Runs a program and returns its exit status.
///
/// # Errors
/// [`LoaderError`].
pub fn run(options: &Options) -> Result<i32, LoaderError> {
    execute(options, None)
}

fn execute(options: &Options, signals: Option<&Signals>) -> Result<i32, LoaderError> {
    let image = Image::read(&options.image)
        .map_err(|source| LoaderError::Image { path: options.image.clone(), source })?;
    match image.kind() {
        #[cfg(feature = "cuda")]
        ImageKind::Cubin | ImageKind::Ptx => cuda::run(options, &image, signals),
        #[cfg(feature = "hsa")]
        ImageKind::CodeObject => hsa::run(options, &image, signals),
        #[cfg(not(all(feature = "cuda", feature = "hsa")))]
        kind => {
            let _ = signals;
            let (gpus, feature) = match kind {
                ImageKind::CodeObject => ("AMD GPUs", "hsa"),
                ImageKind::Cubin | ImageKind::Ptx => ("NVIDIA GPUs", "cuda"),
            };
            Err(LoaderError::NotBuiltIn { path: options.image.clone(), gpus, feature })
        }
    }
}

/// Prints the devices, a line each, with the runtime that has them. A runtime that is not there matters
/// where no other has a device.
fn list_devices() -> Result<i32, LoaderError> {
    let runtimes = [
        #[cfg(feature = "cuda")]
        ("cuda", cuda::devices()),
        #[cfg(feature = "hsa")]
        ("hsa", hsa::devices()),
        #[cfg(not(any(feature = "cuda", feature = "hsa")))]
        ("", Err::<Vec<String>, _>(LoaderError::NoRuntime)),
    ];
    let (mut listed, mut failed) = (false, None::<LoaderError>);
    for (runtime, devices) in runtimes {
        match devices {
            Ok(devices) => {
                for (number, device) in devices.iter().enumerate() {
                    print(&format!("{runtime} {number}: {device}\n"))?;
                    listed = true;
                }
            }
            Err(error) => {
                if let Some(other) = failed.replace(error) {
                    complain(&other);
                }
            }
        }
    }
    if listed { Ok(0) } else { failed.map_or(Ok(0), Err) }
}

fn print(text: &str) -> Result<(), LoaderError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(LoaderError::Output)
}

/// One line on standard error. Where that is closed, there is nobody to tell.
pub(super) fn complain(problem: &dyn std::error::Error) {
    let _ = writeln!(io::stderr(), "hostcall-loader: {}", error::with_causes(problem));
}
