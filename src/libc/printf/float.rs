//! Floating-point numbers as C prints them.

use super::parse::Flags;
use super::render::Field;

/// Digits behind the point after which every double has only zeros (its smallest bit is 2^-1074).
const EXACT: usize = 1100;

pub(super) fn render(field: &Field, value: f64, style: u8, upper: bool, out: &mut Vec<u8>) {
    let sign = if value.is_sign_negative() { "-" } else { field.plus_sign() };
    let magnitude = value.abs();
    let alternate = field.flags.alternate;
    let precision = field.precision;
    let (prefix, mut text) = if value.is_nan() {
        ("", "nan".to_owned())
    } else if value.is_infinite() {
        ("", "inf".to_owned())
    } else {
        match style {
            b'f' => ("", fixed(magnitude, precision.unwrap_or(6), alternate)),
            b'e' => ("", exponential(magnitude, precision.unwrap_or(6), alternate)),
            b'g' => ("", general(magnitude, precision.unwrap_or(6).max(1), alternate)),
            _ => ("0x", hexadecimal(magnitude, precision, alternate)),
        }
    };
    let mut prefix = format!("{sign}{prefix}");
    if upper {
        text.make_ascii_uppercase();
        prefix.make_ascii_uppercase();
    }
    if value.is_finite() {
        field.number(prefix.as_bytes(), text.as_bytes(), out);
    } else {
        // Zeros in front would make no sense.
        let field = Field { flags: Flags { zero: false, ..field.flags }, ..*field };
        field.number(prefix.as_bytes(), text.as_bytes(), out);
    }
}

/// `value` with so many digits behind the point. The standard library's formatting is exact and
/// rounds halves to even.
fn fixed(value: f64, precision: usize, alternate: bool) -> String {
    let exact = precision.min(EXACT);
    let mut text = format!("{value:.exact$}");
    if precision > exact {
        text.push_str(&"0".repeat(precision - exact));
    }
    if precision == 0 && alternate {
        text.push('.');
    }
    text
}

/// One digit, so many behind the point, and the exponent.
fn exponential(value: f64, precision: usize, alternate: bool) -> String {
    let (mut mantissa, exponent) = scientific(value, precision);
    if precision == 0 && alternate {
        mantissa.push('.');
    }
    format!("{mantissa}{}", decimal_exponent(exponent))
}

/// Mantissa and exponent.
fn scientific(value: f64, precision: usize) -> (String, i32) {
    let exact = precision.min(EXACT);
    let text = format!("{value:.exact$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let mut mantissa = mantissa.to_owned();
    mantissa.push_str(&"0".repeat(precision - exact));
    (mantissa, exponent.parse().unwrap_or(0))
}

fn decimal_exponent(exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("e{sign}{:02}", exponent.unsigned_abs())
}

/// The shorter of the two, with `precision` significant digits, without trailing zeros.
fn general(value: f64, precision: usize, alternate: bool) -> String {
    // Zeros that would go again are not made: the limit on the output would not see them.
    let precision = if alternate { precision } else { precision.min(EXACT) };
    let (mantissa, exponent) = scientific(value, precision - 1);
    let in_range = exponent >= -4 && i64::from(exponent) < precision as i64;
    let (mut digits, suffix) = if in_range {
        let behind = (precision as i64 - 1 - i64::from(exponent)) as usize;
        (fixed(value, behind, alternate), String::new())
    } else {
        let mut mantissa = mantissa;
        if precision == 1 && alternate {
            mantissa.push('.');
        }
        (mantissa, decimal_exponent(exponent))
    };
    if !alternate && digits.contains('.') {
        digits.truncate(digits.trim_end_matches('0').trim_end_matches('.').len());
    }
    digits + &suffix
}

/// Hexadecimal digits and a binary exponent, without the `0x`.
fn hexadecimal(value: f64, precision: Option<usize>, alternate: bool) -> String {
    const FRACTION: u32 = 52;
    let bits = value.to_bits();
    let biased = (bits >> FRACTION) as i32;
    let fraction = bits & ((1 << FRACTION) - 1);
    let (mut lead, exponent) = match (biased, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, biased - 1023),
    };
    let mut digits = fraction;
    let mut shown = 13;
    if let Some(precision) = precision.filter(|&precision| precision < 13) {
        // Round half to even on what is cut off, as the default rounding mode does.
        let cut = 4 * (13 - precision as u32);
        let whole = lead << FRACTION | fraction;
        let rest = whole & ((1 << cut) - 1);
        let half = 1 << (cut - 1);
        let kept = whole >> cut;
        let kept = kept + u64::from(rest > half || (rest == half && kept & 1 == 1));
        lead = kept >> (4 * precision);
        digits = kept & ((1 << (4 * precision)) - 1);
        shown = precision;
    }
    let mut text = if shown == 0 { String::new() } else { format!("{digits:0shown$x}") };
    match precision {
        Some(precision) => text.push_str(&"0".repeat(precision.saturating_sub(13))),
        None => text.truncate(text.trim_end_matches('0').len()),
    }
    let point = if text.is_empty() && !alternate { "" } else { "." };
    format!("{lead}{point}{text}p{exponent:+}")
}
