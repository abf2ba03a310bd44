//! The values that travel: packets, headers, opcodes, lane masks.

use bytemuck::{Pod, Zeroable};
use core::fmt;

use super::layout::LaneWidth;

/// Bytes that one lane sends or receives at a time.
pub const PACKET_SIZE: usize = 64;
/// The same in 64-bit words.
pub const PACKET_WORDS: usize = PACKET_SIZE / 8;

/// What one lane sends or receives in one turn: 64 bytes, copied out of shared memory.
///
/// The bytes are those of the wire, so word 0 holds bytes 0 to 7 in little-endian order.
///
/// ```
/// use hostcall::Packet;
/// let packet = Packet::from_value(&[7u32, 8]);
/// assert_eq!(packet.words[0], 8 << 32 | 7);
/// assert_eq!(packet.value::<[u32; 2]>(), [7, 8]);
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Packet {
    /// The eight words `d[0]` to `d[7]`.
    pub words: [u64; PACKET_WORDS],
}

impl Packet {
    /// A packet that begins with the bytes of `value`; the rest is zero.
    ///
    /// A `T` larger than a packet does not compile.
    #[inline]
    pub fn from_value<T: Pod>(value: &T) -> Self {
        const { assert!(size_of::<T>() <= PACKET_SIZE, "the value is larger than a packet") }
        let mut packet = Packet::default();
        bytemuck::bytes_of_mut(&mut packet)[..size_of::<T>()]
            .copy_from_slice(bytemuck::bytes_of(value));
        packet
    }

    /// The value whose bytes stand at the beginning of the packet.
    ///
    /// A `T` larger than a packet does not compile.
    #[inline]
    pub fn value<T: Pod>(&self) -> T {
        const { assert!(size_of::<T>() <= PACKET_SIZE, "the value is larger than a packet") }
        bytemuck::pod_read_unaligned(&self.bytes()[..size_of::<T>()])
    }

    /// The 64 bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8; PACKET_SIZE] {
        bytemuck::must_cast_ref(self)
    }
}

/// What a client writes when it opens a port, before its first packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Header {
    /// The lanes that take part, bit `j` for lane `j`.
    pub mask: u64,
    /// What is asked for. LLVM 17 to 19 write 16 bits of it only.
    pub opcode: u32,
    /// Padding on LLVM's wire. A [`Status`] that this crate's server leaves for clients that look.
    pub status: u32,
}

/// A 32-bit number that says what a conversation is about.
///
/// The top byte is a class, by convention an ASCII letter for whoever assigned the
/// number: `c` for the LLVM C library, `o` for LLVM's offload runtime, `r` for ROCm.
///
/// ```
/// use hostcall::Opcode;
/// const PING: Opcode = Opcode::new(b'x', 1);
/// assert_eq!(PING.class(), b'x');
/// assert_eq!(PING.to_string(), "'x'+1 (0x78000001)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u32);

impl Opcode {
    /// The opcode `number` of `class`.
    ///
    /// # Panics
    /// When `number` does not fit in 24 bits; at compile time in a constant.
    pub const fn new(class: u8, number: u32) -> Self {
        assert!(number < 1 << 24, "an opcode's number has 24 bits");
        Opcode((class as u32) << 24 | number)
    }

    /// The top byte.
    pub const fn class(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// The low 24 bits.
    pub const fn number(self) -> u32 {
        self.0 & 0x00ff_ffff
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.class().is_ascii_graphic() {
            write!(f, "'{}'+{} ({:#010x})", self.class() as char, self.number(), self.0)
        } else {
            write!(f, "{:#010x}", self.0)
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}

impl From<u32> for Opcode {
    fn from(value: u32) -> Self {
        Opcode(value)
    }
}

/// The lanes of a warp or wavefront that take part in a conversation.
///
/// ```
/// use hostcall::LaneMask;
/// let odd = LaneMask::from_fn(|lane| lane % 2 == 1).cut(8.try_into()?);
/// assert_eq!(odd.iter().collect::<Vec<_>>(), [1, 3, 5, 7]);
/// # Ok::<(), hostcall::LayoutError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LaneMask(pub u64);

impl LaneMask {
    /// No lane.
    pub const EMPTY: LaneMask = LaneMask(0);

    /// Every lane of a warp of this width.
    #[inline]
    pub const fn all(width: LaneWidth) -> Self {
        LaneMask(u64::MAX >> (64 - width.get()))
    }

    /// One lane. Lanes from 64 on give an empty mask.
    pub const fn lane(lane: u32) -> Self {
        LaneMask(if lane < 64 { 1 << lane } else { 0 })
    }

    /// The lanes below 64 for which `f` says yes.
    pub fn from_fn(f: impl Fn(u32) -> bool) -> Self {
        LaneMask((0..64).filter(|&lane| f(lane)).fold(0, |mask, lane| mask | 1 << lane))
    }

    /// Whether the lane takes part.
    #[inline]
    pub const fn contains(self, lane: u32) -> bool {
        lane < 64 && self.0 >> lane & 1 == 1
    }

    /// How many lanes take part.
    #[inline]
    pub const fn count(self) -> u32 {
        // The lanes of most warps lie together from 0 on, and an x86-64 of any age has no instruction that
        // counts bits.
        let first = self.0.trailing_ones();
        if first == 64 || self.0 >> first == 0 { first } else { self.0.count_ones() }
    }

    /// Whether no lane takes part.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest lane that takes part.
    #[inline]
    pub const fn first(self) -> Option<u32> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros()) }
    }

    /// Without the lanes that a warp of this width does not have.
    #[must_use]
    #[inline]
    pub const fn cut(self, width: LaneWidth) -> Self {
        LaneMask(self.0 & Self::all(width).0)
    }

    /// The lanes in ascending order.
    #[inline]
    pub fn iter(self) -> LaneIter {
        LaneIter(self.0)
    }
}

impl IntoIterator for LaneMask {
    type Item = u32;
    type IntoIter = LaneIter;
    fn into_iter(self) -> LaneIter {
        self.iter()
    }
}

impl fmt::Debug for LaneMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaneMask({:#x})", self.0)
    }
}

/// The lanes of a [`LaneMask`], lowest first.
#[derive(Clone, Debug)]
pub struct LaneIter(u64);

impl Iterator for LaneIter {
    type Item = u32;
    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let lane = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(lane)
    }
}

/// How a conversation ended when the server refused it.
///
/// The server clears the packets of the active lanes, writes the status into the
/// header's padding and hands the port back, so a client is always released. LLVM's
/// clients read cleared packets; a client that looks finds the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Status {
    /// No handler is registered for the opcode.
    #[error("no handler is registered for the opcode")]
    UnknownOpcode,
    /// The handler returned an error or panicked.
    #[error("the handler failed")]
    HandlerFailed,
    /// The conversation made no progress until its deadline.
    #[error("the conversation's deadline passed")]
    DeadlineExpired,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The packet belongs to no conversation: the handler ended before the client did.
    #[error("the packet belongs to no conversation")]
    Protocol,
}

impl Status {
    /// The number in the header; zero stands for no status.
    pub const fn to_wire(self) -> u32 {
        match self {
            Status::UnknownOpcode => 1,
            Status::HandlerFailed => 2,
            Status::DeadlineExpired => 3,
            Status::ShuttingDown => 4,
            Status::Protocol => 5,
        }
    }

    /// The status of a number in the header; `None` for zero and for unknown ones.
    pub const fn from_wire(value: u32) -> Option<Self> {
        Some(match value {
            1 => Status::UnknownOpcode,
            2 => Status::HandlerFailed,
            3 => Status::DeadlineExpired,
            4 => Status::ShuttingDown,
            5 => Status::Protocol,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_cut_to_the_width() {
        let width = LaneWidth::new(32).unwrap();
        assert_eq!(LaneMask(u64::MAX).cut(width).0, 0xffff_ffff);
        assert_eq!(LaneMask::all(LaneWidth::new(64).unwrap()).0, u64::MAX);
        assert_eq!(LaneMask::all(LaneWidth::new(1).unwrap()).0, 1);
    }

    #[test]
    fn lanes_come_in_ascending_order() {
        let mask = LaneMask(1 << 63 | 0b1010);
        assert!(mask.iter().eq([1, 3, 63]));
        assert_eq!((mask.count(), mask.first()), (3, Some(1)));
        assert_eq!((LaneMask::EMPTY.first(), LaneMask::lane(64)), (None, LaneMask::EMPTY));
    }

    #[test]
    fn every_status_survives_the_wire() {
        for number in 1..=5 {
            assert_eq!(Status::from_wire(number).map(Status::to_wire), Some(number));
        }
        assert_eq!(Status::from_wire(0), None);
        assert_eq!(Status::from_wire(6), None);
    }
}
