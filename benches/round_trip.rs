//! One call from a client's thread to a polling thread and back, against the floor: two flags that
//! the same two threads invert in turn, in the same run.

mod common;

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use hostcall::backend::host::HostAllocator;
use hostcall::{Abi, LaneMask, Opcode, Registry, Server};

const ADD: Opcode = Opcode::new(b'x', 1);

/// One flag of each side.
#[derive(Default)]
struct Flags {
    ping: CachePadded<AtomicU32>,
    pong: CachePadded<AtomicU32>,
}

impl Flags {
    const STOP: u32 = u32::MAX;

    fn answer(&self) {
        let mut last = 0;
        loop {
            let ping = self.ping.load(Ordering::Acquire);
            if ping == Self::STOP {
                return;
            }
            if ping == last {
                spin_loop();
            } else {
                last = ping;
                self.pong.store(ping, Ordering::Release);
            }
        }
    }

    fn round_trip(&self) {
        let next = self.ping.load(Ordering::Relaxed) ^ 1;
        self.ping.store(next, Ordering::Release);
        while self.pong.load(Ordering::Acquire) != next {
            spin_loop();
        }
    }
}

fn measure(ports: u32, lanes: u32) -> (f64, f64) {
    let registry = Registry::new();
    registry.unary(ADD, |_, number: u64| number + 1).expect("a new registry");
    let server = Server::builder(HostAllocator)
        .registry(&registry)
        .abi(Abi::LlvmMain)
        .ports(ports)
        .build()
        .expect("memory");
    let (flags, stop) = (Flags::default(), AtomicBool::new(false));
    let time = Duration::from_secs(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            flags.answer();
            while !stop.load(Ordering::Relaxed) {
                if server.poll().expect("no call fails") == 0 {
                    spin_loop();
                }
            }
        });
        let floor = common::median(time, || flags.round_trip());
        flags.ping.store(Flags::STOP, Ordering::Release);
        let client = server.client();
        let mask = LaneMask::from_fn(|lane| lane < lanes);
        let mut number = 0;
        let call = common::median(time, || {
            let reply = |_, reply: u64| number = black_box(reply);
            client.call(ADD, mask, u64::from, reply).expect("an answer");
        });
        assert_eq!(number, u64::from(lanes), "the last lane's reply");
        stop.store(true, Ordering::Relaxed);
        (floor, call)
    })
}

fn main() {
    println!("one call, two threads: median of a round trip\n");
    println!("{:>6} {:>6} {:>14} {:>10} {:>8}", "ports", "lanes", "two flags", "call", "ratio");
    for ports in [1, 64, 4096, 16384] {
        for lanes in [1, 32] {
            let (floor, call) = measure(ports, lanes);
            let ratio = call / floor;
            println!("{ports:>6} {lanes:>6} {floor:>11.0} ns {call:>7.0} ns {ratio:>8.2}");
        }
    }
}
