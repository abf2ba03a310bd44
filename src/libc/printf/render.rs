//! One directive with its arguments into bytes.

use super::args::Values;
use super::parse::{Conversion, Count, Directive, Flags, Size};
use super::{MAX_FIELD, MAX_PRECISION_OF_TEXT, RenderError, float};

/// A directive whose `*` have been filled in.
pub(super) struct Field {
    pub(super) flags: Flags,
    pub(super) width: usize,
    pub(super) precision: Option<usize>,
}

/// Appends what the directive prints. `string` is what its `%s` points to.
pub(super) fn directive(
    directive: &Directive<'_>,
    values: &Values,
    string: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), RenderError> {
    let field = Field::new(directive, values)?;
    let bits = values.value;
    match directive.conversion {
        Conversion::Signed(size) => {
            let value = signed(bits, size);
            let sign = if value < 0 { "-" } else { field.plus_sign() };
            field.integer(sign, value.unsigned_abs().to_string().as_bytes(), out);
        }
        Conversion::Unsigned { size, base, upper } => {
            field.unsigned("", unsigned(bits, size), base, upper, out);
        }
        Conversion::Float { style, upper } => {
            float::render(&field, f64::from_bits(bits), style, upper, out);
        }
        Conversion::Character { wide: true } if bits > 0x7f => {
            return Err(RenderError::WideCharacter(bits as u32));
        }
        Conversion::Character { .. } => field.pad(&[bits as u8], out),
        Conversion::String => {
            let text = match (string, field.precision) {
                (Some(text), precision) => &text[..text.len().min(precision.unwrap_or(usize::MAX))],
                (None, Some(0..6)) => b"",
                (None, _) => b"(null)",
            };
            field.pad(text, out);
        }
        Conversion::Pointer if bits == 0 => field.pad(b"(nil)", out),
        Conversion::Pointer => {
            let sign = field.plus_sign();
            let field = Field { flags: Flags { alternate: true, ..field.flags }, ..field };
            field.unsigned(sign, bits, 16, false, out);
        }
        Conversion::Count => {}
        Conversion::Percent => out.push(b'%'),
        Conversion::WideString | Conversion::Unknown => out.extend_from_slice(directive.source),
    }
    Ok(())
}

fn signed(value: u64, size: Size) -> i64 {
    match size {
        Size::Bits8 => i64::from(value as i8),
        Size::Bits16 => i64::from(value as i16),
        Size::Bits32 => i64::from(value as i32),
        Size::Bits64 => value as i64,
    }
}

fn unsigned(value: u64, size: Size) -> u64 {
    match size {
        Size::Bits8 => u64::from(value as u8),
        Size::Bits16 => u64::from(value as u16),
        Size::Bits32 => u64::from(value as u32),
        Size::Bits64 => value,
    }
}

impl Field {
    fn new(directive: &Directive<'_>, values: &Values) -> Result<Self, RenderError> {
        let mut flags = directive.flags;
        let width = match (directive.width, values.width) {
            (Count::Fixed(width), _) => width,
            (_, Some(width)) => {
                // A negative width is the flag and a width.
                flags.left |= width < 0;
                u64::from(width.unsigned_abs())
            }
            _ => 0,
        };
        let precision = match (directive.precision, values.precision) {
            (Count::Fixed(precision), _) => Some(precision),
            // A negative precision is none.
            (_, Some(precision)) => u64::try_from(precision).ok(),
            _ => None,
        };
        let check = |count: u64, most: usize| match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(RenderError::FieldTooLong(count)),
        };
        let (widest, longest) = match directive.conversion {
            // A string is only cut by its precision, and a character has none.
            Conversion::String | Conversion::Character { .. } => (MAX_FIELD, MAX_PRECISION_OF_TEXT),
            // Printed without a field.
            Conversion::Count
            | Conversion::Percent
            | Conversion::WideString
            | Conversion::Unknown => (usize::MAX, usize::MAX),
            _ => (MAX_FIELD, MAX_FIELD),
        };
        let precision = precision.map(|precision| check(precision, longest)).transpose()?;
        Ok(Field { flags, width: check(width, widest)?, precision })
    }

    /// What stands in front of a number that is not negative.
    pub(super) fn plus_sign(&self) -> &'static str {
        match self.flags {
            Flags { plus: true, .. } => "+",
            Flags { space: true, .. } => " ",
            _ => "",
        }
    }

    /// Text, filled up with blanks.
    pub(super) fn pad(&self, text: &[u8], out: &mut Vec<u8>) {
        let fill = self.width.saturating_sub(text.len());
        if !self.flags.left {
            out.resize(out.len() + fill, b' ');
        }
        out.extend_from_slice(text);
        if self.flags.left {
            out.resize(out.len() + fill, b' ');
        }
    }

    /// A number behind its sign and prefix, filled up with zeros between them where the flag says so.
    pub(super) fn number(&self, prefix: &[u8], digits: &[u8], out: &mut Vec<u8>) {
        let mut text = prefix.to_vec();
        if self.flags.zero && !self.flags.left {
            let fill = self.width.saturating_sub(prefix.len() + digits.len());
            text.resize(prefix.len() + fill, b'0');
        }
        text.extend_from_slice(digits);
        self.pad(&text, out);
    }

    fn unsigned(&self, sign: &str, value: u64, base: u64, upper: bool, out: &mut Vec<u8>) {
        let digits = match (base, upper) {
            (2, _) => format!("{value:b}"),
            (8, _) => format!("{value:o}"),
            (16, false) => format!("{value:x}"),
            (16, true) => format!("{value:X}"),
            _ => format!("{value}"),
        };
        let mut prefix = sign.to_owned();
        let mut digits = digits.into_bytes();
        if self.flags.alternate {
            match (base, value) {
                (8, _) => {
                    // At least one zero in front, be it by the precision.
                    let wanted = self.precision.unwrap_or(1);
                    if digits[0] != b'0' && wanted <= digits.len() {
                        digits.insert(0, b'0');
                    }
                    if value == 0 && self.precision == Some(0) {
                        let field = Field { precision: Some(1), ..*self };
                        return field.integer(&prefix, &digits, out);
                    }
                }
                (_, 0) => {}
                (2, _) => prefix.push_str(if upper { "0B" } else { "0b" }),
                (16, _) => prefix.push_str(if upper { "0X" } else { "0x" }),
                _ => {}
            }
        }
        self.integer(&prefix, &digits, out);
    }

    /// Digits with at least as many places as the precision says; the zero flag counts without one.
    fn integer(&self, prefix: &str, digits: &[u8], out: &mut Vec<u8>) {
        let Some(precision) = self.precision else {
            return self.number(prefix.as_bytes(), digits, out);
        };
        let digits = if precision == 0 && digits == b"0" { &[] } else { digits };
        let mut text = vec![b'0'; precision.saturating_sub(digits.len())];
        text.extend_from_slice(digits);
        let field = Field { flags: Flags { zero: false, ..self.flags }, ..*self };
        field.number(prefix.as_bytes(), &text, out);
    }
}
