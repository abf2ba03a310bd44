//! Formats, argument blocks and strings of any bytes: no panic, no more output than the limits say, and
//! nothing printed where it fails.

use hostcall::libc::printf::{ArgumentLayout, Format, MAX_OUTPUT};

use crate::input::Input;

/// Parses and renders what the bytes say.
pub fn printf(data: &[u8]) {
    let mut input = Input(data);
    let layout = match input.below(2) {
        0 => ArgumentLayout::Aligned,
        _ => ArgumentLayout::Packed,
    };
    let split = input.byte() as usize;
    let rest = input.0;
    let (format, block) = rest.split_at(split.min(rest.len()));
    let Ok(format) = Format::parse(format) else { return };
    let size = format.argument_bytes(layout);
    assert!(size <= 16 * split + 16, "a directive takes at most two stars and a word, padded");
    let wanted = format.strings(layout, block);
    assert!(wanted.iter().all(|&address| address != 0));
    let strings: Vec<_> =
        wanted.iter().map(|&address| vec![b's'; address as usize % 300]).collect();
    for strings in [&strings[..], &strings[..strings.len() / 2]] {
        let mut out = b"before".to_vec();
        match format.render(layout, block, strings, &mut out) {
            Ok(()) => assert!(out.starts_with(b"before") && out.len() <= MAX_OUTPUT + 6),
            Err(_) => assert_eq!(out, b"before"),
        }
    }
}
