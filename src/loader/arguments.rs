//! The block of memory with `argc`, `argv`, `envp` and the place for the result.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::backend::{Pinned, SharedAllocator};

/// Where the result stands; the pointer arrays begin after it.
const RESULT: usize = 0;
const POINTERS: usize = 8;

/// What kernels are started with, in memory that the device reads.
#[derive(Debug)]
pub(super) struct Arguments<A: SharedAllocator> {
    memory: Pinned<A>,
    argc: u32,
    envp: usize,
}

impl<A: SharedAllocator> Arguments<A> {
    /// Puts the strings where the device finds them.
    pub(super) fn new(
        allocator: &Arc<A>,
        argv: &[OsString],
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, A::Error> {
        let variable = |(name, value): (OsString, OsString)| {
            [name.as_bytes(), b"=", value.as_bytes()].concat()
        };
        let argv: Vec<_> = argv.iter().map(|argument| bytes(argument)).collect();
        let environment: Vec<_> = environment.map(variable).collect();
        let (block, strings) = layout(&argv, &environment);
        let envp = POINTERS + 8 * (argv.len() + 1);
        let memory = Pinned::new(allocator, strings + block.bytes.len())?;
        for (at, offset) in block.pointers {
            memory.store(at, &memory.device(strings + offset).to_le_bytes());
        }
        memory.store(strings, &block.bytes);
        Ok(Arguments { memory, argc: argv.len() as u32, envp })
    }

    /// What `_start` takes: `argc`, `argv`, `envp`, the place for the result.
    pub(super) fn values(&self) -> [u64; 4] {
        let [argv, envp, result] =
            [POINTERS, self.envp, RESULT].map(|offset| self.memory.device(offset));
        [self.argc.into(), argv, envp, result]
    }

    /// What the kernels left as their result.
    pub(super) fn result(&self) -> i32 {
        self.memory.load(RESULT) as i32
    }
}

fn bytes(argument: &OsStr) -> Vec<u8> {
    argument.as_bytes().to_vec()
}

/// The strings, and which pointer leads to which.
struct Block {
    /// Offset of a pointer in the memory, and of its string in `bytes`.
    pointers: Vec<(usize, usize)>,
    bytes: Vec<u8>,
}

/// Both arrays one after the other, each with a null at its end, which the zeroed memory has already.
/// Returns where the strings begin, too.
fn layout(argv: &[Vec<u8>], environment: &[Vec<u8>]) -> (Block, usize) {
    let mut block = Block { pointers: Vec::new(), bytes: Vec::new() };
    let mut at = POINTERS;
    for strings in [argv, environment] {
        for string in strings {
            block.pointers.push((at, block.bytes.len()));
            // A string ends at its first NUL, whatever the system allows.
            block.bytes.extend(string.iter().take_while(|&&byte| byte != 0));
            block.bytes.push(0);
            at += 8;
        }
        at += 8;
    }
    (block, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_end_with_null_and_strings_follow() {
        let strings = |texts: &[&str]| texts.iter().map(|t| t.as_bytes().to_vec()).collect();
        let (argv, environment): (Vec<_>, Vec<_>) = (strings(&["a", ""]), strings(&["B=c"]));
        let (block, strings) = layout(&argv, &environment);
        assert_eq!(block.bytes, b"a\0\0B=c\0");
        assert_eq!(block.pointers, [(8, 0), (16, 2), (32, 3)]);
        assert_eq!(strings, 8 + 8 * (2 + 1 + 1 + 1));
    }
}
