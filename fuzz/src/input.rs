//! Decisions, read from the fuzzer's bytes one after the other; zero once they are used up.

use hostcall::Abi;

pub(crate) struct Input<'d>(pub(crate) &'d [u8]);

impl Input<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte()))
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.byte()))
    }

    /// A number below `end`, from one byte.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        u32::from(self.byte()) % end
    }

    /// A number that is small in most cases.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..224 => u64::from(byte),
            224..240 => u64::from(self.u32() & 0xffff),
            _ => self.u64(),
        }
    }

    pub(crate) fn abi(&mut self) -> Abi {
        Abi::ALL[self.below(Abi::ALL.len() as u32) as usize]
    }
}
