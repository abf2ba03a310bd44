//! Ending the program.

use crate::error::HandlerError;
use crate::handler::{Handling, OpcodeHandler, Request};

/// What happens when device code calls `exit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitPolicy {
    /// The server [reports](crate::Server::exit_request) it; the host program decides.
    #[default]
    Report,
    /// This process ends with the status.
    Terminate,
}

/// Answers [`EXIT`](super::opcode::EXIT): a handshake, then the status of the first active lane.
pub fn exit(policy: ExitPolicy) -> impl OpcodeHandler {
    move |request: Request<'_>| {
        let mut call = request.detach();
        Ok::<_, HandlerError>(Handling::future(async move {
            call.recv(|_| ()).await?;
            call.send(|_| ()).await?;
            let mut status = None;
            call.recv(|lane| {
                status.get_or_insert((lane.index(), lane.word(0) as i32));
            })
            .await?;
            let (lane, status) = status.ok_or_else(|| HandlerError::new("no lane is active"))?;
            match policy {
                ExitPolicy::Report => call.request_exit(lane, status),
                ExitPolicy::Terminate => std::process::exit(status),
            }
            Ok(())
        }))
    }
}
