//! What keeps a program from running, each as one line that says what to do.

use std::error::Error;
use std::io;
use std::path::PathBuf;

#[cfg(feature = "cuda")]
use crate::backend::cuda::{CudaError, LoadError};
#[cfg(feature = "hsa")]
use crate::backend::hsa::HsaError;
#[cfg(any(feature = "cuda", feature = "hsa"))]
use crate::launch::LaunchError;
use crate::protocol::LayoutError;

use super::image::ImageError;
use super::options::UsageError;

/// Why a program was not run, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The command line.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The file.
    #[error("{}", .path.display())]
    Image {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        source: ImageError,
    },
    /// A good image, for a runtime that this build has not.
    #[error(
        "{} is for {gpus}, and this hostcall-loader was built without `{feature}`: cargo install \
         hostcall --features loader,{feature}", .path.display()
    )]
    NotBuiltIn {
        /// The image.
        path: PathBuf,
        /// What it is for.
        gpus: &'static str,
        /// The feature of this crate that runs it.
        feature: &'static str,
    },
    /// No runtime is built in, so there are no devices to list.
    #[error(
        "this hostcall-loader was built without a runtime: cargo install hostcall --features \
         loader,cuda,hsa"
    )]
    NoRuntime,
    /// A good image, for another GPU than those that are here.
    #[error("{} is for {processor}, and here are: {there}; compile it for one of them", .path.display())]
    OtherGpu {
        /// The image.
        path: PathBuf,
        /// What it is for.
        processor: String,
        /// The instruction sets that there are.
        there: String,
    },
    /// Kernels for waves of different width, which one server cannot serve.
    #[error(
        "{} has kernels for waves of {} and of {} lanes: compile all of it with -mwavefrontsize64 \
         or all without", .path.display(), .lanes[0], .lanes[1]
    )]
    Lanes {
        /// The image.
        path: PathBuf,
        /// Both widths.
        lanes: [u32; 2],
    },
    /// More threads in a block than the program was compiled for.
    #[error(
        "a block of {threads} threads, and the program was compiled for {most} at most: fewer \
         --threads, more --blocks"
    )]
    Threads {
        /// Those asked for.
        threads: u64,
        /// The most.
        most: u32,
    },
    /// The client object of an AMD image.
    #[error("{symbol}: {reason}")]
    ClientObject {
        /// Its name.
        symbol: &'static str,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The runtime or the device.
    #[cfg(any(feature = "cuda", feature = "hsa"))]
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The driver does not load the image.
    #[error("the driver does not load {}: {reason}", .path.display())]
    NotLoaded {
        /// The image.
        path: PathBuf,
        /// What to do, what the driver returned, and what its compiler said.
        reason: String,
    },
    /// No kernel to start.
    #[error(
        "{} has no kernel _start: link the program with the C library's start code (crt1.o), or \
         define the kernel", .path.display()
    )]
    NoStart {
        /// The image.
        path: PathBuf,
    },
    /// A kernel that wants other arguments than a loader gives.
    #[error(
        "the kernel {kernel} has {parameters} parameters, and a loader gives it {given}: it was made \
         for another loader"
    )]
    Parameters {
        /// The kernel.
        kernel: &'static str,
        /// How many it has.
        parameters: usize,
        /// How many there are.
        given: usize,
    },
    /// The image says another interface than the user.
    #[error("{symbol} is the object of {abi}: leave --abi away")]
    OtherAbi {
        /// The client's name.
        symbol: String,
        /// What its size says.
        abi: crate::protocol::Abi,
    },
    /// The interface is not told by the image.
    #[error(
        "{symbol} is a pointer, so the program was built with LLVM 17 to 19: say which, by --abi"
    )]
    WhichAbi {
        /// The client's name.
        symbol: String,
    },
    /// The client object.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Client(#[from] crate::cuda::PublishError),
    /// The server.
    #[error(transparent)]
    Server(#[from] LayoutError),
    /// The handlers.
    #[error(transparent)]
    Handlers(#[from] crate::error::RegisterError),
    /// The folder that files are to be in.
    #[error(
        "--root {}: not a folder that the program's files can be in ({error})", .path.display()
    )]
    Root {
        /// The folder.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The kernel was not launched, faulted, or ran too long.
    #[cfg(any(feature = "cuda", feature = "hsa"))]
    #[error("{kernel}: {}{}", with_causes(.error), advice(.error))]
    Launch {
        /// The kernel.
        kernel: &'static str,
        /// What happened.
        error: LaunchError<RuntimeError>,
    },
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// Standard output is closed or full.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

/// What a runtime could not do.
#[cfg(any(feature = "cuda", feature = "hsa"))]
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// NVIDIA's driver.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// AMD's runtime.
    #[cfg(feature = "hsa")]
    #[error(transparent)]
    Hsa(#[from] HsaError),
}

#[cfg(feature = "hsa")]
impl From<HsaError> for LoaderError {
    fn from(error: HsaError) -> Self {
        RuntimeError::from(error).into()
    }
}

#[cfg(feature = "cuda")]
impl From<CudaError> for LoaderError {
    fn from(error: CudaError) -> Self {
        RuntimeError::from(error).into()
    }
}

#[cfg(feature = "cuda")]
impl LoaderError {
    pub(super) fn not_loaded(path: PathBuf, device: &str, failed: LoadError) -> Self {
        let LoadError { error, log } = failed;
        let code = match &error {
            CudaError::Driver { code, .. } => *code,
            _ => 0,
        };
        let advice = match code {
            // Invalid image, invalid PTX, no binary for this device.
            200 | 209 | 218 => format!("compile it for this GPU, {device}"),
            221 => "install the driver's PTX compiler (libnvidia-ptxjitcompiler)".to_owned(),
            222 => "its PTX is newer than the driver: update the driver, or compile with an older \
                 --cuda-feature=+ptx"
                .to_owned(),
            _ => "look at what it says".to_owned(),
        };
        let log = if log.is_empty() { log } else { format!("; {log}") };
        LoaderError::NotLoaded { path, reason: format!("{advice} ({error}{log})") }
    }
}

/// An error and what caused it, on one line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.extend([": ", &error.to_string()]);
        cause = error.source();
    }
    line.replace('\n', " ")
}

/// What to do about a launch.
#[cfg(any(feature = "cuda", feature = "hsa"))]
fn advice(error: &LaunchError<RuntimeError>) -> &'static str {
    match error {
        #[cfg(feature = "cuda")]
        LaunchError::NotLaunched(RuntimeError::Cuda(CudaError::Driver {
            code: 1 | 701, ..
        })) => " (fewer --threads or --blocks, or a smaller --stack?)",
        #[cfg(feature = "cuda")]
        LaunchError::Failed {
            source: RuntimeError::Cuda(CudaError::Driver { code: 700 | 719, .. }),
            ..
        } => " (compute-sanitizer finds the place; a deep program may want a larger --stack)",
        LaunchError::TimedOut { .. } => " (a larger --timeout?)",
        _ => "",
    }
}
