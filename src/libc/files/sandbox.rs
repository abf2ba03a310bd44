//! Files confined to one directory.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use rustix::fs::OFlags;

use super::policy::{or_directory, to_path};
use super::{Denial, FileError, Mode};

/// A directory that no path leads out of.
#[derive(Debug)]
pub(super) struct Sandbox(Dir);

impl Sandbox {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        Dir::open_ambient_dir(path, cap_std::ambient_authority()).map(Sandbox)
    }

    pub(super) fn open(&self, path: &Path, mode: Mode) -> Result<File, FileError> {
        // Before opening: opening alone makes some devices act, and wakes the other end of a FIFO.
        match self.0.metadata(path) {
            Ok(found) if found.is_file() || found.is_dir() => {}
            Ok(_) => return Err(FileError::Denied(Denial::SpecialFile)),
            // To be made, or reported by the open itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(error)),
        }
        let mut options = OpenOptions::new();
        options
            .read(mode.reads())
            .write(mode.writes() && !mode.appends())
            .append(mode.appends())
            .truncate(mode.truncates())
            .create(mode.creates())
            .create_new(mode.is_exclusive());
        never_wait(&mut options);
        let file = self.0.open_with(path, &options).map_err(refused)?.into_std();
        // And after: the name may mean another file by now.
        let found = file.metadata()?;
        if found.is_file() || found.is_dir() {
            Ok(file)
        } else {
            Err(FileError::Denied(Denial::SpecialFile))
        }
    }

    pub(super) fn remove(&self, path: &Path) -> Result<(), FileError> {
        let bytes = path.as_os_str().as_bytes();
        let result = if bytes.ends_with(b"/") {
            // A name with a slash at its end can only be a directory's. With the slash the confined
            // removal would look into the directory.
            self.0.remove_dir(to_path(without_slashes(bytes)))
        } else {
            or_directory(self.0.remove_file(path), || self.0.remove_dir(path))
        };
        result.map_err(refused)
    }

    pub(super) fn rename(&self, source: &Path, target: &Path) -> Result<(), FileError> {
        // The system refuses to give a file a name that only a directory can have; the confined
        // rename would drop the slash.
        if target.as_os_str().as_bytes().ends_with(b"/")
            && !self.0.symlink_metadata(source).map_err(refused)?.is_dir()
        {
            return Err(io::Error::from(io::ErrorKind::NotADirectory).into());
        }
        self.0.rename(source, &self.0, target).map_err(refused)
    }
}

/// Makes opening a FIFO return at once. Changes nothing for regular files.
pub(super) fn never_wait(options: &mut OpenOptions) {
    options.custom_flags(OFlags::NONBLOCK.bits() as i32);
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

/// A path without the slashes at its end; the root stays what it is.
fn without_slashes(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&byte| byte != b'/');
    &bytes[..end.map_or(1, |end| end + 1)]
}
