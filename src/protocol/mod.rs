//! The wire: mailboxes, headers and packets in memory that two processors share.
//!
//! This is the RPC protocol of the LLVM C library for GPUs. A *port* is one
//! conversation. It has two mailboxes, one written by each side, a header and one
//! 64-byte packet for each lane of a warp. The device owns the packets while both
//! mailboxes hold the same value and the host while they differ, so a hand-over is
//! one store: each side inverts its own mailbox and never touches the other. The crate's own wire
//! ([`Abi::Hostcall`]) keeps the rules and counts hand-overs where LLVM's inverts a bit, so that short
//! messages can carry the count themselves.
//!
//! The rooms, from the bottom up:
//!
//! - [`wire`]: the values on the wire: [`Packet`], [`Header`], [`Opcode`], [`LaneMask`], [`Status`].
//! - [`abi`]: how each LLVM release arranges them, and the client object that its device code expects.
//! - [`layout`]: where everything lies, as checked sizes and offsets.
//! - [`channel`]: the view of shared memory as atomics; the only unsafe code of the protocol.
//! - [`doorbell`]: what a silent server can sleep at.
//! - `tagged`: how messages look on the crate's own wire.
//! - [`port`]: whose turn it is, for both roles.
//! - [`stream`]: messages longer than a packet.
//!
//! Nothing here allocates, needs `std`, or knows of servers and GPUs.

pub mod abi;
pub mod atomic;
pub mod channel;
pub mod doorbell;
pub mod layout;
pub mod port;
pub mod stream;
pub(crate) mod tagged;
pub mod wire;

pub use abi::{Abi, ClientImage, ClientPointers, SymbolKind};
pub use channel::{Channel, ChannelError, Lane};
pub use doorbell::{Doorbell, DoorbellPointers};
pub use layout::{LaneWidth, Layout, LayoutError, PortCount};
pub use port::{Device, Host, Incoming, Locks, OpenedPort, Port, PortState, Role};
pub use stream::{FixedReceiver, FixedSender, StreamError, StreamReceiver, StreamSender};
pub use wire::{Header, LaneMask, Opcode, PACKET_SIZE, PACKET_WORDS, Packet, Status};
