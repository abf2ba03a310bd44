//! Host services for GPU code.
#![cfg_attr(not(feature = "std"), no_std)]
#[cfg(all(test, not(feature = "std")))]
extern crate std;

pub mod protocol;
pub use protocol::*;
