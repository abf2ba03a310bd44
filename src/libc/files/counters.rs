//! What a file table did and refused, in numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Denial, FileError};

/// The counters of a [`FileTable`](super::FileTable). Clones share them, and they outlive the
/// table: what went wrong while its files were closed can be read here.
#[derive(Clone, Debug, Default)]
pub struct FileCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    opened: AtomicU64,
    closed: AtomicU64,
    failed_closes: AtomicU64,
    bad_handles: AtomicU64,
    too_many_open: AtomicU64,
    no_files: AtomicU64,
    read_only: AtomicU64,
    outside: AtomicU64,
    special_file: AtomicU64,
    first_lost: Mutex<Option<FileError>>,
}

/// What a file table did, in numbers since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Files that were opened.
    pub opened: u64,
    /// Files that were closed: by the device, by the host, or with the table.
    pub closed: u64,
    /// Of these, files that could not take all that was written to them, so that data was lost.
    pub failed_closes: u64,
    /// Words that were to be handles and were not.
    pub bad_handles: u64,
    /// Opens that failed because as many files were open as the table allows.
    pub too_many_open: u64,
    /// What the policy refused.
    pub denials: Denials,
}

/// How often a [`FilePolicy`](super::FilePolicy) refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denials {
    /// [`Denial::NoFiles`].
    pub no_files: u64,
    /// [`Denial::ReadOnly`].
    pub read_only: u64,
    /// [`Denial::Outside`].
    pub outside: u64,
    /// [`Denial::SpecialFile`].
    pub special_file: u64,
}

impl Denials {
    /// All of them together.
    pub fn total(&self) -> u64 {
        self.no_files + self.read_only + self.outside + self.special_file
    }
}

impl FileCounters {
    /// The numbers as they are now.
    pub fn stats(&self) -> FileStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = &*self.0;
        FileStats {
            opened: get(&all.opened),
            closed: get(&all.closed),
            failed_closes: get(&all.failed_closes),
            bad_handles: get(&all.bad_handles),
            too_many_open: get(&all.too_many_open),
            denials: Denials {
                no_files: get(&all.no_files),
                read_only: get(&all.read_only),
                outside: get(&all.outside),
                special_file: get(&all.special_file),
            },
        }
    }

    /// Why data was lost the first time that a file could not be closed properly.
    pub fn first_lost(&self) -> Option<FileError> {
        self.0.first_lost.lock().clone()
    }

    pub(super) fn opened(&self) {
        count(&self.0.opened);
    }

    /// Counts a close.
    pub(super) fn closed(&self, result: &Result<(), FileError>) {
        count(&self.0.closed);
        if let Err(error) = result {
            count(&self.0.failed_closes);
            self.0.first_lost.lock().get_or_insert_with(|| error.clone());
        }
    }

    /// Counts a failure that has a counter.
    pub(super) fn failed(&self, error: &FileError) {
        match error {
            FileError::BadHandle { .. } => count(&self.0.bad_handles),
            FileError::TooManyOpen { .. } => count(&self.0.too_many_open),
            FileError::Denied(Denial::NoFiles) => count(&self.0.no_files),
            FileError::Denied(Denial::ReadOnly) => count(&self.0.read_only),
            FileError::Denied(Denial::Outside) => count(&self.0.outside),
            FileError::Denied(Denial::SpecialFile) => count(&self.0.special_file),
            _ => {}
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
