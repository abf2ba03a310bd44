//! Generational slots: keys that can be checked.
//!
//! ```text
//! bit  63        44 43            16 15        2 1 0
//!      table's tag | generation     | slot      | 0 0
//! ```
//!
//! The tag is never 0, so no handle is. It differs between tables, so a handle of one is refused by
//! the other. The generation counts how often a slot was used, so a handle of a file that has been
//! closed is refused although its slot is in use again.

use super::Handle;

const TAG_BITS: u32 = 20;
const GENERATION_BITS: u32 = 28;
const SLOT_BITS: u32 = 14;

/// The most slots there can be.
pub(super) const MAX_SLOTS: usize = 1 << SLOT_BITS;
const MAX_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// Entries under handles, at most `limit` at a time.
pub(super) struct Slots<T> {
    tag: u32,
    limit: usize,
    all: Vec<Slot<T>>,
    /// Slots to use again, the last freed one first.
    free: Vec<Reserved>,
    in_use: usize,
}

struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

/// A slot that counts as in use but can be reached by no handle.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Reserved(u32);

impl<T> Slots<T> {
    /// Of `tag` the low 20 bits count; if they are 0, 1 is taken. `limit` is cut to [`MAX_SLOTS`].
    pub(super) fn new(tag: u32, limit: usize) -> Self {
        let tag = (tag & ((1 << TAG_BITS) - 1)).max(1);
        Slots { tag, limit: limit.min(MAX_SLOTS), all: Vec::new(), free: Vec::new(), in_use: 0 }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Takes a slot, if one is left.
    pub(super) fn reserve(&mut self) -> Option<Reserved> {
        if self.in_use >= self.limit {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.all.len() < MAX_SLOTS => {
                self.all.push(Slot { generation: 0, entry: None });
                Reserved(self.all.len() as u32 - 1)
            }
            None => return None,
        };
        self.in_use += 1;
        Some(slot)
    }

    /// Puts an entry in a reserved slot, so that its handle finds it.
    pub(super) fn fill(&mut self, Reserved(index): Reserved, entry: T) -> Handle {
        let slot = &mut self.all[index as usize];
        slot.entry = Some(entry);
        let word = u64::from(self.tag) << (GENERATION_BITS + SLOT_BITS + 2)
            | u64::from(slot.generation) << (SLOT_BITS + 2)
            | u64::from(index) << 2;
        Handle::from_word(word)
    }

    pub(super) fn get(&self, handle: Handle) -> Option<&T> {
        self.all[self.index_of(handle)?].entry.as_ref()
    }

    /// Takes an entry out. Its handle is stale from here on; the slot stays reserved.
    pub(super) fn take(&mut self, handle: Handle) -> Option<(Reserved, T)> {
        let index = self.index_of(handle)?;
        self.take_at(index)
    }

    /// Takes all entries out, in order of slots.
    pub(super) fn take_all(&mut self) -> Vec<(Reserved, T)> {
        (0..self.all.len()).filter_map(|index| self.take_at(index)).collect()
    }

    /// Gives a reserved slot back.
    pub(super) fn release(&mut self, slot: Reserved) {
        self.in_use -= 1;
        // A slot whose generations are used up is never used again: a stale handle stays stale.
        if self.all[slot.0 as usize].generation <= MAX_GENERATION {
            self.free.push(slot);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().filter_map(|slot| slot.entry.as_ref())
    }

    fn take_at(&mut self, index: usize) -> Option<(Reserved, T)> {
        let slot = &mut self.all[index];
        let entry = slot.entry.take()?;
        slot.generation += 1;
        Some((Reserved(index as u32), entry))
    }

    /// The slot that a handle names, if every bit of it is right.
    fn index_of(&self, handle: Handle) -> Option<usize> {
        let word = handle.word();
        let tag = (word >> (GENERATION_BITS + SLOT_BITS + 2)) as u32;
        let generation = (word >> (SLOT_BITS + 2)) as u32 & MAX_GENERATION;
        let index = (word >> 2) as usize & (MAX_SLOTS - 1);
        let slot = self.all.get(index)?;
        let tagged = word & 3 != 0;
        let right = !tagged && tag == self.tag && generation == slot.generation;
        right.then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(slots: &mut Slots<char>, entry: char) -> Handle {
        let slot = slots.reserve().unwrap();
        slots.fill(slot, entry)
    }

    fn close(slots: &mut Slots<char>, handle: Handle) {
        let (slot, _) = slots.take(handle).unwrap();
        slots.release(slot);
    }

    #[test]
    fn a_handle_finds_its_entry_and_has_two_free_bits() {
        let mut slots = Slots::new(7, 8);
        let handles: Vec<_> = "abc".chars().map(|c| add(&mut slots, c)).collect();
        for (handle, c) in handles.iter().zip("abc".chars()) {
            assert_eq!(slots.get(*handle), Some(&c));
            assert_eq!(handle.word() & 3, 0);
            assert_ne!(handle.word(), 0);
        }
    }

    #[test]
    fn a_stale_handle_is_refused_when_its_slot_is_in_use_again() {
        let mut slots = Slots::new(1, 1);
        let old = add(&mut slots, 'a');
        close(&mut slots, old);
        let new = add(&mut slots, 'b');
        assert_eq!((slots.get(old), slots.get(new)), (None, Some(&'b')));
        assert!(slots.take(old).is_none());
    }

    #[test]
    fn every_single_wrong_bit_is_noticed() {
        let mut slots = Slots::new(0x5_a5a5, 4);
        let handle = add(&mut slots, 'a');
        for bit in 0..64 {
            assert_eq!(slots.get(Handle::from_word(handle.word() ^ 1 << bit)), None, "bit {bit}");
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_retired() {
        let mut slots = Slots::new(1, 1);
        let first = add(&mut slots, 'a');
        close(&mut slots, first);
        slots.all[0].generation = MAX_GENERATION;
        let last = add(&mut slots, 'b');
        assert_eq!(slots.get(last), Some(&'b'));
        close(&mut slots, last);
        let next = add(&mut slots, 'c');
        assert_eq!(next.word() >> 2 & 0x3fff, 1, "a fresh slot");
        assert_eq!((slots.get(first), slots.get(last)), (None, None));
    }

    #[test]
    fn reserved_slots_count_but_are_not_found() {
        let mut slots = Slots::<char>::new(1, 2);
        let (a, b) = (slots.reserve().unwrap(), slots.reserve().unwrap());
        assert!(slots.reserve().is_none());
        assert_eq!((slots.in_use(), slots.iter().count()), (2, 0));
        slots.release(a);
        slots.release(b);
        assert_eq!(slots.in_use(), 0);
    }

    #[test]
    fn a_tag_of_zero_and_a_huge_limit_are_cut_to_what_can_be() {
        let mut slots = Slots::new(1 << 20, usize::MAX);
        assert_eq!(slots.limit(), MAX_SLOTS);
        assert_ne!(add(&mut slots, 'a').word(), 0);
    }
}
