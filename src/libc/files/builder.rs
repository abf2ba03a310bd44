//! Setting up a table of files.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{FilePolicy, FileTable, Standard};

/// The most files open at once, unless the builder says otherwise.
pub const DEFAULT_MAX_OPEN: usize = 256;

/// Sets up a [`FileTable`].
#[derive(Debug)]
#[must_use]
pub struct FileTableBuilder {
    policy: FilePolicy,
    standard: Standard,
    max_open: usize,
    tag: Option<u32>,
}

impl FileTableBuilder {
    pub(super) fn new() -> Self {
        FileTableBuilder {
            policy: FilePolicy::denied(),
            standard: Standard::default(),
            max_open: DEFAULT_MAX_OPEN,
            tag: None,
        }
    }

    /// Which files may be touched. By default none.
    pub fn policy(mut self, policy: FilePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Where the standard streams lead. By default output goes to the process's own streams and
    /// input is empty.
    pub fn standard(mut self, standard: Standard) -> Self {
        self.standard = standard;
        self
    }

    /// How many files may be open at once. By default [`DEFAULT_MAX_OPEN`]; at most 16384.
    pub fn max_open(mut self, files: usize) -> Self {
        self.max_open = files;
        self
    }

    /// What distinguishes this table's handles from those of others: the low 20 bits count, 0 is
    /// taken for 1. By default each table of the process gets the next number; set it where a run
    /// shall give the same handles again.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = Some(tag);
        self
    }

    /// The table.
    pub fn build(self) -> FileTable {
        static NEXT_TAG: AtomicU32 = AtomicU32::new(1);
        let tag = self.tag.unwrap_or_else(|| NEXT_TAG.fetch_add(1, Ordering::Relaxed));
        FileTable::new(self.policy, self.standard, tag, self.max_open)
    }
}
