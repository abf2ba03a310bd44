//! Arguments out of a block of bytes (PROTOCOL.md §4.4, sizes).

use super::ArgumentLayout;
use super::parse::{Conversion, Count, Directive, Size};

/// Walks through an argument block in the order of a format's directives.
pub(super) struct Arguments<'a> {
    layout: ArgumentLayout,
    block: &'a [u8],
    position: usize,
}

/// The arguments of one directive.
pub(super) struct Values {
    pub(super) width: Option<i32>,
    pub(super) precision: Option<i32>,
    /// As many low bits as the argument has; all ones behind the end of the block.
    pub(super) value: u64,
    is_string: bool,
}

impl Values {
    /// The address of the directive's string, if it is to be fetched.
    pub(super) fn string(&self) -> Option<u64> {
        (self.is_string && self.value != 0).then_some(self.value)
    }
}

impl<'a> Arguments<'a> {
    pub(super) fn new(layout: ArgumentLayout, block: &'a [u8]) -> Self {
        Arguments { layout, block, position: 0 }
    }

    /// How many bytes have been walked through, also behind the end of the block.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn values(&mut self, directive: &Directive<'_>) -> Values {
        let mut count = |count| match count {
            Count::Argument => Some(self.take::<4>().map_or(-1, i32::from_le_bytes)),
            _ => None,
        };
        let (width, precision) = (count(directive.width), count(directive.precision));
        let is_string = directive.conversion == Conversion::String;
        let value = match directive.conversion {
            Conversion::Unknown | Conversion::Percent => 0,
            Conversion::Signed(size) | Conversion::Unsigned { size, .. } => match size {
                Size::Bits64 => self.take_word(),
                _ => self.take::<4>().map_or(u64::MAX, |bytes| u32::from_le_bytes(bytes).into()),
            },
            Conversion::Character { .. } => {
                self.take::<4>().map_or(u64::MAX, |bytes| u32::from_le_bytes(bytes).into())
            }
            // No device has a string at the address of all ones: it is not asked for it.
            Conversion::String => self.take::<8>().map_or(0, u64::from_le_bytes),
            Conversion::Float { .. }
            | Conversion::Pointer
            | Conversion::Count
            | Conversion::WideString => self.take_word(),
        };
        Values { width, precision, value, is_string }
    }

    fn take_word(&mut self) -> u64 {
        self.take::<8>().map_or(u64::MAX, u64::from_le_bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.layout == ArgumentLayout::Aligned {
            self.position = self.position.next_multiple_of(N);
        }
        let rest = self.block.get(self.position..).unwrap_or_default();
        let bytes = rest.first_chunk::<N>().copied();
        self.position += N;
        bytes
    }
}
