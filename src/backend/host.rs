//! Memory of this process as device-visible memory: anonymous shared mappings.
#![allow(unsafe_code)]

use core::alloc::Layout;
use core::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{DeviceAddress, Purpose, SharedAllocator, SharedBlock};

/// Allocates anonymous shared mappings. Device addresses are host addresses.
///
/// For simulation, unit tests, and devices that are threads of this process or of a
/// forked child.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAllocator;

/// The operating system's reason for having no memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {size} bytes of memory")]
pub struct HostAllocatorError {
    /// The bytes asked for.
    pub size: usize,
    /// What the operating system says.
    pub source: std::io::Error,
}

// SAFETY: mmap returns zeroed pages that belong to no other mapping, valid until munmap and
// aligned to a page; larger alignments are refused.
unsafe impl SharedAllocator for HostAllocator {
    type Error = HostAllocatorError;

    fn allocate(&self, layout: Layout, _: Purpose) -> Result<SharedBlock, HostAllocatorError> {
        let error = |source| HostAllocatorError { size: layout.size(), source };
        if layout.align() > rustix::param::page_size() {
            return Err(error(std::io::ErrorKind::Unsupported.into()));
        }
        let size = layout.size().max(1);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let address = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        };
        let address = address.map_err(|errno| error(errno.into()))?;
        let host = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| error(std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(SharedBlock { host, device: DeviceAddress(host.as_ptr() as u64), layout })
    }

    unsafe fn deallocate(&self, block: SharedBlock) {
        // SAFETY: the caller promises that the block came from `allocate`, which mapped exactly
        // this range, and that nobody uses it any more.
        let unmapped = unsafe { munmap(block.host.as_ptr().cast(), block.layout.size().max(1)) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        let layout = Layout::from_size_align(100_000, 4096).unwrap();
        let block = HostAllocator.allocate(layout, Purpose::Packets).unwrap();
        assert_eq!(block.device.0 % 4096, 0);
        assert_eq!(block.device.0, block.host.as_ptr() as u64);
        // SAFETY: the block is valid for its size and nobody else has it.
        let bytes = unsafe { core::slice::from_raw_parts(block.host.as_ptr(), 100_000) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        // SAFETY: allocated above and used no more.
        unsafe { HostAllocator.deallocate(block) }
    }

    #[test]
    fn what_cannot_be_had_is_an_error_that_says_how_much() {
        let huge = Layout::from_size_align(1 << 60, 8).unwrap();
        let error = HostAllocator.allocate(huge, Purpose::Packets).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot map {} bytes of memory", 1u64 << 60));
        let wide = Layout::from_size_align(8, 1 << 30).unwrap();
        assert!(HostAllocator.allocate(wide, Purpose::Packets).is_err());
    }
}
