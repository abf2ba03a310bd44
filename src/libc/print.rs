//! The exchange of the six `printf` opcodes (PROTOCOL.md §4.4).
//!
//! The client sends the format; the server says how many bytes of arguments it takes; the client
//! sends those; the server asks for the strings that `%s` points to, the last one first; then it
//! prints and replies. Lanes may have formats of their own.

use std::sync::Weak;

use crate::call::{Call, LaneBytes};
use crate::error::{HandlerError, RegisterError};
use crate::registry::Registry;

use super::files::{FileTable, LineEnd, StreamRef};
use super::printf::{ArgumentLayout, Format, MAX_OUTPUT};
use super::services::{State, serve};
use super::stdio::{words, write};
use super::{opcode, until_nul};

pub(super) fn register(registry: &Registry, state: &Weak<State>) -> Result<(), RegisterError> {
    use ArgumentLayout::{Aligned, Packed};
    let streams = [
        (opcode::PRINTF_TO_STDOUT, Aligned, Some(StreamRef::Stdout)),
        (opcode::PRINTF_TO_STDERR, Aligned, Some(StreamRef::Stderr)),
        (opcode::PRINTF_TO_STREAM, Aligned, None),
        (opcode::PRINTF_TO_STDOUT_PACKED, Packed, Some(StreamRef::Stdout)),
        (opcode::PRINTF_TO_STDERR_PACKED, Packed, Some(StreamRef::Stderr)),
        (opcode::PRINTF_TO_STREAM_PACKED, Packed, None),
    ];
    for (opcode, layout, stream) in streams {
        serve(registry, opcode, state, move |state, mut call| async move {
            let files = match stream {
                Some(_) => [[0]; 64],
                None => words(&mut call).await?,
            };
            let texts = receive(&mut call, layout).await?;
            let stream = move |lane: u32| {
                stream.unwrap_or_else(|| StreamRef::from_untagged(files[lane as usize][0]))
            };
            let results = state.with_files(&call, move |files| print(files, stream, texts)).await;
            // The last packet: the result, and no further string wanted.
            call.send(|lane| {
                lane.set_word(0, u64::from(results[lane.index() as usize] as u32));
                lane.set_word(1, 0);
            })
            .await?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Prints the text of every lane, each in one piece. C's result for each: the bytes printed, or -1.
fn print(
    files: &FileTable,
    stream: impl Fn(u32) -> StreamRef,
    texts: Vec<(u32, Option<Vec<u8>>)>,
) -> [i32; 64] {
    let mut results = [-1; 64];
    let (lanes, texts): (Vec<_>, Vec<_>) =
        texts.into_iter().filter_map(|(lane, text)| Some((lane, text?))).unzip();
    let mut texts = texts.into_iter();
    let texts = LaneBytes::from_fn(lanes.iter().copied(), |_| texts.next().unwrap_or_default());
    let written = write(files, stream, &texts, LineEnd::AsIs);
    for (lane, text) in texts.iter() {
        if written[lane as usize] == text.len() as u64 {
            results[lane as usize] = i32::try_from(text.len()).unwrap_or(-1);
        }
    }
    results
}

/// One lane's printf, from its format to its text.
struct Print {
    lane: u32,
    format: Option<Format>,
    arguments: Vec<u8>,
    /// Device addresses of strings that are still to be fetched, in order of appearance.
    wanted: Vec<u64>,
    /// Strings that have arrived, the last one of the format first.
    strings: Vec<Vec<u8>>,
}

/// Runs the exchange up to the point where everything is known: each lane's text, or `None` where its
/// printf failed.
async fn receive(
    call: &mut Call,
    layout: ArgumentLayout,
) -> Result<Vec<(u32, Option<Vec<u8>>)>, HandlerError> {
    let formats = call.recv_stream().await?;
    let mut prints: Vec<_> = formats.iter().map(|(lane, bytes)| Print::new(lane, bytes)).collect();

    let sizes = by_lane(&prints, |print| print.argument_bytes(layout));
    call.send(|lane| lane.set_word(0, sizes[lane.index() as usize])).await?;
    let mut arguments = call.recv_stream().await?;
    for print in &mut prints {
        print.arguments = arguments.take(print.lane);
        print.wanted = match &print.format {
            Some(format) => format.strings(layout, &print.arguments),
            None => Vec::new(),
        };
    }

    while prints.iter().any(|print| !print.wanted.is_empty()) {
        let wanted = by_lane(&prints, |print| print.wanted.last().copied().unwrap_or(0));
        call.send(|lane| {
            lane.set_word(0, 0);
            lane.set_word(1, wanted[lane.index() as usize]);
        })
        .await?;
        let mut strings = call.recv_stream().await?;
        prints.iter_mut().for_each(|print| print.take_string(&mut strings));
    }
    // One budget for the warp: what would go over it is not kept, and fails as if it were alone.
    let mut left = MAX_OUTPUT;
    let mut render = |print: Print| {
        let text = print.render(layout).filter(|text| text.len() <= left)?;
        left -= text.len();
        Some(text)
    };
    Ok(prints.into_iter().map(|print| (print.lane, render(print))).collect())
}

impl Print {
    /// A format without its terminator, or one that cannot be parsed, prints nothing and fails.
    fn new(lane: u32, bytes: &[u8]) -> Self {
        let format = until_nul(bytes).and_then(|format| Format::parse(format).ok());
        Print { lane, format, arguments: Vec::new(), wanted: Vec::new(), strings: Vec::new() }
    }

    fn argument_bytes(&self, layout: ArgumentLayout) -> u64 {
        self.format.as_ref().map_or(0, |format| format.argument_bytes(layout) as u64)
    }

    fn take_string(&mut self, strings: &mut LaneBytes) {
        if self.wanted.pop().is_some() {
            let mut string = strings.take(self.lane);
            // Without a terminator, all that came is the string.
            if let Some(length) = string.iter().position(|&byte| byte == 0) {
                string.truncate(length);
            }
            self.strings.push(string);
        }
    }

    fn render(mut self, layout: ArgumentLayout) -> Option<Vec<u8>> {
        self.strings.reverse();
        let mut text = Vec::new();
        self.format?.render(layout, &self.arguments, &self.strings, &mut text).ok()?;
        Some(text)
    }
}

fn by_lane(prints: &[Print], value: impl Fn(&Print) -> u64) -> [u64; 64] {
    let mut values = [0; 64];
    prints.iter().for_each(|print| values[print.lane as usize] = value(print));
    values
}
