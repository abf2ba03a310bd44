//! Formats into pieces.

use super::FormatError;

/// A part of a format.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(Vec<u8>),
    Directive(Directive),
}

impl Piece {
    pub(super) fn directive(&self) -> Option<&Directive> {
        match self {
            Piece::Text(_) => None,
            Piece::Directive(directive) => Some(directive),
        }
    }
}

/// What stands between `%` and the end of its conversion.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Directive {
    pub(super) flags: Flags,
    pub(super) width: Count,
    pub(super) precision: Count,
    pub(super) conversion: Conversion,
    /// As it stands, for conversions that are printed so.
    pub(super) source: Vec<u8>,
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
    /// Printed as it stands, after a pointer was taken.
    WideString,
    /// Printed as it stands.
    Unknown,
}

pub(super) fn parse(format: &[u8]) -> Result<Vec<Piece>, FormatError> {
    let mut pieces = Vec::new();
    let mut text = Vec::new();
    let mut rest = format;
    while let Some(start) = rest.iter().position(|&byte| byte == b'%') {
        text.extend_from_slice(&rest[..start]);
        let at = format.len() - rest.len() + start;
        let mut parser = Parser { rest: &rest[start + 1..] };
        if parser.take(b'%') {
            text.push(b'%');
        } else {
            let directive = parser.directive().ok_or(FormatError::Incomplete(at))?;
            let length = rest.len() - start - parser.rest.len();
            let source = rest[start..start + length].to_vec();
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(Piece::Directive(Directive { source, ..directive }));
        }
        rest = parser.rest;
    }
    text.extend_from_slice(rest);
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

struct Parser<'f> {
    rest: &'f [u8],
}

impl Parser<'_> {
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

    /// `None` where the format ends.
    fn directive(&mut self) -> Option<Directive> {
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
        Some(Directive { flags, width, precision, conversion, source: Vec::new() })
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
