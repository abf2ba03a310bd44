#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostcall_fuzz::printf(data));
