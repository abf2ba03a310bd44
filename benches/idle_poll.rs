//! A poll of a server whose device is silent, against the floor: a plain loop that reads as many
//! flags, in the same run.

mod common;

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hostcall::backend::host::HostAllocator;
use hostcall::{Abi, Server};

fn main() {
    let time = Duration::from_millis(800);
    println!("a poll of idle ports: median\n");
    println!(
        "{:>6} {:>12} {:>12} {:>12} {:>8}",
        "ports", "plain loop", "poll", "per port", "ratio"
    );
    for ports in [1, 64, 4096, 16384] {
        let flags: Vec<AtomicU32> = (0..ports).map(|_| AtomicU32::new(0)).collect();
        let floor = common::median(time, || {
            let flags = black_box(&flags[..]);
            black_box(flags.iter().fold(0, |seen, flag| seen | flag.load(Ordering::Relaxed)));
        });
        let server = Server::builder(HostAllocator).abi(Abi::LlvmMain).ports(ports).lanes(32);
        let server = server.build().expect("memory");
        let poll = common::median(time, || {
            black_box(server.poll()).expect("nothing fails");
        });
        let (per_port, ratio) = (poll / f64::from(ports), poll / floor);
        println!("{ports:>6} {floor:>9.1} ns {poll:>9.1} ns {per_port:>9.3} ns {ratio:>8.2}");
    }
}
