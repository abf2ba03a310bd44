//! Memory that the device and the host both see.
//!
//! A [`SharedAllocator`] hands out blocks that have two addresses, one for each side.
//! [`SharedBox`] owns a block and gives it back to the allocator it came from, so that
//! a server which fails half-way through its construction keeps nothing.
//!
//! - [`HostAllocator`](host::HostAllocator): memory of this process, for simulation, tests and
//!   CPU clients (feature `host`, on by default).
//! - `CudaAllocator`: pinned memory of CUDA devices (feature `cuda`).
//! - `HsaAllocator`: memory of AMD devices (feature `hsa`).
//!
//! # Deadlocks to know of
//!
//! Driver calls that allocate or free device-visible memory may wait for running kernels. A
//! kernel that waits for its host at the same time waits for ever. So this crate allocates when a
//! server is built, frees when it is dropped, and does neither while it serves.
#![allow(unsafe_code)]

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use crate::protocol::layout::DOORBELL_SIZE;
use crate::protocol::{Channel, ClientPointers, Doorbell};

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(all(feature = "host", unix))]
pub mod host;
#[cfg(feature = "hsa")]
pub mod hsa;
#[cfg(all(feature = "loader", any(feature = "cuda", feature = "hsa")))]
mod pinned;

#[cfg(all(feature = "loader", any(feature = "cuda", feature = "hsa")))]
pub(crate) use pinned::Pinned;

/// An address in the device's view of memory. Never dereferenced by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceAddress(pub u64);

impl fmt::LowerHex for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// What a block is for, so that a backend can place it where it is cheapest to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// Flags that the host writes and the device polls.
    DevicePolledFlags,
    /// Flags that the device writes and the host polls.
    HostPolledFlags,
    /// Headers and packets, which both sides read and write.
    Packets,
    /// Where clients of LLVM's main branch find the [`Doorbell`], or that there is none.
    Doorbell,
    /// Memory of the device program, which it allocates through its host.
    Heap,
}

/// A piece of memory that both sides see, without an owner.
#[derive(Clone, Copy, Debug)]
pub struct SharedBlock {
    /// Where the host finds it.
    pub host: NonNull<u8>,
    /// Where the device finds it. May differ from the host's address.
    pub device: DeviceAddress,
    /// The size and alignment that were asked for.
    pub layout: Layout,
}

/// A source of memory that the device and the host both see.
///
/// # Safety
/// The crate reads and writes what `allocate` returns through atomics of up to 64 bits, on x86-64 also by
/// two or more such words at a time. So a
/// block's host address has to be valid for reads and writes of `layout.size()` bytes until it is
/// deallocated, aligned to `layout.align()`, zeroed, and not part of any other live block. The
/// device address must mean the same memory on the device. So must the addresses of a
/// [`doorbell`](Self::doorbell), for as long as it exists: the device writes there.
pub unsafe trait SharedAllocator: Send + Sync {
    /// Why memory cannot be had.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Takes zeroed memory that both sides see.
    ///
    /// # Errors
    /// When there is none; nothing has been taken then.
    fn allocate(&self, layout: Layout, purpose: Purpose) -> Result<SharedBlock, Self::Error>;

    /// Takes a block back. Called once for each block, possibly on another thread.
    ///
    /// # Safety
    /// `block` came from `allocate` of the same allocator, was not deallocated before, and neither
    /// side uses it any more.
    unsafe fn deallocate(&self, block: SharedBlock);

    /// A doorbell that clients of LLVM's main branch ring, and that an idle [`Worker`](crate::Worker)
    /// sleeps at instead of looking. None by default: clients are told so, and save themselves the
    /// counting.
    ///
    /// # Errors
    /// When it cannot be had; nothing has been taken then.
    fn doorbell(&self) -> Result<Option<Arc<dyn Doorbell>>, Self::Error> {
        Ok(None)
    }
}

/// The owner of a [`SharedBlock`]: gives it back when dropped.
#[derive(Debug)]
pub struct SharedBox<A: SharedAllocator> {
    allocator: Arc<A>,
    block: SharedBlock,
}

// SAFETY: a SharedBox is an address, not a borrow: the block belongs to no thread, the trait says
// that it may be deallocated on another one, and the allocator is Send and Sync by the trait.
unsafe impl<A: SharedAllocator> Send for SharedBox<A> {}
// SAFETY: as above; a shared SharedBox gives out addresses only.
unsafe impl<A: SharedAllocator> Sync for SharedBox<A> {}

impl<A: SharedAllocator> SharedBox<A> {
    /// Allocates a block and owns it.
    ///
    /// # Errors
    /// The allocator's.
    pub fn new(allocator: Arc<A>, layout: Layout, purpose: Purpose) -> Result<Self, A::Error> {
        let block = allocator.allocate(layout, purpose)?;
        Ok(SharedBox { allocator, block })
    }

    /// Where the device finds the block.
    pub fn device(&self) -> DeviceAddress {
        self.block.device
    }

    /// Where the host finds the block. Other processors write there: use atomics.
    pub fn host(&self) -> NonNull<u8> {
        self.block.host
    }

    /// The size in bytes.
    pub fn size(&self) -> usize {
        self.block.layout.size()
    }
}

impl<A: SharedAllocator> Drop for SharedBox<A> {
    fn drop(&mut self) {
        // SAFETY: the block came from this allocator in `new` and is given back once, here. Views
        // of it borrow this box.
        unsafe { self.allocator.deallocate(self.block) }
    }
}

/// All shared memory of one server, and the channel over it.
#[derive(Debug)]
pub(crate) struct SharedMemory<A: SharedAllocator> {
    channel: Channel<'static>,
    pointers: ClientPointers,
    allocator: Arc<A>,
    #[expect(dead_code, reason = "owned, to be given back; used through the channel")]
    blocks: [Option<SharedBox<A>>; 4],
    #[expect(dead_code, reason = "as the blocks")]
    notes: Option<Arc<[AtomicU32]>>,
    doorbell: Option<Arc<dyn Doorbell>>,
}

impl<A: SharedAllocator> SharedMemory<A> {
    pub(crate) fn new(
        allocator: Arc<A>,
        layout: crate::protocol::Layout,
        doorbell: bool,
    ) -> Result<Self, A::Error> {
        // Cache lines apart, and whole ones: the two rows of flags have different writers.
        let aligned = |size: usize| {
            Layout::from_size_align(size, 128)
                .expect("sizes are bounded by the layout")
                .pad_to_align()
        };
        let block = |size, purpose| SharedBox::new(allocator.clone(), aligned(size), purpose);
        let primary = match layout.primary_size() {
            0 => None,
            size => Some(block(size, Purpose::DevicePolledFlags)?),
        };
        let secondary = block(layout.mailboxes_size(), Purpose::HostPolledFlags)?;
        let packets = block(layout.packets_size(), Purpose::Packets)?;
        let doorbell_block = match layout.doorbell_offset() {
            Some(_) => Some(block(DOORBELL_SIZE, Purpose::Doorbell)?),
            None => None,
        };
        let doorbell = match &doorbell_block {
            Some(_) if doorbell => allocator.doorbell()?,
            _ => None,
        };
        if let (Some(block), Some(doorbell)) = (&doorbell_block, &doorbell) {
            let pointers = doorbell.pointers();
            let words = [pointers.counter, pointers.mailbox, pointers.event_id.into()];
            // SAFETY: the block has 64 bytes at least, aligned to 8, and nobody else has its
            // address yet.
            unsafe { block.host().cast::<[u64; 3]>().write(words) }
        }
        let at = |offset: usize| packets.device().0 + (offset - layout.packets_offset()) as u64;
        let pointers = ClientPointers {
            doorbell: doorbell_block.as_ref().map_or(0, |block| block.device().0),
            inbox: match &primary {
                Some(primary) => primary.device().0,
                None => at(layout.reply_offset(0)),
            },
            outbox: secondary.device().0,
            headers: packets.device().0,
            packets: at(first_packet(&layout)),
        };
        // The crate's own wire has no mailboxes there, and keeps notes instead.
        let notes: Option<Arc<[AtomicU32]>> = match primary {
            Some(_) => None,
            None => Some((0..layout.ports().get()).map(|_| AtomicU32::new(0)).collect()),
        };
        // SAFETY: the blocks are as large and aligned as asked for, zeroed, and used by nobody
        // else, which the trait promises, and so are the notes; all live as long as `self`, and so does
        // the doorbell. `self` lends the channel out for its own borrow only. All access goes through
        // the channel's atomics.
        let channel = unsafe {
            let channel = Channel::from_raw(
                layout,
                match (&primary, &notes) {
                    (Some(block), _) => block.host().as_ptr().cast(),
                    (None, notes) => {
                        notes.as_deref().unwrap_or_default().as_ptr().cast_mut().cast()
                    }
                },
                secondary.host().as_ptr().cast(),
                packets.host().as_ptr().cast(),
            );
            match &doorbell {
                Some(doorbell) => channel.with_doorbell(&*Arc::as_ptr(doorbell)),
                None => channel,
            }
        };
        let blocks = [primary, Some(secondary), Some(packets), doorbell_block];
        Ok(SharedMemory { channel, pointers, allocator, blocks, notes, doorbell })
    }

    pub(crate) fn channel(&self) -> Channel<'_> {
        self.channel
    }

    pub(crate) fn pointers(&self) -> &ClientPointers {
        &self.pointers
    }

    pub(crate) fn doorbell(&self) -> Option<&Arc<dyn Doorbell>> {
        self.doorbell.as_ref()
    }

    pub(crate) fn allocator(&self) -> &Arc<A> {
        &self.allocator
    }
}

/// Where packets begin, as clients want it: at the first lane's packet where
/// headers stand apart, at the first header where they stand in front of each port's packets.
fn first_packet(layout: &crate::protocol::Layout) -> usize {
    if layout.abi().headers_inside_packets() {
        layout.packets_offset()
    } else {
        layout.packet_offset(0, 0)
    }
}

/// Memory that lends a channel out, whatever allocator it came from.
pub(crate) trait ChannelOwner: Send + Sync {
    fn channel(&self) -> Channel<'_>;
}

impl<A: SharedAllocator> ChannelOwner for SharedMemory<A> {
    fn channel(&self) -> Channel<'_> {
        self.channel()
    }
}

#[cfg(all(test, feature = "host", unix))]
mod tests {
    use super::host::HostAllocator;
    use super::*;
    use crate::protocol::{Abi, LaneWidth, PortCount};

    fn memory(abi: Abi) -> SharedMemory<HostAllocator> {
        let (ports, lanes) = (PortCount::new(3).unwrap(), LaneWidth::new(2).unwrap());
        let layout = crate::protocol::Layout::new(abi, ports, lanes).unwrap();
        SharedMemory::new(Arc::new(HostAllocator), layout, true).unwrap()
    }

    #[test]
    fn clients_find_the_packets_where_the_layout_says() {
        let classic = memory(Abi::Llvm20);
        let pointers = classic.pointers();
        assert_eq!(pointers.packets - pointers.headers, 3 * 16);
        assert_eq!(pointers.doorbell, 0);
        let old = memory(Abi::Llvm17);
        assert_eq!(old.pointers().packets, old.pointers().headers);
    }
}
