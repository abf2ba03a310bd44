//! Formats into pieces (C23 7.23.6.1).
//!
//! Pieces borrow from the format and are made one at a time: a parsed form that is kept would be many
//! times larger than a format of short directives, and the device decides how long that is.

use super::FormatError;

/// A part of a format.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece<'f> {
    Text(&'f [u8]),
    Directive(Directive<'f>),
}

/// What stands between `%` and the end of its conversion.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Directive<'f> {
    pub(super) flags: Flags,
    pub(super) width: Count,
    pub(super) precision: Count,
    pub(super) conversion: Conversion,
    /// As it stands, for conversions that are printed so.
    pub(super) source: &'f [u8],
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "the five flags of C")]
pub(super) struct Flags {
    pub(super) left: bool,
    pub(super) plus: bool,
    pub(super) space: bool,
    pub(super) alternate: bool,
    pub(super) zero: bool,
}

/// A width or precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Count {
    None,
    Fixed(u64),
    /// `*`: the next argument.
    Argument,
}

/// How many bits of an integer argument count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    Bits8,
    Bits16,
    Bits32,
    Bits64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Conversion {
    Signed(Size),
    /// Base, and whether digits and prefix are capitals.
    Unsigned {
        size: Size,
        base: u64,
        upper: bool,
    },
    /// The lower-case letter of the style.
    Float {
        style: u8,
        upper: bool,
    },
    Character {
        wide: bool,
    },
    String,
    Pointer,
    /// `%n`.
    Count,
    /// `%%`, whatever stands between.
    Percent,
    /// Printed as it stands, after a pointer was taken.
    WideString,
    /// Printed as it stands.
    Unknown,
}

/// The pieces of a format, in order. Ends after an error.
pub(super) struct Pieces<'f> {
    format: &'f [u8],
    position: usize,
}

impl<'f> Pieces<'f> {
    pub(super) fn new(format: &'f [u8]) -> Self {
        Pieces { format, position: 0 }
    }
}

impl<'f> Iterator for Pieces<'f> {
    type Item = Result<Piece<'f>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.position;
        let rest = &self.format[start..];
        let (&first, behind) = rest.split_first()?;
        if first != b'%' {
            let length = rest.iter().position(|&byte| byte == b'%').unwrap_or(rest.len());
            self.position += length;
            return Some(Ok(Piece::Text(&rest[..length])));
        }
        let mut parser = Parser { rest: behind };
        let directive = parser.directive();
        self.position = self.format.len() - parser.rest.len();
        let source = &self.format[start..self.position];
        Some(match directive {
            Some(directive) => Ok(Piece::Directive(Directive { source, ..directive })),
            None => {
                self.position = self.format.len();
                Err(FormatError::Incomplete(start))
            }
        })
    }
}

struct Parser<'f> {
    rest: &'f [u8],
}

impl<'f> Parser<'f> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.rest.first() == Some(&byte);
        if there {
            self.rest = &self.rest[1..];
        }
        there
    }

    /// Without its source. `None` where the format ends.
    fn directive(&mut self) -> Option<Directive<'f>> {
        let flags = self.flags();
        let width = self.count();
        let precision = if self.take(b'.') {
            match self.count() {
                Count::None => Count::Fixed(0),
                count => count,
            }
        } else {
            Count::None
        };
        let length = self.length();
        let conversion = conversion(length, self.next()?);
        Some(Directive { flags, width, precision, conversion, source: &[] })
    }

    fn flags(&mut self) -> Flags {
        let mut flags = Flags::default();
        loop {
            match self.rest.first() {
                Some(b'-') => flags.left = true,
                Some(b'+') => flags.plus = true,
                Some(b' ') => flags.space = true,
                Some(b'#') => flags.alternate = true,
                Some(b'0') => flags.zero = true,
                // Groups of thousands: the C locale has none.
                Some(b'\'') => {}
                _ => return flags,
            }
            self.rest = &self.rest[1..];
        }
    }

    fn count(&mut self) -> Count {
        if self.take(b'*') {
            return Count::Argument;
        }
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Count::None;
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        Count::Fixed(number.iter().fold(0u64, |value, &digit| {
            value.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
        }))
    }

    fn length(&mut self) -> Length {
        if self.take(b'h') {
            return if self.take(b'h') { Length::Char } else { Length::Short };
        }
        if self.take(b'l') {
            return if self.take(b'l') { Length::LongLong } else { Length::Long };
        }
        if self.take(b'w') {
            let fast = self.take(b'f');
            return match self.count() {
                Count::Fixed(8) => Length::Char,
                Count::Fixed(16) if !fast => Length::Short,
                Count::Fixed(32) if !fast => Length::Plain,
                // The fast types of 16 bits and more have 64 on 64-bit systems.
                Count::Fixed(16 | 32 | 64) => Length::LongLong,
                _ => Length::Invalid,
            };
        }
        match self.rest.first() {
            Some(b'j' | b'z' | b't' | b'q' | b'L') => {
                self.rest = &self.rest[1..];
                Length::LongLong
            }
            _ => Length::Plain,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Length {
    Plain,
    Char,
    Short,
    Long,
    LongLong,
    Invalid,
}

fn conversion(length: Length, letter: u8) -> Conversion {
    if letter == b'%' {
        // C leaves open what `%5%` is; the GNU C library prints `%`.
        return Conversion::Percent;
    }
    let size = match length {
        Length::Char => Size::Bits8,
        Length::Short => Size::Bits16,
        Length::Plain => Size::Bits32,
        Length::Long | Length::LongLong => Size::Bits64,
        Length::Invalid => return Conversion::Unknown,
    };
    let unsigned = |base| Conversion::Unsigned { size, base, upper: letter.is_ascii_uppercase() };
    match letter {
        b'd' | b'i' => Conversion::Signed(size),
        b'u' => unsigned(10),
        b'o' => unsigned(8),
        b'x' | b'X' => unsigned(16),
        b'b' | b'B' => unsigned(2),
        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => Conversion::Float {
            style: letter.to_ascii_lowercase(),
            upper: letter.is_ascii_uppercase(),
        },
        b'c' => Conversion::Character { wide: length == Length::Long },
        b's' if length == Length::Long => Conversion::WideString,
        b's' => Conversion::String,
        b'p' => Conversion::Pointer,
        b'n' => Conversion::Count,
        _ => Conversion::Unknown,
    }
}
