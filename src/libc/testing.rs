//! The opcodes of LLVM's own tests (PROTOCOL.md §4.3), so that they run against this server.

use crate::error::RegisterError;
use crate::registry::Registry;

use super::opcode;

/// Registers them: increment, interface, stream. NOOP serves as the fourth.
pub(super) fn register(registry: &Registry) -> Result<(), RegisterError> {
    registry.unary(opcode::TEST_INCREMENT, |_, number: u64| number.wrapping_add(1))?;
    registry.conversation(opcode::TEST_INTERFACE, async |mut call| {
        let mut ends_in_receive = [false; 64];
        let mut count = [0u64; 64];
        call.recv(|lane| ends_in_receive[lane.index() as usize] = lane.word(0) & 1 == 1).await?;
        call.recv(|lane| count[lane.index() as usize] = lane.word(0)).await?;
        macro_rules! send {
            () => {
                call.send(|lane| {
                    let count = &mut count[lane.index() as usize];
                    *count = count.wrapping_add(1);
                    lane.set_word(0, *count);
                })
                .await?
            };
        }
        macro_rules! recv {
            () => {
                call.recv(|lane| count[lane.index() as usize] = lane.word(0)).await?
            };
        }
        send!();
        recv!();
        send!();
        recv!();
        recv!();
        send!();
        send!();
        // The same on every lane: the test has one.
        let first = call.mask().first().unwrap_or(0);
        if ends_in_receive[first as usize] {
            recv!();
        } else {
            send!();
        }
        Ok(())
    })?;
    registry.bytes(opcode::TEST_STREAM, |_, bytes| bytes)
}
