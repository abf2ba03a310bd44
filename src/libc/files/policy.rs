//! Which files device code may touch.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
#[cfg(feature = "sandbox")]
use std::sync::Arc;

#[cfg(feature = "sandbox")]
use super::sandbox::Sandbox;
use super::{Denial, FileError, Mode, PathFault};

/// The longest path, in bytes with the terminating zero.
pub const PATH_LIMIT: usize = 4096;

/// Which files device code may touch. By default none.
///
/// ```
/// use hostcall::libc::files::{Access, FilePolicy};
/// let none = FilePolicy::denied();
/// let all = FilePolicy::everything(Access::ReadOnly);
/// ```
#[derive(Clone, Debug, Default)]
pub struct FilePolicy(Reach);

#[derive(Clone, Debug, Default)]
enum Reach {
    #[default]
    Nothing,
    #[cfg(feature = "sandbox")]
    Directory(Arc<Sandbox>, Access),
    Everything(Access),
}

/// What may be done to the files within reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Opening them for reading.
    ReadOnly,
    /// Also making, changing, renaming and removing them.
    ReadWrite,
}

impl FilePolicy {
    /// No files at all: opening, removing, renaming fail.
    pub fn denied() -> Self {
        FilePolicy(Reach::Nothing)
    }

    /// The files in one directory and below it (feature `sandbox`).
    ///
    /// Paths of the device are relative to it. A path that leads out, by `..`, from the root or over
    /// a symbolic link, is refused, also when somebody changes the directory meanwhile; one that
    /// stays inside may use all three. Only regular files and directories can be opened: a FIFO
    /// could keep the server waiting for ever. Hard links and mounts are not seen through: what has
    /// a name in the directory belongs to it.
    ///
    /// # Errors
    ///
    /// If `path` cannot be opened as a directory. It is opened here; it may be renamed afterwards.
    #[cfg(feature = "sandbox")]
    pub fn directory(path: impl AsRef<Path>, access: Access) -> io::Result<Self> {
        let sandbox = Sandbox::new(path.as_ref())?;
        Ok(FilePolicy(Reach::Directory(Arc::new(sandbox), access)))
    }

    /// Every file that the process itself can reach, with relative paths from its working
    /// directory. For device code that is trusted as the host program is: opening a FIFO waits for
    /// its other end, and devices can be opened.
    pub fn everything(access: Access) -> Self {
        FilePolicy(Reach::Everything(access))
    }

    /// Whether opening or using a file may wait for somebody, as with a FIFO.
    pub(crate) fn may_block(&self) -> bool {
        matches!(self.0, Reach::Everything(_))
    }

    pub(super) fn open(&self, path: &[u8], mode: Mode) -> Result<File, FileError> {
        let needed = if mode.writes() { Access::ReadWrite } else { Access::ReadOnly };
        match self.reach(needed)? {
            #[cfg(feature = "sandbox")]
            Reach::Directory(sandbox, _) => sandbox.open(checked(path)?, mode),
            Reach::Nothing => no_files(),
            Reach::Everything(_) => Ok(options(mode).open(checked(path)?)?),
        }
    }

    /// C's `remove`: a file, or an empty directory.
    pub(super) fn remove(&self, bytes: &[u8]) -> Result<(), FileError> {
        let reach = self.reach(Access::ReadWrite)?;
        let path = checked(bytes)?;
        match reach {
            #[cfg(feature = "sandbox")]
            Reach::Directory(sandbox, _) => sandbox.remove(path),
            Reach::Nothing => no_files(),
            Reach::Everything(_) => {
                Ok(or_directory(fs::remove_file(path), || fs::remove_dir(path))?)
            }
        }
    }

    pub(super) fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        let reach = self.reach(Access::ReadWrite)?;
        let (source, target) = (checked(from)?, checked(to)?);
        match reach {
            #[cfg(feature = "sandbox")]
            Reach::Directory(sandbox, _) => sandbox.rename(source, target),
            Reach::Nothing => no_files(),
            Reach::Everything(_) => Ok(fs::rename(source, target)?),
        }
    }

    /// How far the policy reaches for what `needed` says.
    fn reach(&self, needed: Access) -> Result<&Reach, FileError> {
        let access = match &self.0 {
            Reach::Nothing => return no_files(),
            #[cfg(feature = "sandbox")]
            Reach::Directory(_, access) => access,
            Reach::Everything(access) => access,
        };
        match (access, needed) {
            (Access::ReadOnly, Access::ReadWrite) => Err(FileError::Denied(Denial::ReadOnly)),
            _ => Ok(&self.0),
        }
    }
}

fn no_files<T>() -> Result<T, FileError> {
    Err(FileError::Denied(Denial::NoFiles))
}

fn options(mode: Mode) -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(mode.reads())
        .write(mode.writes() && !mode.appends())
        .append(mode.appends())
        .truncate(mode.truncates())
        .create(mode.creates())
        .create_new(mode.is_exclusive());
    options
}

/// Tries again with a directory, as C's `remove` does.
pub(super) fn or_directory(
    as_file: io::Result<()>,
    as_directory: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    match as_file {
        // POSIX lets `unlink` of a directory report either; Linux reports the first.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => as_directory(),
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && error.raw_os_error().is_some() =>
        {
            as_directory().map_err(|_| error)
        }
        other => other,
    }
}

/// The path that a device means.
fn checked(bytes: &[u8]) -> Result<&Path, FileError> {
    let fault = match bytes {
        [] => Some(PathFault::Empty),
        _ if bytes.len() >= PATH_LIMIT => Some(PathFault::TooLong),
        _ if bytes.contains(&0) => Some(PathFault::Nul),
        _ => None,
    };
    match fault {
        Some(fault) => Err(FileError::BadPath(fault)),
        None => Ok(to_path(bytes)),
    }
}

pub(super) fn to_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(all(test, feature = "sandbox"))]
mod tests;
