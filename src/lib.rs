//! Host services for GPU code.
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(test, not(feature = "std")))]
extern crate std;

pub mod client;
pub mod protocol;

#[cfg(all(feature = "std", not(loom)))]
mod host {
    pub use crate::backend::{DeviceAddress, Purpose, SharedAllocator, SharedBlock, SharedBox};
    pub use crate::call::{BlockingCall, Call, LaneBytes};
    pub use crate::clock::{Clock, ManualClock, SystemClock};
    pub use crate::error::{
        BuildError, CallError, Cause, ConversationError, HandlerError, RegisterError, WaitingFor,
    };
    pub use crate::handler::{HandlerFuture, Handling, OpcodeHandler, Request};
    pub use crate::registry::{LaneInfo, Registry};
    pub use crate::server::{Builder, Conversation, Drained, ErrorPolicy, Server};
    pub use crate::state::ExitRequest;
    pub use crate::stats::Stats;
    pub use crate::worker::{IdlePolicy, Worker, WorkerBuilder, WorkerError};
}

#[cfg(all(feature = "std", not(loom)))]
pub mod backend;
#[cfg(all(feature = "std", not(loom)))]
mod call;
#[cfg(all(feature = "std", not(loom)))]
mod clock;
#[cfg(all(feature = "std", not(loom)))]
mod error;
#[cfg(all(feature = "std", not(loom)))]
mod handler;
#[cfg(all(feature = "std", not(loom)))]
pub mod libc;
#[cfg(all(feature = "std", not(loom)))]
mod registry;
#[cfg(all(feature = "std", not(loom)))]
mod server;
#[cfg(all(feature = "std", not(loom)))]
mod shard;
#[cfg(all(feature = "host", unix, not(loom)))]
pub mod sim;
#[cfg(all(feature = "std", not(loom)))]
mod state;
#[cfg(all(feature = "std", not(loom)))]
mod stats;
#[cfg(all(feature = "std", not(loom)))]
mod worker;

pub use client::{Client, ClientError, ClientOpen, ClientPort};
#[cfg(all(feature = "std", not(loom)))]
pub use host::*;
pub use protocol::{
    Abi, ClientImage, Lane, LaneMask, LaneWidth, Layout, LayoutError, Opcode, Packet, PortCount,
    Status, StreamError,
};
#[cfg(all(feature = "host", unix, not(loom)))]
pub use sim::{Report, Simulation, SimulationError, Warp};
