//! Memory from a program's callbacks.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::backend::{DeviceAddress, Purpose, SharedAllocator, SharedBlock};

use super::device::{rpc_alloc_t, rpc_free_t};

/// Calls a program's functions for memory. What they give need not be aligned nor zeroed.
pub(super) struct CallbackAllocator {
    alloc: unsafe extern "C-unwind" fn(u64, *mut c_void) -> *mut c_void,
    free: unsafe extern "C-unwind" fn(*mut c_void, u64, *mut c_void),
    data: *mut c_void,
    /// What the program gave, and how much of it was asked for, by the address of the aligned block.
    given: Mutex<HashMap<usize, (usize, u64)>>,
}

// SAFETY: the header asks for functions that may be called on any thread with their `data`, which is
// not used for anything else here.
unsafe impl Send for CallbackAllocator {}
// SAFETY: as above.
unsafe impl Sync for CallbackAllocator {}

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallbackError {
    #[error("the allocation callback returned null for {0} bytes")]
    Null(u64),
    #[error("the allocation callback panicked")]
    Panicked,
}

impl CallbackAllocator {
    /// `None` where one of the functions is null.
    pub(super) fn new(alloc: rpc_alloc_t, free: rpc_free_t, data: *mut c_void) -> Option<Self> {
        Some(CallbackAllocator { alloc: alloc?, free: free?, data, given: Mutex::default() })
    }
}

// SAFETY: the header asks that the function gives as many bytes as it is asked for, which belong to nobody
// else until they are freed, at an address that the device has too. They are aligned and zeroed here.
unsafe impl SharedAllocator for CallbackAllocator {
    type Error = CallbackError;

    fn allocate(&self, layout: Layout, _: Purpose) -> Result<SharedBlock, CallbackError> {
        let bytes = (layout.size() + layout.align() - 1) as u64;
        // SAFETY: the header's promise about the function and its `data`.
        let given = catch_unwind(AssertUnwindSafe(|| unsafe { (self.alloc)(bytes, self.data) }));
        let given = NonNull::new(given.map_err(|_| CallbackError::Panicked)?.cast::<u8>());
        let given = given.ok_or(CallbackError::Null(bytes))?;
        let ahead = given.as_ptr().align_offset(layout.align());
        // SAFETY: `ahead` is less than the alignment, and that much more was asked for.
        let host = unsafe { given.add(ahead) };
        // SAFETY: the rest of what was given has the layout's size; nobody else uses it.
        unsafe { host.as_ptr().write_bytes(0, layout.size()) };
        self.given.lock().insert(host.as_ptr().addr(), (given.as_ptr().expose_provenance(), bytes));
        Ok(SharedBlock { host, device: DeviceAddress(host.as_ptr() as u64), layout })
    }

    unsafe fn deallocate(&self, block: SharedBlock) {
        let given = self.given.lock().remove(&block.host.as_ptr().addr());
        let (given, bytes) = given.expect("a block of this allocator");
        let given = std::ptr::with_exposed_provenance_mut(given);
        // SAFETY: given by the other function with that size, not freed before, and used no more, as the
        // caller promises. A panic changes nothing: the block is the program's again.
        let _ = catch_unwind(AssertUnwindSafe(|| unsafe { (self.free)(given, bytes, self.data) }));
    }
}
