//! `MALLOC`, `FREE` and `HOST_CALL`.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use crate::error::RegisterError;
use crate::registry::Registry;

use super::opcode;
use super::services::{State, answer, serve};
use super::stdio::{reply, words};

pub(super) fn register(registry: &Registry, state: &Weak<State>) -> Result<(), RegisterError> {
    answer(registry, opcode::MALLOC, state, |state, request| {
        for lane in request.lanes() {
            let address = match &state.heap {
                Some(heap) => heap.allocate(lane.word(0)),
                None => {
                    state.denied_allocations.fetch_add(1, Ordering::Relaxed);
                    None
                }
            };
            lane.set_word(0, address.unwrap_or(0));
        }
    })?;
    // Nobody waits for an answer; the heap counts what it refuses.
    answer(registry, opcode::FREE, state, |state, request| {
        for lane in request.lanes() {
            if let Some(heap) = &state.heap {
                heap.free(lane.word(0));
            }
        }
    })?;
    for opcode in [opcode::HOST_CALL, opcode::OFFLOAD_HOST_CALL] {
        serve(registry, opcode, state, |state, mut call| async move {
            let arguments = call.recv_stream().await?;
            let ids = words::<1>(&mut call).await?;
            let mut results = [0; 64];
            for (lane, arguments) in arguments.iter() {
                results[lane as usize] = state.call_function(ids[lane as usize][0], arguments);
            }
            reply(&mut call, &results).await
        })?;
    }
    Ok(())
}

impl State {
    /// The result of a registered function; all ones for an id that is none.
    fn call_function(&self, id: u64, arguments: &[u8]) -> u64 {
        match self.functions.get(&id) {
            Some(function) => function(arguments),
            None => {
                self.denied_functions.fetch_add(1, Ordering::Relaxed);
                u64::MAX
            }
        }
    }
}
