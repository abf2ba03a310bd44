//! Runs GPU programs as if they were local ones: what `hostcall-loader` does, as a library.
//!
//! A program is a linked image with a kernel `_start`, which gets `argc`, `argv`, `envp` and a place
//! for its result; `_begin` and `_end`, where it has them, run before and after (PROTOCOL.md §7.1).
//! Its host calls are answered by [`libc::Services`](crate::libc::Services) with this process's
//! streams, files and environment. `malloc` gets memory that is taken before the start.
//!
//! ```no_run
//! use hostcall::loader::{self, Options};
//! let mut options = Options::new("program.ptx");
//! options.threads = [32, 1, 1];
//! options.arguments.push("--verbose".into());
//! let status = loader::run(&options)?;
//! # Ok::<(), hostcall::loader::LoaderError>(())
//! ```

mod arguments;
mod error;
mod image;
mod options;
mod program;
mod ptx;

use std::ffi::OsString;
use std::io::{self, Write};

pub use error::LoaderError;
pub use image::{Image, ImageError, ImageKind};
pub use options::{Command, Files, HELP, Options, UsageError};

use crate::backend::cuda::{CudaAllocator, device_count, device_name};

/// The exit status for what goes wrong here, as opposed to in the program.
pub const FAILED: i32 = 1;

/// The program `hostcall-loader`: understands a command line, does it, and returns the exit status.
///
/// The process should end with it and not wait for anything else: a program that is given up may
/// still run on the device.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    let done = Command::parse(arguments).map_err(LoaderError::from).and_then(|command| {
        match command {
            Command::Run(options) => return run(&options),
            Command::ListDevices => list_devices()?,
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
    let image = Image::read(&options.image)
        .map_err(|source| LoaderError::Image { path: options.image.clone(), source })?;
    let allocator = CudaAllocator::open(options.device)?;
    program::run(options, &image, allocator.context())
}

fn list_devices() -> Result<(), LoaderError> {
    for device in 0..device_count()? {
        let allocator = CudaAllocator::open(device)?;
        print(&format!("{device}: {}\n", device_name(allocator.context())?))?;
    }
    Ok(())
}

fn print(text: &str) -> Result<(), LoaderError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(LoaderError::Output)
}

/// One line on standard error. Where that is closed, there is nobody to tell.
pub(super) fn complain(problem: &dyn std::error::Error) {
    let _ = writeln!(io::stderr(), "hostcall-loader: {}", error::with_causes(problem));
}
