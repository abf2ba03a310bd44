//! Writing to streams.

use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::handler::{Handling, OpcodeHandler, Request};

/// Answers [`WRITE_TO_STDERR`](super::opcode::WRITE_TO_STDERR): writes the bytes of all active
/// lanes, in lane order and in one piece, and replies to each lane how many of its bytes were
/// written.
pub fn stderr(sink: impl Write + Send + 'static) -> impl OpcodeHandler {
    let sink = Arc::new(Mutex::new(sink));
    move |request: Request<'_>| {
        let (sink, mut call) = (sink.clone(), request.detach());
        Ok(Handling::future(async move {
            let messages = call.recv_stream().await?;
            let mut written = [0; 64];
            {
                let mut sink = sink.lock();
                for (lane, message) in messages.iter() {
                    written[lane as usize] = write_most(&mut *sink, message) as u64;
                }
                // A sink that cannot flush has kept what it took; the next write will tell.
                let _ = sink.flush();
            }
            call.send(|lane| lane.set_word(0, written[lane.index() as usize])).await?;
            Ok(())
        }))
    }
}

/// Writes as much as the sink takes and returns how much that was, as `fwrite` does.
fn write_most(sink: &mut impl Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match sink.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(n) => written += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}
