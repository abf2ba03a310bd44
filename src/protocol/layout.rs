//! Where mailboxes, headers and packets lie, as checked sizes and offsets (PROTOCOL.md §1.2).

use super::abi::Abi;
use super::tagged;
use super::wire::PACKET_SIZE;

/// How many ports a server has: 1 to 16384.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortCount(u32);

/// How many lanes a warp or wavefront has: 1 to 64. NVIDIA has 32, AMD 32 or 64, a CPU client 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneWidth(u32);

/// A size that the protocol cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Ports outside 1 to 16384.
    #[error("{0} ports: a server has 1 to 16384")]
    PortCount(u32),
    /// Lanes outside 1 to 64.
    #[error("{0} lanes: a warp has 1 to 64")]
    LaneWidth(u32),
    /// More ports than the client object of this interface has locks for.
    #[error("{ports} ports: clients of {abi} have locks for {}", abi.max_ports())]
    TooManyPorts {
        /// The ports asked for.
        ports: u32,
        /// The interface.
        abi: Abi,
    },
}

impl PortCount {
    /// The most ports that any interface has.
    pub const MAX: u32 = 16384;

    /// A checked number of ports.
    ///
    /// # Errors
    /// [`LayoutError::PortCount`] outside 1 to 16384.
    pub const fn new(ports: u32) -> Result<Self, LayoutError> {
        if ports == 0 || ports > Self::MAX {
            return Err(LayoutError::PortCount(ports));
        }
        Ok(PortCount(ports))
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl LaneWidth {
    /// The widest wavefront there is.
    pub const MAX: u32 = 64;

    /// A checked number of lanes.
    ///
    /// # Errors
    /// [`LayoutError::LaneWidth`] outside 1 to 64.
    pub const fn new(lanes: u32) -> Result<Self, LayoutError> {
        if lanes == 0 || lanes > Self::MAX {
            return Err(LayoutError::LaneWidth(lanes));
        }
        Ok(LaneWidth(lanes))
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for PortCount {
    type Error = LayoutError;
    fn try_from(ports: u32) -> Result<Self, LayoutError> {
        Self::new(ports)
    }
}

impl TryFrom<u32> for LaneWidth {
    type Error = LayoutError;
    fn try_from(lanes: u32) -> Result<Self, LayoutError> {
        Self::new(lanes)
    }
}

/// Offsets in bytes of every part of the shared memory.
///
/// All parts lie one behind the other, as in one allocation: doorbell (if the
/// interface has one), the mailboxes that the server writes, those that the client
/// writes, then headers and packets. A server may place the parts apart; inside
/// the *packet block*, which begins at [`packets_offset`](Self::packets_offset),
/// distances stay the same.
///
/// ```
/// use hostcall::{Abi, LaneWidth, Layout, PortCount};
/// let layout = Layout::new(Abi::Llvm20, PortCount::new(64)?, LaneWidth::new(32)?)?;
/// assert_eq!(layout.size(), 132_608);
/// # Ok::<(), hostcall::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    abi: Abi,
    ports: PortCount,
    lanes: LaneWidth,
    // Small, for this is copied with every port. The largest layout has 70 MB.
    packets_offset: u32,
    header_stride: u32,
    first_packet: u32,
    packet_stride: u32,
    /// Where replies begin in the packet block; only on the crate's own wire.
    first_reply: u32,
}

/// Bytes of a header on the wire.
const HEADER_SIZE: usize = 16;
/// Bytes of the doorbell block of LLVM's main branch.
pub(crate) const DOORBELL_SIZE: usize = 64;

impl Layout {
    /// The layout of an interface for this many ports and lanes.
    ///
    /// # Errors
    /// [`LayoutError::TooManyPorts`] where the interface has fewer ports.
    pub const fn new(abi: Abi, ports: PortCount, lanes: LaneWidth) -> Result<Self, LayoutError> {
        if ports.get() > abi.max_ports() {
            return Err(LayoutError::TooManyPorts { ports: ports.get(), abi });
        }
        let doorbell = if abi.has_doorbell() { DOORBELL_SIZE as u32 } else { 0 };
        let mailboxes = 8 * ports.get();
        let lane_bytes = PACKET_SIZE as u32 * lanes.get();
        let layout = if abi.is_tagged() {
            let request = tagged::request_size(lanes) as u32;
            let requests = (request * ports.get()).next_multiple_of(64);
            let replies = tagged::reply_size(lanes) as u32 * ports.get();
            Layout {
                abi,
                ports,
                lanes,
                packets_offset: (mailboxes / 2).next_multiple_of(64),
                header_stride: request,
                first_packet: (requests + replies).next_multiple_of(64),
                packet_stride: lane_bytes,
                first_reply: requests,
            }
        } else if abi.headers_inside_packets() {
            let stride = PACKET_SIZE as u32 + lane_bytes;
            Layout {
                abi,
                ports,
                lanes,
                packets_offset: (doorbell + mailboxes).next_multiple_of(64),
                header_stride: stride,
                first_packet: HEADER_SIZE as u32,
                packet_stride: stride,
                first_reply: 0,
            }
        } else {
            Layout {
                abi,
                ports,
                lanes,
                packets_offset: doorbell + mailboxes,
                header_stride: HEADER_SIZE as u32,
                first_packet: HEADER_SIZE as u32 * ports.get(),
                packet_stride: lane_bytes,
                first_reply: 0,
            }
        };
        Ok(layout)
    }

    /// The interface.
    #[inline]
    pub const fn abi(&self) -> Abi {
        self.abi
    }

    /// The number of ports.
    #[inline]
    pub const fn ports(&self) -> PortCount {
        self.ports
    }

    /// The lanes of a warp: the number of packets of each port.
    #[inline]
    pub const fn lanes(&self) -> LaneWidth {
        self.lanes
    }

    /// The doorbell block, where the interface has one.
    pub const fn doorbell_offset(&self) -> Option<usize> {
        if self.abi.has_doorbell() { Some(0) } else { None }
    }

    /// The primary mailboxes: the server writes them, the client reads them. The crate's own wire has
    /// none; its replies carry their values.
    pub const fn primary_offset(&self) -> usize {
        if self.abi.has_doorbell() { DOORBELL_SIZE } else { 0 }
    }

    /// The secondary mailboxes: the client writes them, the server reads them.
    pub const fn secondary_offset(&self) -> usize {
        self.primary_offset() + self.primary_size()
    }

    /// The packet block: all headers and packets.
    #[inline]
    pub const fn packets_offset(&self) -> usize {
        self.packets_offset as usize
    }

    /// The header of a port. On the crate's own wire, its request block.
    #[inline]
    pub const fn header_offset(&self, port: u32) -> usize {
        self.packets_offset() + self.header_stride as usize * port as usize
    }

    /// The packet of a port's lane. On the crate's own wire, where packets lie by word and not by lane,
    /// the first word of the lane that is active and has `lane` active ones before it.
    #[inline]
    pub const fn packet_offset(&self, port: u32, lane: u32) -> usize {
        let lane_stride = if self.abi.is_tagged() { 8 } else { PACKET_SIZE };
        self.packets_offset()
            + self.first_packet as usize
            + self.packet_stride as usize * port as usize
            + lane_stride * lane as usize
    }

    /// The reply of a port; only on the crate's own wire.
    #[inline]
    pub const fn reply_offset(&self, port: u32) -> usize {
        self.packets_offset()
            + self.first_reply as usize
            + tagged::reply_size(self.lanes) * port as usize
    }

    /// Bytes of the primary mailboxes.
    pub const fn primary_size(&self) -> usize {
        if self.abi.is_tagged() { 0 } else { self.mailboxes_size() }
    }

    /// Bytes of the secondary mailboxes.
    pub const fn mailboxes_size(&self) -> usize {
        4 * self.ports.get() as usize
    }

    /// Bytes of the packet block.
    pub const fn packets_size(&self) -> usize {
        let ports = self.ports.get() as usize;
        if self.abi.headers_inside_packets() {
            self.packet_stride as usize * ports
        } else {
            self.first_packet as usize + self.packet_stride as usize * ports
        }
    }

    /// Bytes of everything in one allocation.
    pub const fn size(&self) -> usize {
        self.packets_offset() + self.packets_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(abi: Abi, ports: u32, lanes: u32) -> Layout {
        Layout::new(abi, PortCount::new(ports).unwrap(), LaneWidth::new(lanes).unwrap()).unwrap()
    }

    /// The examples of PROTOCOL.md §1.2.
    #[test]
    fn sizes_are_the_published_ones() {
        assert_eq!(layout(Abi::Llvm20, 64, 32).size(), 132_608);
        assert_eq!(layout(Abi::LlvmMain, 64, 32).size(), 132_672);
        assert_eq!(layout(Abi::Llvm18, 64, 32).size(), 135_680);
        assert_eq!(layout(Abi::Llvm20, 4096, 64).size(), 16_875_520);
        assert_eq!(layout(Abi::LlvmMain, 4096, 64).size(), 16_875_584);
        assert_eq!(layout(Abi::Llvm18, 4096, 64).size(), 17_072_128);
        assert_eq!(layout(Abi::LlvmMain, 16384, 64).size(), 67_502_144);
    }

    #[test]
    fn offsets_are_the_published_ones() {
        let classic = layout(Abi::Llvm20, 3, 1);
        assert_eq!((classic.primary_offset(), classic.secondary_offset()), (0, 12));
        assert_eq!((classic.header_offset(0), classic.header_offset(2)), (24, 56));
        assert_eq!(classic.packet_offset(0, 0), 72, "a packet may straddle a cache line");
        let main = layout(Abi::LlvmMain, 64, 32);
        assert_eq!((main.doorbell_offset(), main.primary_offset()), (Some(0), 64));
        assert_eq!(main.header_offset(1), 64 + 8 * 64 + 16);
        assert_eq!(main.packet_offset(2, 3), 64 + 24 * 64 + 64 * 32 * 2 + 64 * 3);
        for (lanes, stride) in [(1, 128), (32, 2112), (64, 4160)] {
            let aos = layout(Abi::Llvm17, 3, lanes);
            assert_eq!(aos.packets_offset(), 64);
            assert_eq!(aos.header_offset(1) - aos.header_offset(0), stride);
            assert_eq!(aos.packet_offset(1, 0) - aos.header_offset(1), 16);
        }
    }

    #[test]
    fn impossible_sizes_are_refused_by_name() {
        assert_eq!(PortCount::new(0), Err(LayoutError::PortCount(0)));
        assert_eq!(PortCount::new(16385), Err(LayoutError::PortCount(16385)));
        assert_eq!(LaneWidth::new(0), Err(LayoutError::LaneWidth(0)));
        assert_eq!(LaneWidth::new(65), Err(LayoutError::LaneWidth(65)));
        let ports = PortCount::new(4097).unwrap();
        let error = Layout::new(Abi::Llvm20, ports, LaneWidth::new(32).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "4097 ports: clients of LLVM 20 to 22 have locks for 4096");
    }

    #[test]
    fn a_layout_is_known_at_compile_time() {
        const SIZE: usize = match (PortCount::new(64), LaneWidth::new(32)) {
            (Ok(ports), Ok(lanes)) => match Layout::new(Abi::Llvm20, ports, lanes) {
                Ok(layout) => layout.size(),
                Err(_) => 0,
            },
            _ => 0,
        };
        assert_eq!(SIZE, 132_608);
    }
}
