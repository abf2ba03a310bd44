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

IMAGE is a linked cubin, PTX text or AMD code object with a kernel `_start`. It
gets the arguments, and this process's environment, streams, files and status.

  --threads[-x|-y|-z] N   threads of a block (1)
  --blocks[-x|-y|-z] N    blocks of the grid (1)
  --device N              the GPU, as --list-devices counts (the first to fit)
  --list-devices          print the GPUs and end
  --ports N               conversations at a time (as many as warps can run)
  --pool SIZE             memory for malloc, with K, M or G (64M)
  --stack SIZE            stack of each thread (what the driver or the code say)
  --abi NAME              LLVM release: only llvm17, llvm18, llvm19 must be said
  --files none|read|all   which of this user's files the program may open (all)
  --root FOLDER           those in this folder alone, the root of their paths
  --system, --no-system   may it run commands? (without --files, --root: yes)
  --timeout SECONDS       give up after this time
  --stats                 at the end, tell on standard error what was done
  -h, --help, -V, --version

The status is the program's. What goes wrong here is one line, and status 1. At
SIGINT, SIGTERM, SIGHUP its files are written out first; a second ends at once.
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
    /// Whether commands may be run: they open whatever files they like. By default where neither `files`
    /// nor `root` confines the program.
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
    /// An option that is none.
    #[error("{0}; see --help")]
    Option(lexopt::Error),
    /// A value that is none for its option.
    #[error("{option}: {error}; see --help")]
    Value {
        /// The option.
        option: String,
        /// What is wrong with its value.
        error: lexopt::Error,
    },
    /// Files in a folder, and no files.
    #[error("--root says in which folder files may be opened, and --files none that none may")]
    NoFiles,
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
        let (mut options, mut system) = (Options::new(""), None);
        while let Some(argument) = parser.next()? {
            let name = match argument {
                Arg::Value(image) => {
                    options.image = image.into();
                    // What follows is the program's, options too.
                    options.arguments = parser.raw_args()?.collect();
                    if options.files == Files::None && options.root.is_some() {
                        return Err(UsageError::NoFiles);
                    }
                    let confined = options.files != Files::All || options.root.is_some();
                    options.system = system.unwrap_or(!confined);
                    return Ok(Command::Run(options));
                }
                Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
                Arg::Short('V') | Arg::Long("version") => return Ok(Command::Version),
                Arg::Long("list-devices") => return Ok(Command::ListDevices),
                Arg::Long("system") => {
                    system = Some(true);
                    continue;
                }
                Arg::Long("no-system") => {
                    system = Some(false);
                    continue;
                }
                Arg::Long(name) => name.to_owned(),
                other @ Arg::Short(_) => return Err(other.unexpected().into()),
            };
            match options.set(&name, &mut parser) {
                Ok(true) => {}
                Ok(false) => return Err(Arg::Long(&name).unexpected().into()),
                Err(error) => return Err(UsageError::Value { option: format!("--{name}"), error }),
            }
        }
        Err(UsageError::NoImage)
    }
}

impl Options {
    /// Sets what the option of that name says. Whether there is such an option.
    fn set(&mut self, name: &str, parser: &mut Parser) -> Result<bool, lexopt::Error> {
        match name {
            "threads" | "threads-x" => self.threads[0] = count(parser)?,
            "threads-y" => self.threads[1] = count(parser)?,
            "threads-z" => self.threads[2] = count(parser)?,
            "blocks" | "blocks-x" => self.blocks[0] = count(parser)?,
            "blocks-y" => self.blocks[1] = count(parser)?,
            "blocks-z" => self.blocks[2] = count(parser)?,
            "device" => self.device = Some(parser.value()?.parse()?),
            "ports" => self.ports = Some(count(parser)?),
            "pool" => self.pool = parser.value()?.parse_with(size)?,
            "stack" => {
                let bytes = parser.value()?.parse_with(size)?;
                self.stack = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            "abi" => self.abi = Some(parser.value()?.parse_with(abi)?),
            "files" => self.files = parser.value()?.parse_with(files)?,
            "root" => self.root = Some(parser.value()?.into()),
            "stats" => self.stats = true,
            "timeout" => self.timeout = Some(parser.value()?.parse_with(seconds)?),
            _ => return Ok(false),
        }
        Ok(true)
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
            ("loader --threads x a", "--threads: cannot parse argument \"x\""),
            ("loader --device -1 a", "--device: "),
            ("loader -x a", "'-x'"),
            ("loader --stats=yes a", "--stats"),
            ("loader --root . --files none a", "--root"),
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
    fn confined_programs_run_commands_only_where_that_is_said() {
        let system = |line: &str| {
            let Ok(Command::Run(options)) = parse(line) else { panic!("{line}") };
            options.system
        };
        assert!(system("loader a") && system("loader --files all a"));
        assert!(!system("loader --no-system a") && !system("loader --files read a"));
        assert!(!system("loader --files none a") && !system("loader --root . a"));
        assert!(system("loader --root . --system a") && system("loader --system --files=none a"));
    }

    #[test]
    fn the_help_fits_a_screen() {
        assert!(HELP.lines().count() <= 24);
        assert!(HELP.lines().all(|line| line.len() <= 80));
    }
}
