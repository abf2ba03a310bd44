//! A block of shared memory for the loader: what it tells a kernel, and what the kernel answers.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::{Purpose, SharedAllocator, SharedBox};

/// Memory that the host and a device see, touched through atomics: kernels may write it at any time.
#[derive(Debug)]
pub(crate) struct Pinned<A: SharedAllocator>(SharedBox<A>);

impl<A: SharedAllocator> Pinned<A> {
    /// `size` bytes, all zero.
    ///
    /// # Panics
    /// Where no memory has so many.
    pub(crate) fn new(allocator: &Arc<A>, size: usize) -> Result<Self, A::Error> {
        let layout = Layout::from_size_align(size.max(1), 16).expect("the size of what there is");
        SharedBox::new(allocator.clone(), layout, Purpose::Packets).map(Pinned)
    }

    /// Where the device finds the byte at `offset`.
    pub(crate) fn device(&self, offset: usize) -> u64 {
        self.0.device().0 + offset as u64
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// Where they do not fit.
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.0.size()));
        for (at, &byte) in (offset..).zip(bytes) {
            // SAFETY: within the block, checked above, which lives as long as `self`; everybody
            // touches it through atomics.
            let place = unsafe { self.0.host().add(at).cast::<AtomicU8>().as_ref() };
            place.store(byte, Ordering::Relaxed);
        }
    }

    /// The word at `offset`, a multiple of four.
    ///
    /// # Panics
    /// Where there is none.
    pub(crate) fn load(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.0.size());
        // SAFETY: within the block and aligned, checked above; the block lives as long as `self`
        // and is touched through atomics alone.
        let place = unsafe { self.0.host().add(offset).cast::<AtomicU32>().as_ref() };
        place.load(Ordering::Acquire)
    }
}
