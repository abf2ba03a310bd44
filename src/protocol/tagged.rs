//! How messages look on the crate's own wire ([`Abi::Hostcall`](super::Abi::Hostcall)).
//!
//! The conversations are LLVM's; a message takes fewer steps over the bus. A mailbox counts
//! hand-overs, 24 bits wide, where LLVM's is inverted. Every word of a short message carries the
//! count that it belongs to, so it needs no flag after it: what has the count is there.
//!
//! A *tagged word* is `data << 32 | count << 8 | meta`; a *cell* is two of them, the halves of one
//! 64-bit word. The *rank* of a lane is the number of active lanes before it; messages lie by rank,
//! so that they are dense whatever the mask.
//!
//! | block of a port | words | written by |
//! |---|---|---|
//! | request | cell of rank 0; opcode; mask, low and high; 3 unused; from word 8 + 2·rank, the other cells | client |
//! | reply | a cell for each rank | server |
//! | packet | 8 rows, word `k` of rank `r` at `k · lane width + r` | whose turn it is |
//!
//! The client's mailbox is a word of its own, which the server scans; the server's is the count of
//! its reply's first cell. The meta bytes of rank 0's cell say what the message is: in the low word
//! its [`Kind`], [`OPENING`] and [`ORDERED`]; in the high word how many words each lane has in the
//! packet, or in a reply of kind `Nothing` the [`Status`](super::Status). Opcode and mask count in an
//! opening message only.
//!
//! While a side has the turn it puts its message together in the same places. Words that are not
//! ready to be seen have the count of its last message, with [`STAGED`]: nobody takes them for the
//! next one. A message of more than a word for any lane stands in the packet as a whole.
//!
//! A sender whose count is a multiple of [`REFRESH`] writes all its tagged words, so that none is
//! ever as old as the counter is long.

use super::atomic::{AtomicU64, Ordering};
use super::layout::LaneWidth;
use super::wire::{LaneMask, PACKET_WORDS};

/// In the low word of an opening message.
const OPENING: u32 = 0x80;
/// In the low word of a message that is there as a whole when the mailbox says so.
const ORDERED: u32 = 0x40;
/// In the words of a message that is being put together; in the first of them with the number of
/// words for each lane.
const STAGED: u32 = 0x20;
const KIND: u32 = 0x1f;
const ROWS: u32 = 0xf;
const STATUS: u32 = 0xff;

const COUNT: u32 = 0xff_ffff;
const REFRESH: u32 = 0x1_0000;

/// Words of a request block: opcode, the halves of the mask, and where the cells of rank 1 and up
/// are counted from.
const OPCODE: usize = 2;
const MASK_LOW: usize = 3;
const MASK_HIGH: usize = 4;
const CELLS: usize = 8;

/// Bytes of a port's request block.
pub(super) const fn request_size(lanes: LaneWidth) -> usize {
    8 * (CELLS + 2 * lanes.get() as usize)
}

/// Bytes of a port's reply cells.
pub(super) const fn reply_size(lanes: LaneWidth) -> usize {
    8 * 2 * lanes.get() as usize
}

/// The count after this one.
#[inline]
pub(super) const fn next(count: u32) -> u32 {
    (count + 1) & COUNT
}

/// What a message is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A hand-over alone: all words are zero.
    Nothing,
    /// A word for each lane, in cells.
    Word,
    /// This many words for each lane, in the packet.
    Packet(u32),
}

impl Kind {
    #[inline]
    fn new(low: u64, high: u64) -> Self {
        match meta(low) & KIND {
            1 => Kind::Word,
            2 => Kind::Packet((meta(high) & ROWS).min(PACKET_WORDS as u32)),
            _ => Kind::Nothing,
        }
    }
}

#[inline]
const fn word(data: u32, count: u32, meta: u32) -> u64 {
    (data as u64) << 32 | (count << 8 | meta) as u64
}

#[inline]
const fn data(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline]
const fn count(word: u64) -> u32 {
    word as u32 >> 8
}

#[inline]
const fn meta(word: u64) -> u32 {
    word as u32 & 0xff
}

/// The cells that one side writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<'c> {
    words: &'c [AtomicU64],
    /// Where the cells of rank 1 and up are counted from.
    others: usize,
}

impl<'c> Cells<'c> {
    /// A port's request block.
    #[inline]
    pub(super) fn request(words: &'c [AtomicU64]) -> Self {
        Cells { words, others: CELLS }
    }

    /// A port's reply cells.
    #[inline]
    pub(super) fn reply(words: &'c [AtomicU64]) -> Self {
        Cells { words, others: 0 }
    }

    #[inline]
    fn at(&self, rank: u32) -> usize {
        if rank == 0 { 0 } else { self.others + 2 * rank as usize }
    }

    #[inline]
    fn low(&self, rank: u32) -> &'c AtomicU64 {
        &self.words[self.at(rank)]
    }

    #[inline]
    fn high(&self, rank: u32) -> &'c AtomicU64 {
        &self.words[self.at(rank) + 1]
    }

    #[inline]
    fn value(&self, rank: u32) -> u64 {
        let [low, high] =
            [self.low(rank), self.high(rank)].map(|word| word.load(Ordering::Relaxed));
        u64::from(data(high)) << 32 | u64::from(data(low))
    }

    /// Whether the cell is one of the message with this count.
    #[inline]
    fn has(&self, rank: u32, of: u32) -> bool {
        // Acquire: what was written before the low word of rank 0 is visible after this.
        count(self.low(rank).load(Ordering::Acquire)) == of
            && count(self.high(rank).load(Ordering::Acquire)) == of
    }

    /// The count of the message that stands here; what a server last sent, in a reply.
    #[inline]
    pub(super) fn count(&self) -> Option<u32> {
        let of = count(self.low(0).load(Ordering::Acquire));
        self.has(0, of).then_some(of)
    }

    /// The lanes that the opening request names, without those that there are not.
    #[inline]
    pub(super) fn mask(&self, lanes: LaneWidth) -> LaneMask {
        let half = |at: usize| u64::from(data(self.words[at].load(Ordering::Relaxed)));
        let high = if lanes.get() > 32 { half(MASK_HIGH) } else { 0 };
        LaneMask(high << 32 | half(MASK_LOW)).cut(lanes)
    }

    /// The opcode that the opening request names.
    #[inline]
    pub(super) fn opcode(&self) -> u32 {
        data(self.words[OPCODE].load(Ordering::Relaxed))
    }

    /// Whether the request with this count opens a conversation.
    #[inline]
    pub(super) fn opens(&self, of: u32) -> bool {
        let low = self.low(0).load(Ordering::Acquire);
        count(low) == of && meta(low) & OPENING != 0
    }

    /// Writes what an opening request with this count asks for.
    pub(super) fn open(&self, of: u32, opcode: u32, mask: LaneMask) {
        let halves = [mask.0 as u32, (mask.0 >> 32) as u32];
        for (at, data) in [(OPCODE, opcode), (MASK_LOW, halves[0]), (MASK_HIGH, halves[1])] {
            self.words[at].store(word(data, of, 0), Ordering::Relaxed);
        }
    }

    /// Whether the request with this count is there, all of it. `mask` has the lanes of the
    /// conversation that it would go on with.
    #[inline]
    pub(super) fn is_complete(&self, of: u32, mask: LaneMask, lanes: LaneWidth) -> bool {
        if !self.has(0, of) {
            return false;
        }
        let [low, high] = [self.low(0), self.high(0)].map(|word| word.load(Ordering::Relaxed));
        if meta(low) & ORDERED != 0 {
            return true;
        }
        self.is_complete_alone(of, low, high, mask, lanes)
    }

    /// As above, for a request that its client has not ordered before the mailbox.
    #[cold]
    fn is_complete_alone(
        &self,
        of: u32,
        low: u64,
        high: u64,
        mut mask: LaneMask,
        lanes: LaneWidth,
    ) -> bool {
        if meta(low) & OPENING != 0 {
            let last = if lanes.get() > 32 { MASK_HIGH } else { MASK_LOW };
            let there = |at: usize| count(self.words[at].load(Ordering::Acquire)) == of;
            if !(OPCODE..=last).all(there) {
                return false;
            }
            mask = self.mask(lanes);
        }
        Kind::new(low, high) != Kind::Word || (1..mask.count()).all(|rank| self.has(rank, of))
    }
}

/// A message that this side reads, and the one that it puts together, while it has the turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn<'c> {
    mine: Cells<'c>,
    theirs: Cells<'c>,
    packet: &'c [AtomicU64],
    /// How many lanes are active, and how many have room.
    ranks: u32,
    width: u32,
    /// This side's count so far.
    count: u32,
    kind: Kind,
}

impl<'c> Turn<'c> {
    #[inline]
    pub(super) fn new(
        mine: Cells<'c>,
        theirs: Cells<'c>,
        packet: &'c [AtomicU64],
        mask: LaneMask,
        width: LaneWidth,
        count: u32,
    ) -> Self {
        let [low, high] = [theirs.low(0), theirs.high(0)].map(|word| word.load(Ordering::Relaxed));
        let kind = Kind::new(low, high);
        Turn { mine, theirs, packet, ranks: mask.count(), width: width.get(), count, kind }
    }

    /// Words for each lane of the message that is being put together.
    #[inline]
    fn staged(&self) -> u32 {
        let low = self.mine.low(0).load(Ordering::Relaxed);
        if count(low) == self.count && meta(low) & STAGED != 0 { meta(low) & ROWS } else { 0 }
    }

    #[inline]
    fn set_staged(&self, rows: u32) {
        let low = self.mine.low(0);
        let data = data(low.load(Ordering::Relaxed));
        low.store(word(data, self.count, STAGED | rows), Ordering::Relaxed);
    }

    #[inline]
    fn is_staged(&self, rank: u32) -> bool {
        let high = self.mine.high(rank).load(Ordering::Relaxed);
        high as u32 == self.count << 8 | STAGED
    }

    #[inline]
    fn in_packet(&self, rank: u32, index: usize) -> &'c AtomicU64 {
        &self.packet[index * self.width as usize + rank as usize]
    }

    /// A word as it was received, or as it has been written since.
    #[inline]
    pub(super) fn word(&self, rank: u32, index: usize) -> u64 {
        assert!(index < PACKET_WORDS, "word {index} of {PACKET_WORDS}");
        let staged = self.staged();
        if staged == 1 && index == 0 && self.is_staged(rank) {
            return self.mine.value(rank);
        }
        let received = match self.kind {
            Kind::Packet(rows) => rows,
            Kind::Word if index == 0 && staged < 2 => return self.theirs.value(rank),
            Kind::Word | Kind::Nothing => 0,
        };
        let rows = if staged < 2 { received } else { received.max(staged) };
        if index < rows as usize { self.in_packet(rank, index).load(Ordering::Relaxed) } else { 0 }
    }

    #[inline]
    pub(super) fn set_word(&self, rank: u32, index: usize, value: u64) {
        assert!(index < PACKET_WORDS, "word {index} of {PACKET_WORDS}");
        let staged = self.staged();
        if index == 0 && staged < 2 {
            if staged == 0 {
                self.set_staged(1);
            }
            self.stage(rank, value);
            return;
        }
        if index >= staged as usize {
            self.reserve(index + 1);
        }
        self.in_packet(rank, index).store(value, Ordering::Relaxed);
    }

    /// Puts a lane's only word where it is sent from. The low word is what it will be, but for rank 0:
    /// there it says that the message is not complete.
    #[inline]
    fn stage(&self, rank: u32, value: u64) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        let low = if rank == 0 {
            word(low, self.count, STAGED | 1)
        } else {
            word(low, next(self.count), 0)
        };
        self.mine.low(rank).store(low, Ordering::Relaxed);
        self.mine.high(rank).store(word(high, self.count, STAGED), Ordering::Relaxed);
    }

    /// Makes the message one of `rows` words for each lane, at least two. Words that nobody has written
    /// or sent are zero.
    pub(super) fn reserve(&self, rows: usize) {
        let staged = self.staged() as usize;
        let rows = rows.max(2);
        if rows <= staged {
            return;
        }
        let received = match self.kind {
            Kind::Packet(rows) => rows as usize,
            Kind::Nothing | Kind::Word => 0,
        };
        if staged < 2 {
            for rank in 0..self.ranks {
                let value = self.word(rank, 0);
                self.in_packet(rank, 0).store(value, Ordering::Relaxed);
            }
        }
        for index in staged.max(received).max(1)..rows {
            for rank in 0..self.ranks {
                self.in_packet(rank, index).store(0, Ordering::Relaxed);
            }
        }
        self.set_staged(rows as u32);
    }

    /// Sends what has been put together. Returns the new count, which a client writes into its mailbox
    /// then; a server's message is sent with this.
    #[inline]
    pub(super) fn send(&self, opening: bool) -> u32 {
        let next = next(self.count);
        let flags = if opening { OPENING | ORDERED } else { ORDERED };
        match self.staged() {
            0 => self.complete(next, 0, flags, 0),
            1 => {
                for rank in 1..self.ranks {
                    let high = self.mine.high(rank);
                    let staged = high.load(Ordering::Relaxed);
                    if staged as u32 == self.count << 8 | STAGED {
                        high.store(word(data(staged), next, 0), Ordering::Relaxed);
                    } else {
                        // Not written: it goes back as it came.
                        self.put(rank, next, self.word(rank, 0));
                    }
                }
                self.complete(next, self.word(0, 0), flags | 1, 0);
            }
            rows => self.complete(next, 0, flags | 2, rows),
        }
        next
    }

    /// Sends a refusal, whatever has been put together.
    pub(super) fn refuse(&self, status: u32) -> u32 {
        let next = next(self.count);
        self.complete(next, 0, ORDERED, status & STATUS);
        next
    }

    /// What the server says of the conversation, in the message that this side reads.
    pub(super) fn status(&self) -> u32 {
        let high = self.theirs.high(0).load(Ordering::Relaxed);
        if self.kind == Kind::Nothing { meta(high) } else { 0 }
    }

    fn put(&self, rank: u32, of: u32, value: u64) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        self.mine.low(rank).store(word(low, of, 0), Ordering::Relaxed);
        self.mine.high(rank).store(word(high, of, 0), Ordering::Relaxed);
    }

    /// Rank 0's cell, which says what the message is.
    #[inline]
    fn complete(&self, of: u32, value: u64, low_meta: u32, high_meta: u32) {
        if of.is_multiple_of(REFRESH) {
            self.refresh(of, low_meta);
        }
        let (low, high) = (value as u32, (value >> 32) as u32);
        self.mine.high(0).store(word(high, of, high_meta), Ordering::Relaxed);
        // Release: all of the message is visible to whoever sees this.
        self.mine.low(0).store(word(low, of, low_meta), Ordering::Release);
    }

    /// Gives this count to all tagged words that the message does not use.
    #[cold]
    fn refresh(&self, of: u32, low_meta: u32) {
        let used = if low_meta & KIND == 1 { self.ranks } else { 1 };
        (used..self.width).for_each(|rank| self.put(rank, of, 0));
        if low_meta & OPENING == 0 && self.mine.others > 0 {
            self.mine.open(of, 0, LaneMask::EMPTY);
        }
    }
}
