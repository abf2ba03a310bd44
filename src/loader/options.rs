//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use crate::protocol::Abi;

/// What the loader prints for `--help`.
pub const HELP: &str = "\
Runs a GPU program as if it were a local one.

Usage: hostcall-loader [OPTION]... IMAGE [ARGUMENT]...

IMAGE is a linked cubin, PTX text or AMD code object with a kernel `_start`, as LLVM's C library has
it. It gets the arguments, this process's environment, standard streams, files and exit status.

  --threads N, --threads-x N, --threads-y N, --threads-z N   threads of a block (1)
  --blocks N, --blocks-x N, --blocks-y N, --blocks-z N       blocks of the grid (1)
  --device N          the GPU, numbered as --list-devices does (the first that fits)
  --list-devices      print the GPUs and end
  --ports N           conversations at a time (as many as warps that can run)
  --pool SIZE         memory for malloc, taken before the start (64M)
  --stack SIZE        stack of each thread (the driver's choice, or what the code says)
  --abi NAME          LLVM release of the program: llvm17, llvm18 or llvm19 must be said
  --files none|read|all   which of this user's files the program may open (all)
  --root FOLDER       of those, the ones in this folder alone; it is the root of their paths
  --no-system         refuse the program's `system`
  --timeout SECONDS   give up after this time
  --stats             at the end, tell on standard error what was done
  -h, --help          print this and end
  -V, --version       print the version and end

SIZE takes K, M or G. The exit status is the program's. What goes wrong here is one line on standard
error and status 1: no GPU image, no driver, no kernel, a launch that fails, a fault, the time.
SIGINT and SIGTERM write out the program's files and end with status 128 and their number; a second
one ends at once.
";

/// Which files the program may open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// None.
    None,
    /// All that this user can read, for reading.
    Read,
    /// All that this user can.
    #[default]
    All,
}

/// How to run a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The image.
    pub image: PathBuf,
    /// The program's arguments; the image's name comes before them.
    pub arguments: Vec<OsString>,
    /// Threads of a block, by dimension.
    pub threads: [u32; 3],
    /// Blocks of the grid, by dimension.
    pub blocks: [u32; 3],
    /// The device, numbered from 0 among those of the image's runtime; the first that can run the image
    /// where `None`.
    pub device: Option<usize>,
    /// Conversations at a time; as many as warps that can run where `None`.
    pub ports: Option<u32>,
    /// Bytes for `malloc`.
    pub pool: u64,
    /// Bytes of each thread's stack, where the runtime lets it be chosen.
    pub stack: Option<usize>,
    /// The program's interface, where the image does not tell.
    pub abi: Option<Abi>,
    /// Which files may be opened.
    pub files: Files,
    /// The folder that they are in: they cannot be outside, and paths begin there.
    pub root: Option<PathBuf>,
    /// Whether commands may be run.
    pub system: bool,
    /// How long the program may run.
    pub timeout: Option<Duration>,
    /// Whether to tell on standard error, at the end, what was done.
    pub stats: bool,
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Command {
    /// Run a program.
    Run(Options),
    /// Print the devices.
    ListDevices,
    /// Print the help.
    Help,
    /// Print the version.
    Version,
}

/// A command line that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// An option that is none, or a value that is none for it.
    #[error("{0}; see --help")]
    Option(lexopt::Error),
    /// No image.
    #[error("which image? See --help")]
    NoImage,
}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        UsageError::Option(error)
    }
}

impl Options {
    /// Defaults for an image.
    pub fn new(image: impl Into<PathBuf>) -> Self {
        Options {
            image: image.into(),
            arguments: Vec::new(),
            threads: [1; 3],
            blocks: [1; 3],
            device: None,
            ports: None,
            pool: 64 << 20,
            stack: None,
            abi: None,
            files: Files::default(),
            root: None,
            system: true,
            timeout: None,
            stats: false,
        }
    }
}

impl Command {
    /// Understands a command line, the program's name first.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let mut parser = Parser::from_iter(arguments);
        let mut options = Options::new("");
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Value(image) => {
                    options.image = image.into();
                    // What follows is the program's, options too.
                    options.arguments = parser.raw_args()?.collect();
                    return Ok(Command::Run(options));
                }
                Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
                Arg::Short('V') | Arg::Long("version") => return Ok(Command::Version),
                Arg::Long("list-devices") => return Ok(Command::ListDevices),
                Arg::Long("threads" | "threads-x") => options.threads[0] = count(&mut parser)?,
                Arg::Long("threads-y") => options.threads[1] = count(&mut parser)?,
                Arg::Long("threads-z") => options.threads[2] = count(&mut parser)?,
                Arg::Long("blocks" | "blocks-x") => options.blocks[0] = count(&mut parser)?,
                Arg::Long("blocks-y") => options.blocks[1] = count(&mut parser)?,
                Arg::Long("blocks-z") => options.blocks[2] = count(&mut parser)?,
                Arg::Long("device") => options.device = Some(parser.value()?.parse()?),
                Arg::Long("ports") => options.ports = Some(count(&mut parser)?),
                Arg::Long("pool") => options.pool = parser.value()?.parse_with(size)?,
                Arg::Long("stack") => {
                    let bytes = parser.value()?.parse_with(size)?;
                    options.stack = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
                }
                Arg::Long("abi") => options.abi = Some(parser.value()?.parse_with(abi)?),
                Arg::Long("files") => options.files = parser.value()?.parse_with(files)?,
                Arg::Long("root") => options.root = Some(parser.value()?.into()),
                Arg::Long("stats") => options.stats = true,
                Arg::Long("no-system") => options.system = false,
                Arg::Long("timeout") => {
                    options.timeout = Some(parser.value()?.parse_with(seconds)?);
                }
                other => return Err(other.unexpected().into()),
            }
        }
        Err(UsageError::NoImage)
    }
}

fn count(parser: &mut Parser) -> Result<u32, lexopt::Error> {
    parser.value()?.parse_with(|text| match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    })
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G', 'k', 'm', 'g']) {
        Some(digits) => {
            let unit = text.as_bytes()[digits.len()].to_ascii_uppercase();
            (digits, [b'K', b'M', b'G'].iter().position(|&letter| letter == unit))
        }
        None => (text, None),
    };
    let shift = shift.map_or(0, |position| 10 * (position as u32 + 1));
    let number: u64 = digits.parse().map_err(|_| "a number with K, M or G".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

fn abi(text: &str) -> Result<Abi, String> {
    Ok(match text {
        "llvm17" => Abi::Llvm17,
        "llvm18" => Abi::Llvm18,
        "llvm19" => Abi::Llvm19,
        "llvm20" | "llvm21" | "llvm22" => Abi::Llvm20,
        "main" => Abi::LlvmMain,
        _ => return Err("llvm17 to llvm22, or main".to_owned()),
    })
}

fn files(text: &str) -> Result<Files, String> {
    Ok(match text {
        "none" => Files::None,
        "read" => Files::Read,
        "all" => Files::All,
        _ => return Err("none, read or all".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, UsageError> {
        Command::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_end_at_the_image() {
        let line = "loader --threads 32 --blocks-y=4 --pool 1G --timeout 0.5 a.ptx --threads 7 -h";
        let Ok(Command::Run(options)) = parse(line) else { panic!() };
        assert_eq!((options.threads, options.blocks), ([32, 1, 1], [1, 4, 1]));
        assert_eq!(options.pool, 1 << 30);
        assert_eq!(options.timeout, Some(Duration::from_millis(500)));
        assert_eq!(options.image, PathBuf::from("a.ptx"));
        assert_eq!(options.arguments, ["--threads", "7", "-h"]);
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (line, part) in [
            ("loader", "which image"),
            ("loader --frobnicate a", "--frobnicate"),
            ("loader --threads 0 a", "at least 1"),
            ("loader --threads x a", "x"),
            ("loader --pool 1X a", "K, M or G"),
            ("loader --pool 99999999999G a", "too large"),
            ("loader --abi llvm16 a", "llvm17 to llvm22"),
            ("loader --timeout -1 a", "-1"),
            ("loader --files some a", "none, read or all"),
        ] {
            let message = parse(line).unwrap_err().to_string();
            assert!(message.contains(part), "{line}: {message}");
        }
    }

    #[test]
    fn the_help_fits_a_screen() {
        assert!(HELP.lines().count() <= 40);
        assert!(HELP.lines().all(|line| line.len() <= 100));
    }
}
