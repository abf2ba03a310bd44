//! Host services for GPU code: print, open files, allocate, call your own functions, from a kernel.
//!
//! Code on a GPU cannot do any of that, but it can write to memory that its host sees too. This
//! crate is the host half of the conversation that follows: a [`Server`] owns mailboxes and packets
//! in shared memory and gives each call to the [`OpcodeHandler`] that a [`Registry`] knows for its
//! opcode. The wire is that of the LLVM C library for GPUs, so its unmodified device code works, and
//! so does a [`Client`] in this process: handlers are tested without a GPU.
//!
//! # Quick start
//!
//! ```
//! use hostcall::{Opcode, Registry, Simulation, libc::Services};
//!
//! // The host: what device code may ask for.
//! const SQUARE: Opcode = Opcode::new(b'x', 1);
//! let registry = Registry::new();
//! let services = Services::builder().build();
//! services.register(&registry)?;
//! registry.unary(SQUARE, |_, number: u64| number * number)?;
//!
//! // The device: a warp of 32 lanes, simulated.
//! let report = Simulation::new(&registry).run(async |warp| {
//!     let mut sum = 0;
//!     warp.call(SQUARE, u64::from, |_, square: u64| sum += square).await?;
//!     warp.write_stderr(|lane| format!("lane {lane} knows the sum is {sum}\n")).await?;
//!     Ok(sum)
//! })?;
//! assert_eq!(report.outputs()?, [10416]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to go from here
//!
//! - Opcodes of your own: [`Registry`] for one-line handlers, [`OpcodeHandler`] and [`Call`] for
//!   whole conversations.
//! - Serving a device: [`Server::builder`], then a [`Worker`] in the background or
//!   [`Server::poll`] in a loop of yours; [`Server::client_image`] is what the device needs.
//! - The C library's opcodes and what device code may do with them: [`libc::Services`].
//! - Testing: [`Simulation`] runs device programs under a seeded scheduler.
//! - Memory for other devices: [`SharedAllocator`].
//! - The wire itself: [`protocol`], which needs neither `std` nor an allocator.
//!
//! # What holds
//!
//! - *No data race is undefined behaviour.* Shared memory is touched through atomics, and on x86-64
//!   through moves of whole words.
//! - *The device is not trusted.* Masks are cut to the lane width, lengths are bounded before memory
//!   is taken, opcodes nobody knows are answered, counted and reported.
//! - *Nothing hangs for ever.* A conversation without progress is dropped at its deadline; one that
//!   fails or panics ends alone, and its client is released.
//! - *No conversation holds up another.* One thread interleaves all ports packet by packet.
//!
//! # Features
//!
//! - `host` (default): memory of this process ([`backend::host`]) and the [`Simulation`].
//! - `sandbox`: files of device programs confined to a directory.
//! - `cuda`: memory, client images and launches of CUDA devices, in the module `cuda`.
//! - `hsa`: memory, code objects and queues of AMD devices, in the module `backend::hsa`.
//! - `loader`: the program `hostcall-loader`, which runs GPU programs as if they were local ones.
//! - `capi`: the interface for C and C++ host programs, in the module `capi`.
//! - `std`: the server without those. Without it, [`protocol`] and [`client`] remain, for devices.
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(test, not(feature = "std")))]
extern crate std;

#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod client;
pub mod protocol;

#[cfg(all(feature = "std", not(hostcall_loom)))]
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

#[cfg(all(feature = "std", not(hostcall_loom)))]
pub mod backend;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod call;
#[cfg(all(feature = "capi", unix, not(hostcall_loom)))]
pub mod capi;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod clock;
#[cfg(all(feature = "cuda", not(hostcall_loom)))]
pub mod cuda;
pub mod device;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod error;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod handler;
#[cfg(all(any(feature = "cuda", all(feature = "hsa", feature = "loader")), not(hostcall_loom)))]
pub mod launch;
#[cfg(all(feature = "std", unix, not(hostcall_loom)))]
pub mod libc;
#[cfg(all(feature = "loader", unix, not(hostcall_loom)))]
pub mod loader;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod registry;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod server;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod shard;
#[cfg(all(feature = "host", unix, not(hostcall_loom)))]
pub mod sim;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod state;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod stats;
#[cfg(all(feature = "std", not(hostcall_loom)))]
mod worker;

pub use client::{Client, ClientError, ClientOpen, ClientPort};
#[cfg(all(feature = "std", not(hostcall_loom)))]
pub use host::*;
pub use protocol::{
    Abi, ClientImage, Doorbell, DoorbellPointers, Lane, LaneMask, LaneWidth, Layout, LayoutError,
    Opcode, Packet, PortCount, Status, StreamError,
};
#[cfg(all(feature = "host", unix, not(hostcall_loom)))]
pub use sim::{Report, Simulation, SimulationError, Warp};
