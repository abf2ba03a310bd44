//! The atomics that stand for shared memory; loom's when a model is run.
//!
//! Everything above this module is written against these names alone, so that
//! a model checker can drive the very code that runs in production
//! (`RUSTFLAGS="--cfg hostcall_loom"`).

#[cfg(not(hostcall_loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(hostcall_loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
