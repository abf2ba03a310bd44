//! `printf` without its arguments' program: formats that came from a device, with argument blocks
//! and strings that came separately (PROTOCOL.md §4.4).
//!
//! A [`Format`] is checked once. It says how many bytes of arguments it takes and which strings have
//! to be fetched, and then renders the same bytes that the C library prints for the same arguments
//! (C23 7.23.6.1, checked against the GNU C library in the C locale).
//!
//! What C leaves open is settled so:
//! - An unknown conversion is printed as it stands and takes no argument but those of its `*`; so
//!   are `%m`, which would tell the host's errno, and the numbered arguments of POSIX (`%1$d`).
//!   `%ls` is printed as it stands and takes its pointer.
//! - `%%` with flags, widths or lengths between is `%`.
//! - `%n` takes its pointer and writes nothing.
//! - `%lc` prints the characters of the C locale, up to 127, and [fails](RenderError) on others.
//! - A format that ends inside a directive is an [error](FormatError).
//! - A null string prints as `(null)`, or as nothing where the precision is too small for that.
//! - Arguments behind the end of the block are all ones; a string pointer there is null.
//! - Widths and precisions over [`MAX_FIELD`] and results over [`MAX_OUTPUT`] are
//!   [errors](RenderError): nothing is printed then. The precision of a string, which only cuts it,
//!   may be any that C's `int` can say.
//! - `%#g` keeps its zeros, as C says, also where rounding carries into the exponent; the GNU C
//!   library prints `1.e+06` for `1.00000e+06` there.

mod args;
mod float;
mod parse;
mod render;

use args::Arguments;
use parse::{Directive, Piece, Pieces};

/// The largest width, and the largest precision of a number.
pub const MAX_FIELD: usize = 1 << 20;
/// The largest precision of a string or character: C's `INT_MAX`, the most that `*` can ask for.
const MAX_PRECISION_OF_TEXT: usize = i32::MAX as usize;
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
    /// A width or precision over [`MAX_FIELD`], or a precision of a string over C's `INT_MAX`.
    #[error("a field of {0} characters")]
    FieldTooLong(u64),
    /// More than [`MAX_OUTPUT`] bytes.
    #[error("the result has more than {MAX_OUTPUT} bytes")]
    OutputTooLong,
    /// `%lc` with a character that the C locale does not have.
    #[error("the wide character {0:#x} is not in the C locale")]
    WideCharacter(u32),
}

/// A format whose directives are complete.
///
/// It takes as much memory as the format itself.
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
    source: Vec<u8>,
}

impl Format {
    /// Parses a format, without its terminator.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(format: &[u8]) -> Result<Self, FormatError> {
        Pieces::new(format).try_for_each(|piece| piece.map(drop))?;
        Ok(Format { source: format.to_vec() })
    }

    /// How many bytes of arguments it takes (PROTOCOL.md §4.4, step 3).
    pub fn argument_bytes(&self, layout: ArgumentLayout) -> usize {
        let mut arguments = Arguments::new(layout, &[]);
        self.directives().for_each(|directive| {
            arguments.values(&directive);
        });
        arguments.position()
    }

    /// The device addresses of its `%s` arguments, in order of appearance, without null ones.
    pub fn strings(&self, layout: ArgumentLayout, arguments: &[u8]) -> Vec<u64> {
        let mut arguments = Arguments::new(layout, arguments);
        self.directives().filter_map(|directive| arguments.values(&directive).string()).collect()
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
        for piece in self.pieces() {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Directive(directive) => {
                    let values = arguments.values(&directive);
                    let string = values.string().map(|_| strings.next().map_or(&[][..], |s| s));
                    render::directive(&directive, &values, string, out)?;
                }
            }
            if out.len() - before > MAX_OUTPUT {
                return Err(RenderError::OutputTooLong);
            }
        }
        Ok(())
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        // `parse` has met every error there is.
        Pieces::new(&self.source).map_while(Result::ok)
    }

    fn directives(&self) -> impl Iterator<Item = Directive<'_>> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Directive(directive) => Some(directive),
        })
    }
}

#[cfg(test)]
mod tests;
