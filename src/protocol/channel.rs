//! The view of shared memory: mailboxes, headers and packets as atomics.
//!
//! This is the one place of the protocol that turns raw memory into Rust values. The
//! peer is another processor that may write at any moment, also against the rules, so
//! nothing here forms a reference to plain bytes: words are loaded and stored one at
//! a time, copied out, and checked by whoever uses them.
#![allow(unsafe_code)]

use bytemuck::Pod;

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::doorbell::Doorbell;
use super::layout::Layout;
use super::tagged::{self, Cells, Rows, Turn};
use super::wire::{Header, LaneMask, PACKET_SIZE, PACKET_WORDS, Packet};

/// Shared memory as one side's code sees it. Copies are cheap and see the same memory.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'c> {
    layout: Layout,
    primary: &'c [AtomicU32],
    secondary: &'c [AtomicU32],
    packets: &'c [AtomicU64],
    doorbell: Option<&'c dyn Doorbell>,
}

/// Slices that do not fit a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {part} have {actual} words, the layout needs {needed}")]
pub struct ChannelError {
    part: &'static str,
    actual: usize,
    needed: usize,
}

impl<'c> Channel<'c> {
    /// A channel over zeroed atomics: `primary` and `secondary` mailboxes, one word for each
    /// port, and the packet block in words of eight bytes. The crate's own wire has no primary mailboxes;
    /// there these words are notes of whoever has the turn, and no device sees them.
    ///
    /// # Errors
    /// When a slice is not as long as the layout says.
    pub fn new(
        layout: Layout,
        primary: &'c [AtomicU32],
        secondary: &'c [AtomicU32],
        packets: &'c [AtomicU64],
    ) -> Result<Self, ChannelError> {
        let check = |part, actual, needed| {
            if actual == needed { Ok(()) } else { Err(ChannelError { part, actual, needed }) }
        };
        let ports = layout.ports().get() as usize;
        check("primary mailboxes", primary.len(), ports)?;
        check("secondary mailboxes", secondary.len(), ports)?;
        check("packets", packets.len(), layout.packets_size() / 8)?;
        Ok(Channel { layout, primary, secondary, packets, doorbell: None })
    }

    /// A channel over memory that another processor writes too.
    ///
    /// `primary` and `secondary` point to one `u32` for each port, which are what they are in
    /// [`new`](Self::new), `packets` to the packet block of [`Layout::packets_size`] bytes.
    ///
    /// # Safety
    /// All pointers are valid for reads and writes of these sizes for `'c`, aligned to their
    /// element (the packet block to 8), and initialised. For `'c`, this process accesses the
    /// memory through atomics only. What another processor writes there, and when, does not matter.
    #[cfg(not(hostcall_loom))]
    pub unsafe fn from_raw(
        layout: Layout,
        primary: *mut u32,
        secondary: *mut u32,
        packets: *mut u64,
    ) -> Self {
        let ports = layout.ports().get() as usize;
        // SAFETY: the caller promises that each pointer is valid and aligned for its length for
        // 'c and that all access of this process is atomic. AtomicU32 and AtomicU64 have the size
        // of their integers, and every bit pattern is one of their values.
        unsafe {
            Channel {
                layout,
                primary: core::slice::from_raw_parts(primary.cast::<AtomicU32>(), ports),
                secondary: core::slice::from_raw_parts(secondary.cast::<AtomicU32>(), ports),
                packets: core::slice::from_raw_parts(
                    packets.cast::<AtomicU64>(),
                    layout.packets_size() / 8,
                ),
                doorbell: None,
            }
        }
    }

    /// This channel with a doorbell, for an [interface that has one](super::Abi::has_doorbell): clients
    /// ring it, servers count off.
    #[must_use]
    pub fn with_doorbell(self, doorbell: &'c dyn Doorbell) -> Self {
        Channel { doorbell: Some(doorbell), ..self }
    }

    /// Where everything lies.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The mailboxes that the server writes, one for each port. Notes on the crate's own wire.
    #[inline]
    pub fn primary(&self) -> &'c [AtomicU32] {
        self.primary
    }

    /// The mailboxes that the client writes, one for each port.
    #[inline]
    pub fn secondary(&self) -> &'c [AtomicU32] {
        self.secondary
    }

    /// The lane's packet of a port, as it lies in memory.
    ///
    /// # Panics
    /// When the layout has no such port or lane, and on the crate's own wire, where no packet of a
    /// lane lies in one place.
    #[inline]
    pub fn lane(&self, port: u32, lane: u32) -> Lane<'c> {
        assert!(lane < self.layout.lanes().get(), "lane {lane} of {}", self.layout.lanes().get());
        assert!(!self.is_tagged(), "{} has no packets of lanes", self.layout.abi());
        Lane { words: Words::Packet(&self.packets_of(port)[lane as usize]), lane }
    }

    /// The packets of a port's active lanes, lowest lane first, for the side whose turn it is. Lanes that
    /// the layout does not have are left out.
    ///
    /// # Panics
    /// When the layout has no such port.
    #[inline]
    pub(crate) fn lanes(
        &self,
        port: u32,
        mask: LaneMask,
    ) -> impl Iterator<Item = Lane<'c>> + use<'c> {
        let mask = mask.cut(self.layout.lanes());
        let rows = self.is_tagged().then(|| self.rows(port, mask));
        let packets = if rows.is_some() { &[] } else { self.packets_of(port) };
        (0..).zip(mask.iter()).map(move |(rank, lane)| match rows {
            Some(rows) => Lane { words: Words::Tagged(rows, rank), lane },
            None => Lane { words: Words::Packet(&packets[lane as usize]), lane },
        })
    }

    /// Whether this is the crate's own wire.
    #[inline]
    pub(super) fn is_tagged(&self) -> bool {
        self.layout.abi().is_tagged()
    }

    /// A message and its answer on the crate's own wire, for the side whose turn it is.
    #[inline]
    pub(super) fn turn(&self, is_host: bool, port: u32, mask: LaneMask, count: u32) -> Turn<'c> {
        let (request, reply) = (self.request(port), self.reply(port));
        let (mine, theirs) = if is_host { (reply, request) } else { (request, reply) };
        Turn { mine, theirs, rows: self.rows(port, mask), count }
    }

    /// Where the words of a port's lanes are on the crate's own wire.
    #[inline]
    fn rows(&self, port: u32, mask: LaneMask) -> Rows<'c> {
        let width = self.layout.lanes().get();
        let words = PACKET_WORDS * width as usize;
        let packet = self.block(self.layout.packet_offset(port, 0), words);
        Rows::new(packet, &self.primary[port as usize], width, mask.count())
    }

    /// A port's request on the crate's own wire.
    #[inline]
    pub(super) fn request(&self, port: u32) -> Cells<'c> {
        let words = tagged::request_size(self.layout.lanes()) / 8;
        Cells::request(self.block(self.layout.header_offset(port), words))
    }

    /// A port's reply on the crate's own wire.
    #[inline]
    pub(super) fn reply(&self, port: u32) -> Cells<'c> {
        let words = tagged::reply_size(self.layout.lanes()) / 8;
        Cells::reply(self.block(self.layout.reply_offset(port), words))
    }

    /// What a client object of the crate's own wire has to say of a port: its mailbox's value, and
    /// whether the server still has to answer.
    pub(super) fn tagged_port_word(&self, port: u32) -> u32 {
        let sent = self.secondary[port as usize].load(Ordering::Acquire) & 0xff_ffff;
        let answered = self.reply(port).count() == Some(sent);
        sent << 8 | if answered { 0 } else { 2 }
    }

    #[inline]
    fn block(&self, offset: usize, words: usize) -> &'c [AtomicU64] {
        let start = (offset - self.layout.packets_offset()) / 8;
        &self.packets[start..start + words]
    }

    #[inline]
    fn packets_of(&self, port: u32) -> &'c [[AtomicU64; PACKET_WORDS]] {
        let start = (self.layout.packet_offset(port, 0) - self.layout.packets_offset()) / 8;
        let words = PACKET_WORDS * self.layout.lanes().get() as usize;
        self.packets[start..start + words].as_chunks().0
    }

    /// The mask of a port's header, without the lanes that the layout does not have.
    #[inline]
    pub fn mask(&self, port: u32) -> LaneMask {
        if self.is_tagged() {
            return self.request(port).mask(self.layout.lanes());
        }
        let mask = self.header(port)[0].load(Ordering::Relaxed);
        LaneMask(mask).cut(self.layout.lanes())
    }

    /// Starts to fetch a port's header, which is about to be looked at.
    #[cfg(all(feature = "std", not(hostcall_loom)))]
    pub(crate) fn prefetch_header(&self, port: u32) {
        prefetch(&self.header(port)[0]);
    }

    /// Starts to fetch the packets of a port's active lanes. Its header should be there by now.
    #[cfg(all(feature = "std", not(hostcall_loom)))]
    #[inline]
    pub(crate) fn prefetch_packets(&self, port: u32) {
        let mask = self.mask(port);
        if self.is_tagged() {
            // Cells lie side by side, four to a line.
            let ranks = mask.count() as usize;
            let request = self.block(self.layout.header_offset(port), 8 + 2 * ranks);
            let reply = self.block(self.layout.reply_offset(port), 2 * ranks);
            let packet = self.block(self.layout.packet_offset(port, 0), ranks);
            if ranks > 1 {
                request[8..].iter().step_by(8).for_each(prefetch);
            }
            reply.iter().step_by(8).for_each(prefetch_to_write);
            packet.iter().step_by(8).for_each(prefetch_to_write);
            return;
        }
        let packets = self.packets_of(port);
        mask.iter().for_each(|lane| prefetch_to_write(&packets[lane as usize][0]));
    }

    /// The opcode of a port's header as it stands there: in an interface's own numbers, and crossed
    /// out once a server of this crate has accepted the request.
    pub fn raw_opcode(&self, port: u32) -> u32 {
        if self.is_tagged() { self.request(port).opcode() } else { self.opcode_and_status(port).0 }
    }

    /// The opcode of a port's header as its client wrote it, and the status. LLVM's wire only, as all
    /// of the header's words below.
    #[inline]
    pub(super) fn opcode_and_status(&self, port: u32) -> (u32, u32) {
        let word = self.header(port)[1].load(Ordering::Relaxed);
        (word as u32, (word >> 32) as u32)
    }

    /// Writes opcode and status into a port's header.
    #[inline]
    pub(super) fn set_opcode_and_status(&self, port: u32, opcode: u32, status: u32) {
        let word = u64::from(status) << 32 | u64::from(opcode);
        self.header(port)[1].store(word, Ordering::Relaxed);
    }

    /// Writes a port's whole header.
    #[inline]
    pub(crate) fn set_header(&self, port: u32, header: Header) {
        self.header(port)[0].store(header.mask, Ordering::Relaxed);
        self.set_opcode_and_status(port, header.opcode, header.status);
    }

    /// Counts one more open port, where the interface has a doorbell that is on.
    pub(super) fn ring(&self) {
        if let Some(doorbell) = self.doorbell {
            doorbell.ring();
        }
    }

    /// Counts one open port less.
    pub(super) fn unring(&self) {
        if let Some(doorbell) = self.doorbell {
            doorbell.unring();
        }
    }

    #[inline]
    fn header(&self, port: u32) -> &'c [AtomicU64] {
        let start = (self.layout.header_offset(port) - self.layout.packets_offset()) / 8;
        &self.packets[start..start + 2]
    }
}

/// One lane's packet in shared memory, to read or to fill while the port is owned.
///
/// Reads copy out. Two reads of the same word may differ when the peer breaks the
/// rules, so read once, then check, then use.
///
/// Words that this side does not write are those that the peer sent, on LLVM's wire. On the crate's own
/// ([`Abi::Hostcall`](super::Abi::Hostcall)) a message is as long as the last word that any lane
/// writes, and what lies behind it reads as zero.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'c> {
    words: Words<'c>,
    lane: u32,
}

/// Where a lane's words are.
#[derive(Clone, Copy, Debug)]
enum Words<'c> {
    Packet(&'c [AtomicU64; PACKET_WORDS]),
    /// On the crate's own wire, with the lane's rank.
    Tagged(Rows<'c>, u32),
}

impl Lane<'_> {
    /// The lane's number in its warp.
    #[inline]
    pub fn index(&self) -> u32 {
        self.lane
    }

    /// The word `d[index]`.
    ///
    /// # Panics
    /// From index 8 on.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        match &self.words {
            Words::Packet(words) => words[index].load(Ordering::Relaxed),
            Words::Tagged(rows, rank) => rows.word(*rank, index),
        }
    }

    /// Writes the word `d[index]`.
    ///
    /// # Panics
    /// From index 8 on.
    #[inline]
    pub fn set_word(&self, index: usize, value: u64) {
        match &self.words {
            Words::Packet(words) => words[index].store(value, Ordering::Relaxed),
            Words::Tagged(rows, rank) => rows.set_word(*rank, index, value),
        }
    }

    /// Says that words up to `count` will be written, so that the message grows once.
    #[inline]
    fn reserve(&self, count: usize) {
        if let Words::Tagged(rows, _) = &self.words
            && count > 1
        {
            rows.reserve(count);
        }
    }

    /// A copy of the whole packet.
    #[inline]
    pub fn load(&self) -> Packet {
        Packet { words: core::array::from_fn(|index| self.word(index)) }
    }

    /// Writes the whole packet.
    #[inline]
    pub fn store(&self, packet: &Packet) {
        self.reserve(PACKET_WORDS);
        for (index, &word) in packet.words.iter().enumerate() {
            self.set_word(index, word);
        }
    }

    /// The value whose bytes stand at the beginning of the packet. A `T` larger than a packet does
    /// not compile.
    #[inline]
    pub fn value<T: Pod>(&self) -> T {
        const { assert!(size_of::<T>() <= PACKET_SIZE, "the value is larger than a packet") }
        let mut packet = Packet::default();
        for index in 0..size_of::<T>().div_ceil(8) {
            packet.words[index] = self.word(index);
        }
        packet.value()
    }

    /// Writes a value at the beginning of the packet; of the last word begun, the rest is zero.
    /// A `T` larger than a packet does not compile.
    #[inline]
    pub fn set_value<T: Pod>(&self, value: &T) {
        let packet = Packet::from_value(value);
        self.reserve(size_of::<T>().div_ceil(8));
        for index in 0..size_of::<T>().div_ceil(8) {
            self.set_word(index, packet.words[index]);
        }
    }

    /// Writes at most 64 bytes at the beginning; of the last word begun, the rest is zero.
    ///
    /// # Panics
    /// When there are more than 64 bytes.
    pub fn set_bytes(&self, bytes: &[u8]) {
        assert!(bytes.len() <= PACKET_SIZE, "{} bytes do not fit in a packet", bytes.len());
        self.set_bytes_from(0, bytes);
    }

    /// Writes bytes from word `first` on.
    pub(super) fn set_bytes_from(&self, first: usize, bytes: &[u8]) {
        self.reserve(first + bytes.len().div_ceil(8));
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.set_word(first + index, u64::from_le_bytes(word));
        }
    }

    /// Zeroes the packet.
    pub fn clear(&self) {
        self.store(&Packet::default());
    }
}

/// Starts to fetch a word's cache line, to read it.
#[cfg(all(feature = "std", not(hostcall_loom)))]
#[inline]
fn prefetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that a program can see, and SSE is part of every x86-64.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) word.as_ptr(), options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// As above, to write it.
#[cfg(all(feature = "std", not(hostcall_loom)))]
#[inline]
fn prefetch_to_write(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; processors that do not know this hint take it for no operation.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) word.as_ptr(), options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// Whether any of sixteen words differs from its counterpart: a cache line of mailboxes in one look.
///
/// Only a hint. A word that changes at this moment may be seen or not; whoever acts on the answer
/// loads the word itself.
#[cfg(all(feature = "std", target_arch = "x86_64", not(hostcall_loom)))]
pub(crate) fn differ(words: &[AtomicU32; 16], others: &[AtomicU32; 16]) -> bool {
    let equal: u32;
    // SAFETY: reads 64 bytes behind each reference and writes no memory. The words may change
    // meanwhile, as atomics may; what is read of such a word is not used as a value. SSE2 is part of
    // every x86-64.
    unsafe {
        core::arch::asm!(
            "movdqu {a}, [{words}]",
            "movdqu {b}, [{words} + 16]",
            "movdqu {c}, [{words} + 32]",
            "movdqu {d}, [{words} + 48]",
            "movdqu {e}, [{others}]",
            "pxor {a}, {e}",
            "movdqu {e}, [{others} + 16]",
            "pxor {b}, {e}",
            "movdqu {e}, [{others} + 32]",
            "pxor {c}, {e}",
            "movdqu {e}, [{others} + 48]",
            "pxor {d}, {e}",
            "por {a}, {b}",
            "por {c}, {d}",
            "por {a}, {c}",
            "pxor {e}, {e}",
            "pcmpeqd {a}, {e}",
            "pmovmskb {equal:e}, {a}",
            words = in(reg) words.as_ptr(),
            others = in(reg) others.as_ptr(),
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            e = out(xmm_reg) _,
            equal = out(reg) equal,
            options(nostack, readonly, preserves_flags),
        );
    }
    equal != 0xffff
}

/// As above, word by word and without a loop: compilers do not unroll loops over atomics.
#[cfg(all(feature = "std", not(target_arch = "x86_64"), not(hostcall_loom)))]
pub(crate) fn differ(words: &[AtomicU32; 16], others: &[AtomicU32; 16]) -> bool {
    let one = |i: usize| words[i].load(Ordering::Relaxed) ^ others[i].load(Ordering::Relaxed);
    let four = |i| one(i) | one(i + 1) | one(i + 2) | one(i + 3);
    four(0) | four(4) | four(8) | four(12) != 0
}

/// The lower half of a word of the crate's own wire, as often as it fits in a register.
#[derive(Clone, Copy)]
pub(super) struct Tag(Tags);

#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom)))]
type Tags = core::arch::x86_64::__m128i;
#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom))))]
type Tags = u32;

impl Tag {
    #[inline]
    pub(super) fn new(tag: u32) -> Self {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom)))]
        return Tag(bytemuck::must_cast([tag; 4]));
        #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom))))]
        Tag(tag)
    }
}

/// Moves the upper halves of four words, two cells of the crate's own wire, together into two words.
/// Returns whether the lower halves are all this tag.
#[inline]
pub(super) fn unpack_cells(cells: &[AtomicU64; 4], tag: Tag, words: &[AtomicU64; 2]) -> bool {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom)))]
    {
        let equal: u32;
        // SAFETY: reads the 32 bytes behind one reference and writes the 16 behind the other. The words
        // may change meanwhile, as atomics may: whatever is read is a value that a lane may have sent. An
        // access of 16 bytes reads and writes words of 8 as a whole: processors with AVX promise it even
        // for all 16 where they are aligned (Intel's and AMD's manuals, on guaranteed atomic operations),
        // and older ones have ways of 8 bytes.
        unsafe {
            core::arch::asm!(
                "movups {data}, [{cells}]",
                "movups {other}, [{cells} + 16]",
                "movaps {tags}, {data}",
                "shufps {data}, {other}, 0xdd",
                "shufps {tags}, {other}, 0x88",
                "movups [{words}], {data}",
                "pcmpeqd {tags}, {tag}",
                "movmskps {equal:e}, {tags}",
                cells = in(reg) cells.as_ptr(),
                words = in(reg) words.as_ptr(),
                tag = in(xmm_reg) tag.0,
                data = out(xmm_reg) _,
                other = out(xmm_reg) _,
                tags = out(xmm_reg) _,
                equal = out(reg) equal,
                options(nostack, preserves_flags),
            );
        }
        equal == 0xf
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom))))]
    {
        let mut all = true;
        for (word, cell) in words.iter().zip(cells.as_chunks::<2>().0) {
            let [low, high] = [0, 1].map(|half: usize| cell[half].load(Ordering::Acquire));
            all &= low as u32 == tag.0 && high as u32 == tag.0;
            word.store(high >> 32 << 32 | low >> 32, Ordering::Relaxed);
        }
        all
    }
}

/// The other way round: makes two cells of two words, all four halves with this tag.
#[inline]
pub(super) fn pack_cells(words: &[AtomicU64; 2], tag: Tag, cells: &[AtomicU64; 4]) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom)))]
    // SAFETY: as above; a peer that polls the cells finds whole words of 8 bytes.
    unsafe {
        core::arch::asm!(
            // Word by word: they have just been stored so, and a wider load would wait for that.
            "movq {data}, [{words}]",
            "movhps {data}, [{words} + 8]",
            "movaps {low}, {tag}",
            "movaps {high}, {tag}",
            "unpcklps {low}, {data}",
            "unpckhps {high}, {data}",
            "movups [{cells}], {low}",
            "movups [{cells} + 16], {high}",
            words = in(reg) words.as_ptr(),
            cells = in(reg) cells.as_ptr(),
            tag = in(xmm_reg) tag.0,
            low = out(xmm_reg) _,
            high = out(xmm_reg) _,
            data = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(hostcall_loom))))]
    for (word, cell) in words.iter().zip(cells.as_chunks::<2>().0) {
        let word = word.load(Ordering::Relaxed);
        let [low, high] = [word << 32, word >> 32 << 32].map(|half| half | u64::from(tag.0));
        cell[0].store(low, Ordering::Relaxed);
        cell[1].store(high, Ordering::Relaxed);
    }
}

#[cfg(target_endian = "big")]
compile_error!("the wire is little-endian; big-endian hosts are not supported");

#[cfg(all(test, not(hostcall_loom)))]
mod tests {
    use super::super::{Abi, LaneWidth, PortCount};
    use super::*;

    fn layout() -> Layout {
        Layout::new(Abi::Llvm20, PortCount::new(2).unwrap(), LaneWidth::new(2).unwrap()).unwrap()
    }

    fn words<T: Default>(count: usize) -> Vec<T> {
        (0..count).map(|_| T::default()).collect()
    }

    #[test]
    fn slices_must_fit_the_layout() {
        let (flags, packets) = (words(2), words(layout().packets_size() / 8));
        assert!(Channel::new(layout(), &flags, &flags, &packets).is_ok());
        let error = Channel::new(layout(), &flags, &flags[..1], &packets).unwrap_err();
        assert_eq!(error.to_string(), "the secondary mailboxes have 1 words, the layout needs 2");
        assert!(Channel::new(layout(), &flags, &flags, &packets[1..]).is_err());
    }

    #[test]
    fn packets_and_headers_do_not_overlap() {
        let (flags, packets) = (words(2), words(layout().packets_size() / 8));
        let channel = Channel::new(layout(), &flags, &flags, &packets).unwrap();
        for port in 0..2 {
            channel.set_header(port, Header { mask: u64::MAX, opcode: 7 + port, status: 9 });
            for lane in 0..2 {
                channel.lane(port, lane).set_bytes(&[(10 * port + lane) as u8; 64]);
            }
        }
        for port in 0..2 {
            assert_eq!(channel.mask(port), LaneMask(0b11), "cut to two lanes");
            assert_eq!(channel.opcode_and_status(port), (7 + port, 9));
            for lane in 0..2 {
                let packet = channel.lane(port, lane).load();
                assert_eq!(packet.bytes(), &[(10 * port + lane) as u8; 64]);
            }
        }
    }

    #[test]
    fn a_value_leaves_the_words_behind_it_alone() {
        let (flags, packets) = (words(2), words(layout().packets_size() / 8));
        let channel = Channel::new(layout(), &flags, &flags, &packets).unwrap();
        let lane = channel.lane(1, 1);
        lane.set_bytes(&[0xff; 64]);
        lane.set_value(&[1u32, 2, 3]);
        assert_eq!(lane.value::<[u32; 4]>(), [1, 2, 3, 0]);
        assert_eq!(lane.word(2), u64::MAX);
        lane.clear();
        assert_eq!(lane.load(), Packet::default());
    }

    #[cfg(feature = "std")]
    #[test]
    fn a_difference_is_seen_in_every_word_and_bit() {
        let (ones, others): (Vec<AtomicU32>, Vec<AtomicU32>) = (words(17), words(16));
        let (ones, others) = (ones[1..].first_chunk().unwrap(), others.first_chunk().unwrap());
        assert!(!differ(ones, others));
        for index in 0..16 {
            for bit in 0..32 {
                ones[index].store(1 << bit, Ordering::Relaxed);
                assert!(differ(ones, others) && differ(others, ones), "word {index}, bit {bit}");
                others[index].store(1 << bit, Ordering::Relaxed);
                assert!(!differ(ones, others), "word {index}, bit {bit}");
            }
        }
    }

    #[test]
    fn cells_are_packed_and_unpacked() {
        let values = [0x0102_0304_0506_0708u64, u64::MAX >> 1];
        let (cells, back): (Vec<AtomicU64>, Vec<AtomicU64>) = (words(5), words(3));
        // Not aligned to more than a word.
        let cells: &[AtomicU64; 4] = cells[1..].first_chunk().unwrap();
        pack_cells(&values.map(AtomicU64::new), Tag::new(0x1234_5678), cells);
        let load = |words: &[AtomicU64]| -> Vec<u64> {
            words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
        };
        let halves = [0x0506_0708u64, 0x0102_0304, 0xffff_ffff, 0x7fff_ffff];
        assert_eq!(load(cells), halves.map(|half| half << 32 | 0x1234_5678));
        let back_words = back[1..].first_chunk().unwrap();
        assert!(unpack_cells(cells, Tag::new(0x1234_5678), back_words));
        assert_eq!(load(&back), [0, values[0], values[1]]);
        for torn in 0..4 {
            let whole = cells[torn].load(Ordering::Relaxed);
            cells[torn].store(whole ^ 1 << (8 * torn), Ordering::Relaxed);
            assert!(!unpack_cells(cells, Tag::new(0x1234_5678), back_words), "word {torn}");
            cells[torn].store(whole, Ordering::Relaxed);
        }
    }

    #[test]
    #[should_panic(expected = "lane 2 of 2")]
    fn a_lane_beyond_the_width_is_a_bug() {
        let (flags, packets) = (words(2), words(layout().packets_size() / 8));
        Channel::new(layout(), &flags, &flags, &packets).unwrap().lane(0, 2);
    }
}
