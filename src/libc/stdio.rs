//! The opcodes of files and standard streams, over a [`FileTable`] (PROTOCOL.md §4.2, §4.5).

use std::sync::{Arc, Weak};

use crate::call::{Call, LaneBytes};
use crate::error::{HandlerError, RegisterError};
use crate::handler::Request;
use crate::protocol::Opcode;
use crate::registry::Registry;

use super::files::{FileTable, LineEnd, StreamRef};
use super::services::{State, answer, serve};
use super::{opcode, until_nul};

pub(super) fn register(registry: &Registry, state: &Weak<State>) -> Result<(), RegisterError> {
    let streams = [
        (opcode::WRITE_TO_STDOUT, StreamRef::Stdout, LineEnd::AsIs),
        (opcode::WRITE_TO_STDOUT_NEWLINE, StreamRef::Stdout, LineEnd::Newline),
        (opcode::WRITE_TO_STDERR, StreamRef::Stderr, LineEnd::AsIs),
    ];
    for (opcode, stream, end) in streams {
        serve(registry, opcode, state, move |state, mut call| async move {
            let messages = call.recv_stream().await?;
            let written = write(&state.files, |_| stream, &messages, end);
            reply(&mut call, &written).await
        })?;
    }
    serve(registry, opcode::WRITE_TO_STREAM, state, |state, mut call| async move {
        let files = words::<1>(&mut call).await?;
        let messages = call.recv_stream().await?;
        let stream = move |lane: u32| StreamRef::from_untagged(files[lane as usize][0]);
        let written = state
            .with_files(&call, move |files| write(files, stream, &messages, LineEnd::AsIs))
            .await;
        reply(&mut call, &written).await
    })?;
    serve(registry, opcode::READ_FROM_STREAM, state, |state, mut call| async move {
        let request = words(&mut call).await?;
        let read = read(&state, &call, &request, |files, count, stream, limit| {
            Some(files.as_c().fread(stream, count, limit))
        });
        let bytes = read.await;
        call.send_stream(|lane| bytes.get(lane).unwrap_or_default()).await?;
        let mut lengths = [0; 64];
        bytes.iter().for_each(|(lane, bytes)| lengths[lane as usize] = bytes.len() as u64);
        reply(&mut call, &lengths).await
    })?;
    serve(registry, opcode::READ_FGETS, state, |state, mut call| async move {
        let request = words(&mut call).await?;
        let read = read(&state, &call, &request, |files, count, stream, limit| {
            files.as_c().fgets(stream, count as i32, limit)
        });
        let lines = read.await;
        call.send_stream(|lane| lines.get(lane).unwrap_or_default()).await?;
        Ok(())
    })?;
    serve(registry, opcode::OPEN_FILE, state, |state, mut call| async move {
        let paths = call.recv_stream().await?;
        let mut modes = vec![[0; 64]; 64];
        call.recv(|lane| modes[lane.index() as usize] = *lane.load().bytes()).await?;
        let opened = each(&state, &call, paths, move |files, lane, path| {
            let both = path.zip(until_nul(&modes[lane as usize]));
            both.map_or(0, |(path, mode)| files.as_c().fopen(path, mode))
        });
        let opened = opened.await;
        reply(&mut call, &opened).await
    })?;
    serve(registry, opcode::REMOVE, state, |state, mut call| async move {
        let paths = call.recv_stream().await?;
        let removed = each(&state, &call, paths, |files, _, path| {
            word(path.map_or(-1, |path| files.as_c().remove(path)))
        });
        let removed = removed.await;
        reply(&mut call, &removed).await
    })?;
    serve(registry, opcode::RENAME, state, |state, mut call| async move {
        let from = call.recv_stream().await?;
        let to = call.recv_stream().await?;
        let renamed = each(&state, &call, from, move |files, lane, from| {
            let both = from.zip(to.get(lane).and_then(until_nul));
            word(both.map_or(-1, |(from, to)| files.as_c().rename(from, to)))
        });
        let renamed = renamed.await;
        reply(&mut call, &renamed).await
    })?;
    on_words(registry, opcode::CLOSE_FILE, state, |files, [file, ..]| {
        word(files.as_c().fclose(file))
    })?;
    on_words(registry, opcode::FSEEK, state, |files, [stream, offset, whence]| {
        word(files.as_c().fseek(stream, offset as i64, whence as i32))
    })?;
    on_words(registry, opcode::FFLUSH, state, |files, [stream, ..]| {
        word(files.as_c().fflush(stream))
    })?;
    in_place(registry, opcode::FTELL, state, |files, [stream, _]| {
        files.as_c().ftell(stream) as u64
    })?;
    in_place(registry, opcode::FEOF, state, |files, [stream, _]| word(files.as_c().feof(stream)))?;
    in_place(registry, opcode::FERROR, state, |files, [stream, _]| {
        word(files.as_c().ferror(stream))
    })?;
    in_place(registry, opcode::CLEARERR, state, |files, [stream, _]| {
        files.as_c().clearerr(stream);
        stream
    })?;
    in_place(registry, opcode::UNGETC, state, |files, [character, stream]| {
        word(files.as_c().ungetc(character as i32, stream))
    })
}

impl State {
    /// Does something with the files: here where that is quick, on the pool where it may wait.
    pub(super) async fn with_files<T: Send + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce(&FileTable) -> T + Send + 'static,
    ) -> T {
        if self.files_may_block {
            let files = self.files.clone();
            call.run_blocking(move || work(&files)).await
        } else {
            work(&self.files)
        }
    }
}

/// Writes the messages of all lanes, those of neighbours to one stream together. How much of each was
/// written.
pub(super) fn write(
    files: &FileTable,
    stream: impl Fn(u32) -> StreamRef,
    messages: &LaneBytes,
    end: LineEnd,
) -> [u64; 64] {
    let mut written = [0; 64];
    let messages: Vec<_> = messages.iter().collect();
    for group in messages.chunk_by(|(one, _), (other, _)| stream(*one) == stream(*other)) {
        let pieces = group.iter().map(|(_, message)| *message);
        let counts = files.as_c().fwrite_each(stream(group[0].0), pieces, end);
        for ((lane, _), count) in group.iter().zip(counts) {
            written[*lane as usize] = count;
        }
    }
    written
}

/// Reads for every lane: `request` has the count and the stream of each. `None` sends nothing.
async fn read(
    state: &Arc<State>,
    call: &Call,
    request: &[[u64; 2]; 64],
    function: impl Fn(&FileTable, u64, u64, usize) -> Option<Vec<u8>> + Send + 'static,
) -> LaneBytes {
    let (request, mask) = (*request, call.mask());
    // What goes out is bounded as what comes in.
    let limit = call.stream_limit() / u64::from(mask.count().max(1));
    let work = move |files: &FileTable| {
        LaneBytes::from_fn(mask, |lane| {
            let [count, stream] = request[lane as usize];
            function(files, count, stream, limit as usize).unwrap_or_default()
        })
    };
    let from_stdin =
        |lane: u32| StreamRef::from_tagged(request[lane as usize][1]) == StreamRef::Stdin;
    if mask.iter().any(from_stdin) {
        // Whoever types may take his time.
        let files = state.files.clone();
        call.run_blocking(move || work(&files)).await
    } else {
        state.with_files(call, work).await
    }
}

/// Does something with the path of every lane; `None` where it has no terminator.
async fn each(
    state: &Arc<State>,
    call: &Call,
    paths: LaneBytes,
    function: impl Fn(&FileTable, u32, Option<&[u8]>) -> u64 + Send + 'static,
) -> [u64; 64] {
    let work = move |files: &FileTable| {
        let mut results = [0; 64];
        for (lane, path) in paths.iter() {
            results[lane as usize] = function(files, lane, until_nul(path));
        }
        results
    };
    state.with_files(call, work).await
}

/// Registers a call of one packet that may wait for the file system.
fn on_words(
    registry: &Registry,
    opcode: Opcode,
    state: &Weak<State>,
    function: fn(&FileTable, [u64; 3]) -> u64,
) -> Result<(), RegisterError> {
    serve(registry, opcode, state, move |state, mut call| async move {
        let words = words(&mut call).await?;
        let mask = call.mask();
        let work = move |files: &FileTable| {
            let mut results = [0; 64];
            mask.iter().for_each(|lane| {
                results[lane as usize] = function(files, words[lane as usize]);
            });
            results
        };
        let results = state.with_files(&call, work).await;
        reply(&mut call, &results).await
    })
}

/// Registers a call of one packet that is answered from memory.
fn in_place(
    registry: &Registry,
    opcode: Opcode,
    state: &Weak<State>,
    function: fn(&FileTable, [u64; 2]) -> u64,
) -> Result<(), RegisterError> {
    answer(registry, opcode, state, move |state: &State, request: &Request<'_>| {
        for lane in request.lanes() {
            lane.set_word(0, function(&state.files, [lane.word(0), lane.word(1)]));
        }
    })
}

/// C's `int` as a word.
pub(super) fn word(result: i32) -> u64 {
    i64::from(result) as u64
}

/// Receives a packet: the first words of each lane.
pub(super) async fn words<const N: usize>(call: &mut Call) -> Result<[[u64; N]; 64], HandlerError> {
    let mut words = [[0; N]; 64];
    call.recv(|lane| {
        words[lane.index() as usize] = std::array::from_fn(|index| lane.word(index));
    })
    .await?;
    Ok(words)
}

/// Sends a packet: a word to each lane.
pub(super) async fn reply(call: &mut Call, words: &[u64; 64]) -> Result<(), HandlerError> {
    call.send(|lane| lane.set_word(0, words[lane.index() as usize])).await?;
    Ok(())
}
