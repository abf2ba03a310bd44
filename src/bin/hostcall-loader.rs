//! Runs GPU programs as if they were local ones. See `hostcall-loader --help`.

fn main() {
    // Not a return: a program that was given up may still run on the device.
    std::process::exit(hostcall::loader::main(std::env::args_os()))
}
