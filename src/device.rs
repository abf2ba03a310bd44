//! The device side as text: the client for kernels in CUDA C++, HIP and freestanding C++.

/// The text of `device/hostcall.h`, for compilers that take headers from memory.
///
/// NVRTC wants the options `-std=c++17` and `-rdc=true`, which keeps the client object visible by
/// name. Put `#define HOSTCALL_DEFINE_CLIENT` in front of it.
pub const HEADER: &str = include_str!("../device/hostcall.h");

/// The name of the client object that [`HEADER`] defines.
pub const CLIENT_SYMBOL: &str = "__hostcall_client";

/// The names that client objects have: LLVM 20 and newer, LLVM 17 to 19 (a pointer), and [`HEADER`] on
/// either wire.
pub const CLIENT_SYMBOLS: [&str; 4] =
    ["__llvm_rpc_client", "__llvm_libc_rpc_client", CLIENT_SYMBOL, FAST_CLIENT_SYMBOL];

/// The name of the client object for the crate's own wire, which [`HEADER`] defines where
/// `HOSTCALL_FAST` is 1. It wants a server of [`Abi::Hostcall`](crate::Abi::Hostcall).
pub const FAST_CLIENT_SYMBOL: &str = "__hostcall_fast_client";
