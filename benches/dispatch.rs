//! What a request costs the polling thread, beside the memory it waits for: all ports ask, one pass answers.
//!
//! `cargo bench --bench dispatch`

mod common;

use std::time::Instant;

use hostcall::backend::host::HostAllocator;
use hostcall::{Abi, LaneMask, Opcode, Registry, Server};

const CALL: Opcode = Opcode::new(b'b', 1);
const NOTE: Opcode = Opcode::new(b'b', 2);

fn main() {
    let registry = Registry::new();
    registry.unary(CALL, |_, number: u64| number + 1).expect("a free opcode");
    registry.notification(NOTE, |_, _: u64| ()).expect("a free opcode");
    println!("nanoseconds for a request in the polling thread");
    println!("{:>20} {:>6} {:>6} {:>9} {:>9}", "wire", "ports", "lanes", "call", "notify");
    for abi in [Abi::Llvm20, Abi::Hostcall] {
        for (ports, lanes) in [(64, 1), (64, 32), (4096, 1), (4096, 32)] {
            let server = Server::builder(HostAllocator).abi(abi).ports(ports).lanes(32);
            let server = server.registry(&registry).build().expect("memory");
            let [call, note] = [CALL, NOTE].map(|opcode| measure(&server, opcode, ports, lanes));
            println!("{:>20} {ports:>6} {lanes:>6} {call:>9.1} {note:>9.1}", abi.to_string());
        }
    }
}

/// What the fastest tenth of many passes take: other work of the machine is not meant.
fn measure(server: &Server<HostAllocator>, opcode: Opcode, ports: u32, lanes: u32) -> f64 {
    let rounds = (if common::quick() { 20_000 } else { 400_000 }) / ports as usize + 3;
    let mask = LaneMask::from_fn(|lane| lane < lanes);
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            for port in 0..ports {
                let client = server.client().starting_at(port);
                client.notify(opcode, mask, u64::from).expect("a free port");
            }
            let began = Instant::now();
            let served = server.poll().expect("no failure");
            assert_eq!(served, ports as usize);
            began.elapsed().as_secs_f64() * 1e9 / f64::from(ports)
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[rounds / 10]
}
