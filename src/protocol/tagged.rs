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
//! packet, or in a reply of kind `Nothing` the [`Status`](super::Status). Those of the other cells are
//! zero. Opcode and mask count in an opening message only.
//!
//! A client need not order a short message before its mailbox: the server looks at every tag, and comes
//! back for what is not there yet.
//!
//! While a side has the turn, all words stand in the packet: those of a short message are moved there
//! when it has come, and out of it when it goes. How many rows can be read and how many have been
//! written is noted in memory of the side's own: the peer polls the rest. Rows that nobody has sent or
//! written are zero; none is sent behind the last one that was written.
//!
//! A sender whose count is a multiple of [`REFRESH`] writes all its tagged words, so that none is
//! ever as old as the counter is long.

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::channel::{Tag, pack_cells, unpack_cells};
use super::layout::LaneWidth;
use super::wire::{LaneMask, PACKET_WORDS};

/// In the low word of an opening message.
const OPENING: u32 = 0x80;
/// In the low word of a message that is there as a whole when the mailbox says so.
const ORDERED: u32 = 0x40;
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

    /// The cells of rank 1 and up to this one.
    #[inline]
    fn others(&self, ranks: u32) -> &'c [AtomicU64] {
        let ranks = ranks.max(1) as usize;
        &self.words[self.others + 2..self.others + 2 * ranks]
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

    /// Whether the request with this count is there, up to the cells of the other ranks.
    #[inline]
    pub(super) fn has_begun(&self, of: u32, lanes: LaneWidth) -> bool {
        if !self.has(0, of) {
            return false;
        }
        if meta(self.low(0).load(Ordering::Relaxed)) & (ORDERED | OPENING) != OPENING {
            return true;
        }
        let last = if lanes.get() > 32 { MASK_HIGH } else { MASK_LOW };
        (OPCODE..=last).all(|at| count(self.words[at].load(Ordering::Acquire)) == of)
    }

    /// Whether the request with this count is there, all of it, for a conversation of these lanes.
    pub(super) fn is_complete(&self, of: u32, mask: LaneMask, lanes: LaneWidth) -> bool {
        self.has_begun(of, lanes) && {
            let [low, high] = [self.low(0), self.high(0)].map(|word| word.load(Ordering::Relaxed));
            meta(low) & ORDERED != 0
                || Kind::new(low, high) != Kind::Word
                || (1..mask.count()).all(|rank| self.has(rank, of))
        }
    }
}

/// Where the words of a port's lanes stand while a side has the turn, and its notes on them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'c> {
    packet: &'c [AtomicU64],
    /// How many rows can be read; 256 times how many have been written.
    notes: &'c AtomicU32,
    /// How many could be read when this was made.
    readable: u32,
    /// How many lanes have room, and how many are active.
    width: u32,
    ranks: u32,
}

impl<'c> Rows<'c> {
    #[inline]
    pub(super) fn new(
        packet: &'c [AtomicU64],
        notes: &'c AtomicU32,
        width: u32,
        ranks: u32,
    ) -> Self {
        let readable = notes.load(Ordering::Relaxed) & 0xff;
        Rows { packet, notes, readable, width, ranks }
    }

    /// How many rows can be read, and how many have been written.
    #[inline]
    fn notes(self) -> (u32, u32) {
        let notes = self.notes.load(Ordering::Relaxed);
        (notes & 0xff, notes >> 8)
    }

    #[inline]
    fn note(self, readable: u32, written: u32) {
        self.notes.store(written << 8 | readable, Ordering::Relaxed);
    }

    #[inline]
    fn at(self, rank: u32, index: usize) -> &'c AtomicU64 {
        &self.packet[index * self.width as usize + rank as usize]
    }

    #[inline]
    pub(super) fn word(self, rank: u32, index: usize) -> u64 {
        assert!(index < PACKET_WORDS, "word {index} of {PACKET_WORDS}");
        if index as u32 >= self.readable && index as u32 >= self.notes().0 {
            return 0;
        }
        self.at(rank, index).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_word(self, rank: u32, index: usize, value: u64) {
        assert!(index < PACKET_WORDS, "word {index} of {PACKET_WORDS}");
        self.reserve(index + 1);
        self.at(rank, index).store(value, Ordering::Relaxed);
    }

    /// Makes the message one of at least this many words for each lane. Those that nobody has written
    /// or sent are zero.
    #[inline]
    pub(super) fn reserve(self, rows: usize) {
        if rows as u32 > self.notes().1 {
            grow(self.packet, self.notes, self.width, self.ranks, rows);
        }
    }
}

/// Writes one more row, or more than one. Arguments, not [`Rows`]: what is given by reference has to lie in
/// memory, for each lane of the loop that this is called from once.
#[cold]
#[inline(never)]
fn grow(packet: &[AtomicU64], notes: &AtomicU32, width: u32, ranks: u32, rows: usize) {
    let rows_of = Rows::new(packet, notes, width, ranks);
    let readable = rows_of.notes().0;
    for row in readable as usize..rows {
        (0..ranks).for_each(|rank| rows_of.at(rank, row).store(0, Ordering::Relaxed));
    }
    rows_of.note(readable.max(rows as u32), rows as u32);
}

/// A message that has come, and the one that answers it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn<'c> {
    pub(super) mine: Cells<'c>,
    pub(super) theirs: Cells<'c>,
    pub(super) rows: Rows<'c>,
    /// This side's count so far.
    pub(super) count: u32,
}

impl<'c> Turn<'c> {
    #[inline]
    fn kind(&self) -> Kind {
        let [low, high] =
            [self.theirs.low(0), self.theirs.high(0)].map(|word| word.load(Ordering::Relaxed));
        Kind::new(low, high)
    }

    /// Begins the turn: moves a short message to where the words are read. Not if some of it is not there
    /// yet.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        let readable = match self.kind() {
            Kind::Nothing => 0,
            Kind::Packet(rows) => rows,
            Kind::Word if self.unpack() => 1,
            Kind::Word => return false,
        };
        self.rows.note(readable, 0);
        true
    }

    #[inline]
    fn unpack(&self) -> bool {
        let ranks = self.rows.ranks;
        let of = count(self.theirs.low(0).load(Ordering::Relaxed));
        let tag = Tag::new(word(0, of, 0) as u32);
        self.rows.packet[0].store(self.theirs.value(0), Ordering::Relaxed);
        let (cells, _) = self.theirs.others(ranks).as_chunks();
        let (words, _) = self.rows.packet[1..].as_chunks();
        let mut complete = true;
        for (cells, words) in cells.iter().zip(words) {
            complete &= unpack_cells(cells, tag, words);
        }
        if ranks > 0 && ranks.is_multiple_of(2) {
            let last = ranks - 1;
            self.rows.packet[last as usize].store(self.theirs.value(last), Ordering::Relaxed);
            complete &= self.theirs.has(last, of);
        }
        complete
    }

    /// Begins a turn that nothing has come before: a client's who opens a port.
    pub(super) fn begin_empty(&self) {
        self.rows.note(0, 0);
    }

    /// Sends what has been written. Returns the new count, which a client writes into its mailbox
    /// then; a server's message is sent with this.
    #[inline]
    pub(super) fn send(&self, opening: bool) -> u32 {
        let next = next(self.count);
        let flags = if opening { OPENING | ORDERED } else { ORDERED };
        match self.rows.notes().1 {
            0 => self.complete(next, 0, flags, 0),
            1 => {
                let value = |rank: u32| self.rows.packet[rank as usize].load(Ordering::Relaxed);
                let ranks = self.rows.ranks;
                let tag = Tag::new(word(0, next, 0) as u32);
                let (cells, _) = self.mine.others(ranks).as_chunks();
                let (words, _) = self.rows.packet[1..].as_chunks();
                cells.iter().zip(words).for_each(|(cells, words)| pack_cells(words, tag, cells));
                if ranks > 0 && ranks.is_multiple_of(2) {
                    self.put(ranks - 1, next, value(ranks - 1));
                }
                self.complete(next, value(0), flags | 1, 0);
            }
            rows => self.complete(next, 0, flags | 2, rows),
        }
        next
    }

    /// Sends a refusal, whatever has been written.
    pub(super) fn refuse(&self, status: u32) -> u32 {
        let next = next(self.count);
        self.complete(next, 0, ORDERED, status & STATUS);
        next
    }

    /// What the server says of the conversation, in the message that has come.
    pub(super) fn status(&self) -> u32 {
        let high = self.theirs.high(0).load(Ordering::Relaxed);
        if self.kind() == Kind::Nothing { meta(high) } else { 0 }
    }

    #[inline]
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
        let used = if low_meta & KIND == 1 { self.rows.ranks } else { 1 };
        (used..self.rows.width).for_each(|rank| self.put(rank, of, 0));
        if low_meta & OPENING == 0 && self.mine.others > 0 {
            self.mine.open(of, 0, LaneMask::EMPTY);
        }
    }
}
