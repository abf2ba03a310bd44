//! Ending the program, and running others.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Weak;
use std::sync::atomic::Ordering;

use crate::call::Call;
use crate::error::{HandlerError, RegisterError};
use crate::registry::Registry;

use super::services::{State, serve};
use super::stdio::{reply, word};
use super::{opcode, until_nul};

/// The status that shells give a program which aborted: 128 and the number of the signal.
pub const ABORTED: i32 = 134;

/// The exchange of both ends: an empty packet there and back, then one that nobody waits for. Returns
/// the first active lane and what it said in it.
async fn handshake(call: &mut Call) -> Result<(u32, u64), HandlerError> {
    call.recv(|_| ()).await?;
    call.send(|_| ()).await?;
    let mut said = None;
    call.recv(|lane| {
        said.get_or_insert((lane.index(), lane.word(0)));
    })
    .await?;
    said.ok_or_else(|| HandlerError::new("no lane is active"))
}

/// `EXIT` with the status of the first active lane and `ABORT` with [`ABORTED`], which the server
/// [reports](crate::Server::exit_request) and its program decides about; and `SYSTEM`, which runs
/// each lane's command, one after the other, on the pool.
pub(super) fn register(registry: &Registry, state: &Weak<State>) -> Result<(), RegisterError> {
    registry.conversation(opcode::EXIT, async |mut call| {
        let (lane, status) = handshake(&mut call).await?;
        call.request_exit(lane, status as i32);
        Ok(())
    })?;
    registry.conversation(opcode::ABORT, async |mut call| {
        let (lane, _) = handshake(&mut call).await?;
        call.request_abort(lane, ABORTED);
        Ok(())
    })?;
    serve(registry, opcode::SYSTEM, state, |state, mut call| async move {
        let commands = call.recv_stream().await?;
        let mut results = [0; 64];
        for (lane, command) in commands.iter() {
            results[lane as usize] = word(match until_nul(command) {
                Some(command) if state.system => {
                    let command = command.to_vec();
                    call.run_blocking(move || system(&command)).await
                }
                _ => {
                    state.denied_commands.fetch_add(1, Ordering::Relaxed);
                    -1
                }
            });
        }
        reply(&mut call, &results).await
    })
}

/// What C's `system` returns for a command, run by the shell with no input.
fn system(command: &[u8]) -> i32 {
    let status = Command::new("/bin/sh")
        .arg("-c")
        .arg(OsStr::from_bytes(command))
        .stdin(Stdio::null())
        .status();
    status.map_or(-1, ExitStatusExt::into_raw)
}
