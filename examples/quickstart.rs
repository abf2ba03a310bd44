//! A simulated 32-lane warp prints through its host, calls an opcode of this program's own, streams
//! a mebibyte there and back, and exits. You see a line from each lane, what came back, and this
//! process ends with the status that the device program chose: 7.

use std::process::ExitCode;

use hostcall::libc::Services;
use hostcall::{Opcode, Registry, Simulation};

/// Opcodes of this program: the class is ours to choose, the C library has `c`.
const SQUARE: Opcode = Opcode::new(b'x', 1);
const REVERSE: Opcode = Opcode::new(b'x', 2);

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let registry = Registry::new();
    // The C library's opcodes, as far as is safe: it may print and exit.
    let services = Services::builder().build();
    services.register(&registry)?;
    registry.unary(SQUARE, |_, number: u64| number * number)?;
    registry.bytes(REVERSE, |_, mut bytes| {
        bytes.reverse();
        bytes
    })?;

    // What follows is the device program: every lane of the warp does it at once.
    let report = Simulation::new(&registry).lanes(32).run(async |warp| {
        warp.write_stderr(|lane| format!("lane {lane} says hello through its host\n")).await?;

        let mut sum = 0;
        warp.call(SQUARE, u64::from, |_, square: u64| sum += square).await?;

        let message: Vec<u8> = (0..1 << 20).map(|i| i as u8).collect();
        let parts: Vec<&[u8]> = message.chunks(message.len() / 32).collect();
        let part = |lane: u32| parts[lane as usize];
        let mut port = warp.open(REVERSE).await?.send_stream_async(part).await?;
        let mut reversed = vec![Vec::new(); 32];
        port.recv_stream_async(|lane, _, bytes| reversed[lane as usize].extend(bytes)).await?;
        port.close();
        let right = (0..32).all(|lane| part(lane).iter().rev().eq(&reversed[lane as usize]));

        warp.exit(7).await?;
        Ok((sum, right, reversed.concat().len()))
    })?;

    let exit = report.exit.ok_or("the device program did not exit")?;
    let calls = report.stats.completed;
    let (sum, right, length) = report.outputs()?[0];
    println!("the squares of 0 to 31 add up to {sum}");
    println!("{length} bytes came back reversed: {right}");
    println!("{calls} conversations served, exit status {}", exit.status);
    Ok(ExitCode::from(exit.status as u8))
}
