//! `printf` without its arguments' program: formats that came from a device, with argument blocks
//! and strings that came separately (PROTOCOL.md §4.4).
//!
//! A [`Format`] is parsed once. It says how many bytes of arguments it takes and which strings have
//! to be fetched, and then renders the same bytes that the C library prints for the same arguments
//! (C23 7.23.6.1, checked against the GNU C library in the C locale).
//!
//! What C leaves open is settled so:
//! - An unknown conversion is printed as it stands and takes no argument; so is `%m`, which would
//!   tell the host's errno. `%ls` is printed as it stands and takes its pointer.
//! - `%n` takes its pointer and writes nothing.
//! - A format that ends inside a directive is an [error](FormatError).
//! - A null string prints as `(null)`, or as nothing where the precision is too small for that.
//! - Arguments behind the end of the block are all ones; a string pointer there is null.
//! - Widths and precisions over [`MAX_FIELD`] and results over [`MAX_OUTPUT`] are
//!   [errors](RenderError): nothing is printed then.

mod args;
mod float;
mod parse;
mod render;

use args::Arguments;
use parse::Piece;

/// The largest width or precision.
pub const MAX_FIELD: usize = 1 << 20;
/// The most bytes that one `printf` may print.
pub const MAX_OUTPUT: usize = 64 << 20;

/// How arguments lie in their block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentLayout {
    /// Each at a multiple of its size, as NVPTX passes variadic arguments.
    Aligned,
    /// One directly behind the other, as AMDGPU does.
    Packed,
}

/// A format that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// It ends inside the directive that begins at this byte.
    #[error("the format ends inside the directive at byte {0}")]
    Incomplete(usize),
}

/// A result that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// A width or precision over [`MAX_FIELD`].
    #[error("a field of {0} characters")]
    FieldTooLong(u64),
    /// More than [`MAX_OUTPUT`] bytes.
    #[error("the result has more than {MAX_OUTPUT} bytes")]
    OutputTooLong,
    /// `%lc` with a character that the C locale does not have.
    #[error("the wide character {0:#x} is not in the C locale")]
    WideCharacter(u32),
}

/// A parsed format.
///
/// ```
/// use hostcall::libc::printf::{ArgumentLayout, Format};
/// let format = Format::parse(b"%s is %5.1f%%\n")?;
/// let layout = ArgumentLayout::Aligned;
/// assert_eq!(format.argument_bytes(layout), 16);
/// let arguments = [0x7000u64.to_le_bytes(), 99.55f64.to_le_bytes()].concat();
/// assert_eq!(format.strings(layout, &arguments), [0x7000]);
/// let mut text = Vec::new();
/// format.render(layout, &arguments, &[b"it".to_vec()], &mut text).unwrap();
/// assert_eq!(text, b"it is  99.5%\n");
/// # Ok::<(), hostcall::libc::printf::FormatError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Format {
    pieces: Vec<Piece>,
}

impl Format {
    /// Parses a format, without its terminator.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(format: &[u8]) -> Result<Self, FormatError> {
        parse::parse(format).map(|pieces| Format { pieces })
    }

    /// How many bytes of arguments it takes.
    pub fn argument_bytes(&self, layout: ArgumentLayout) -> usize {
        let mut arguments = Arguments::new(layout, &[]);
        self.pieces.iter().filter_map(Piece::directive).for_each(|directive| {
            arguments.values(directive);
        });
        arguments.position()
    }

    /// The device addresses of its `%s` arguments, in order of appearance, without null ones.
    pub fn strings(&self, layout: ArgumentLayout, arguments: &[u8]) -> Vec<u64> {
        let mut arguments = Arguments::new(layout, arguments);
        let directives = self.pieces.iter().filter_map(Piece::directive);
        directives.filter_map(|directive| arguments.values(directive).string()).collect()
    }

    /// Appends what it prints to `out`. `strings` are the bytes that [`strings`](Self::strings) point
    /// to, in the same order, without their terminators.
    ///
    /// # Errors
    /// [`RenderError`]; `out` is as before then.
    pub fn render(
        &self,
        layout: ArgumentLayout,
        arguments: &[u8],
        strings: &[Vec<u8>],
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let before = out.len();
        let rendered = self.render_all(layout, arguments, strings, out);
        if rendered.is_err() {
            out.truncate(before);
        }
        rendered
    }

    fn render_all(
        &self,
        layout: ArgumentLayout,
        arguments: &[u8],
        strings: &[Vec<u8>],
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let before = out.len();
        let mut arguments = Arguments::new(layout, arguments);
        let mut strings = strings.iter();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Directive(directive) => {
                    let values = arguments.values(directive);
                    let string = values.string().map(|_| strings.next().map_or(&[][..], |s| s));
                    render::directive(directive, &values, string, out)?;
                }
            }
            if out.len() - before > MAX_OUTPUT {
                return Err(RenderError::OutputTooLong);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
