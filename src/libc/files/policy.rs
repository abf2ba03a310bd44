//! Which files device code may touch.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use cap_std::fs::Dir;

use super::{Denial, FileError, Mode, PathFault};

/// The longest path, in bytes with the terminating zero.
pub const PATH_LIMIT: usize = 4096;

/// Which files device code may touch. By default none.
///
/// ```
/// use hostcall::libc::files::{Access, FilePolicy};
/// let none = FilePolicy::denied();
/// let data = FilePolicy::directory(std::env::temp_dir(), Access::ReadOnly)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FilePolicy(Reach);

#[derive(Clone, Debug, Default)]
enum Reach {
    #[default]
    Nothing,
    Directory(Arc<Dir>, Access),
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

    /// The files in one directory and below it.
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
    pub fn directory(path: impl AsRef<Path>, access: Access) -> io::Result<Self> {
        let dir = Dir::open_ambient_dir(path, cap_std::ambient_authority())?;
        Ok(FilePolicy(Reach::Directory(Arc::new(dir), access)))
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
            Within::Directory(dir) => open_in(dir, checked(path)?, mode),
            Within::Everything => Ok(options(mode).open(checked(path)?)?),
        }
    }

    /// C's `remove`: a file, or an empty directory.
    pub(super) fn remove(&self, bytes: &[u8]) -> Result<(), FileError> {
        let reach = self.reach(Access::ReadWrite)?;
        let path = checked(bytes)?;
        let result = match reach {
            // A name with a slash at its end can only be a directory's. With the slash the confined
            // removal would look into the directory.
            Within::Directory(dir) if bytes.ends_with(b"/") => {
                dir.remove_dir(to_path(without_slashes(bytes))?)
            }
            Within::Directory(dir) => or_directory(dir.remove_file(path), || dir.remove_dir(path)),
            Within::Everything => or_directory(fs::remove_file(path), || fs::remove_dir(path)),
        };
        result.map_err(refused)
    }

    pub(super) fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        let reach = self.reach(Access::ReadWrite)?;
        let (source, target) = (checked(from)?, checked(to)?);
        match reach {
            Within::Directory(dir) => {
                // The system refuses to give a file a name that only a directory can have; the
                // confined rename would drop the slash.
                if to.ends_with(b"/") && !dir.symlink_metadata(source).map_err(refused)?.is_dir() {
                    return Err(io::Error::from(io::ErrorKind::NotADirectory).into());
                }
                dir.rename(source, dir, target).map_err(refused)
            }
            Within::Everything => Ok(fs::rename(source, target)?),
        }
    }

    fn reach(&self, needed: Access) -> Result<Within<'_>, FileError> {
        let (within, access) = match &self.0 {
            Reach::Nothing => return Err(FileError::Denied(Denial::NoFiles)),
            Reach::Directory(dir, access) => (Within::Directory(dir), *access),
            Reach::Everything(access) => (Within::Everything, *access),
        };
        match (access, needed) {
            (Access::ReadOnly, Access::ReadWrite) => Err(FileError::Denied(Denial::ReadOnly)),
            _ => Ok(within),
        }
    }
}

/// Where an allowed operation takes place.
enum Within<'a> {
    Directory(&'a Dir),
    Everything,
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

fn open_in(dir: &Dir, path: &Path, mode: Mode) -> Result<File, FileError> {
    // Before opening: opening alone makes some devices act, and wakes the other end of a FIFO.
    match dir.metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => {}
        Ok(_) => return Err(FileError::Denied(Denial::SpecialFile)),
        // To be made, or reported by the open itself.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
    }
    let mut options = cap_std::fs::OpenOptions::new();
    options
        .read(mode.reads())
        .write(mode.writes() && !mode.appends())
        .append(mode.appends())
        .truncate(mode.truncates())
        .create(mode.creates())
        .create_new(mode.is_exclusive());
    never_wait(&mut options);
    let file = dir.open_with(path, &options).map_err(refused)?.into_std();
    // And after: the name may mean another file by now.
    let found = file.metadata()?;
    if found.is_file() || found.is_dir() {
        Ok(file)
    } else {
        Err(FileError::Denied(Denial::SpecialFile))
    }
}

/// Makes opening a FIFO return at once. Changes nothing for regular files.
fn never_wait(options: &mut cap_std::fs::OpenOptions) {
    #[cfg(unix)]
    if let Some(flag) = O_NONBLOCK {
        use cap_std::fs::OpenOptionsExt;
        options.custom_flags(flag);
    }
    #[cfg(not(unix))]
    let _ = options;
}

/// `O_NONBLOCK` where its value is known; elsewhere the look before opening has to do.
#[cfg(unix)]
const O_NONBLOCK: Option<i32> = if cfg!(all(
    any(target_os = "linux", target_os = "android"),
    any(
        target_arch = "x86_64",
        target_arch = "x86",
        target_arch = "aarch64",
        target_arch = "arm",
        target_arch = "riscv64",
        target_arch = "powerpc64",
        target_arch = "s390x",
        target_arch = "loongarch64",
    )
)) {
    Some(0o4000)
} else if cfg!(any(
    target_vendor = "apple",
    target_os = "freebsd",
    target_os = "netbsd",
    target_os = "openbsd",
    target_os = "dragonfly",
)) {
    Some(4)
} else {
    None
};

/// Tries again with a directory, as C's `remove` does.
fn or_directory(
    as_file: io::Result<()>,
    as_directory: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    match as_file {
        // POSIX lets `unlink` of a directory report either; Linux reports the first.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => as_directory(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_escape(&error) => {
            as_directory().map_err(|_| error)
        }
        other => other,
    }
}

/// Sorts out the refusals of the confined directory.
fn refused(error: io::Error) -> FileError {
    if is_escape(&error) { FileError::Denied(Denial::Outside) } else { error.into() }
}

/// Whether the confined directory refused a path, rather than the system: the system's errors carry
/// a code.
fn is_escape(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
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
        None => to_path(bytes),
    }
}

/// A path without the slashes at its end; the root stays what it is.
fn without_slashes(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&byte| byte != b'/');
    &bytes[..end.map_or(1, |end| end + 1)]
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere not every path is possible")]
fn to_path(bytes: &[u8]) -> Result<&Path, FileError> {
    use std::os::unix::ffi::OsStrExt;
    Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

#[cfg(not(unix))]
fn to_path(bytes: &[u8]) -> Result<&Path, FileError> {
    let text = std::str::from_utf8(bytes).map_err(|_| FileError::BadPath(PathFault::Encoding))?;
    Ok(Path::new(text))
}

#[cfg(test)]
mod tests;
