//! Many ports, many clients, one polling thread: every reply right, none lost.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::memory::{Ledger, LedgerAllocator};
use common::{A, B, C, assert_all_ports_free, assert_nothing_in_flight, pattern};
use fastrand::Rng;
use hostcall::{LaneMask, Registry, Server, Worker};

const CLIENTS: u64 = 8;

/// What a lane asks, unlike that of any other lane or call.
fn question(call: u64, lane: u32) -> u64 {
    call.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(lane)
}

fn answer(question: u64) -> u64 {
    question.rotate_left(17).wrapping_mul(3)
}

/// What clients have said without waiting, added up on both sides.
#[derive(Default)]
struct Noted {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Noted {
    fn add(&self, n: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.sum.load(Ordering::Relaxed))
    }
}

fn registry(heard: &Arc<Noted>) -> Registry {
    let (registry, heard) = (Registry::new(), heard.clone());
    registry.unary(A, |_, question: u64| answer(question)).unwrap();
    registry.notification(B, move |_, n: u64| heard.add(n)).unwrap();
    registry.bytes(C, |_, bytes| bytes.into_iter().rev().collect()).unwrap();
    registry
}

/// One client thread: its share of the calls; some are notifications, some small streams.
fn client(server: &Server<LedgerAllocator>, number: u64, calls: u64, said: &Noted) {
    let mut rng = Rng::with_seed(number);
    for n in 0..calls {
        let call = number << 32 | n;
        let mask = match rng.u32(..4) {
            0 => LaneMask(rng.u64(..)).cut(server.layout().lanes()),
            _ => LaneMask::all(server.layout().lanes()),
        };
        match rng.u32(..20) {
            0..2 => {
                mask.iter().for_each(|lane| said.add(question(call, lane)));
                server.client().notify(B, mask, |lane| question(call, lane)).unwrap();
            }
            2 => {
                let messages: Vec<_> =
                    (0..32).map(|lane| pattern(lane + n as u32, rng.usize(..200))).collect();
                let message = |lane: u32| &messages[lane as usize][..];
                let opened = server.client().open(C, mask).unwrap();
                let mut port = opened.send_stream(message).unwrap();
                let mut reply = vec![Vec::new(); 32];
                let sink = |lane: u32, _, part: &[u8]| reply[lane as usize].extend_from_slice(part);
                port.recv_stream(sink).unwrap();
                for lane in mask {
                    assert!(reply[lane as usize].iter().rev().eq(message(lane)), "call {call:#x}");
                }
            }
            _ => {
                let mut replies = 0;
                let check = |lane, reply: u64| {
                    assert_eq!(reply, answer(question(call, lane)), "call {call:#x}, lane {lane}");
                    replies += 1;
                };
                let ask = |lane| question(call, lane);
                server.client().call(A, mask, ask, check).unwrap();
                assert_eq!(replies, mask.count(), "call {call:#x}");
            }
        }
    }
}

fn load(ports: u32, calls: u64) {
    println!("{calls} calls over {ports} ports; the seed of client n is n");
    let (heard, said, ledger) = (Arc::<Noted>::default(), Noted::default(), Ledger::default());
    let builder = Server::builder(ledger.allocator()).registry(&registry(&heard));
    let server = Arc::new(builder.ports(ports).lanes(32).build().unwrap());
    let worker = Worker::start(server.clone()).unwrap();
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let share = calls / CLIENTS + u64::from(number < calls % CLIENTS);
            let (server, said) = (&server, &said);
            scope.spawn(move || client(server, number, share, said));
        }
    });
    let drained = worker.stop().unwrap();
    assert_eq!(drained.unfinished, 0);
    assert_eq!(heard.get(), said.get(), "notifications and their sum");
    let stats = assert_nothing_in_flight(&server);
    assert_eq!((stats.accepted, stats.completed, stats.strays), (calls, calls, 0));
    assert!(server.first_error().is_none());
    assert_all_ports_free(&server);
    drop(server);
    assert_eq!((ledger.live(), ledger.returned()), (0, (3, 0)));
}

fn calls_or(default: u64) -> u64 {
    let calls = std::env::var("HOSTCALL_LOAD_CALLS");
    calls.map_or(default, |calls| calls.parse().expect("HOSTCALL_LOAD_CALLS is a number"))
}

#[test]
fn eight_clients_and_4096_ports_get_every_reply_right_through_one_polling_thread() {
    load(4096, calls_or(20_000));
}

#[test]
fn eight_clients_that_queue_for_three_ports_get_every_reply_right() {
    load(3, calls_or(20_000) / 4);
}

#[test]
#[ignore = "a million calls take minutes without optimisation: cargo test --release -- --ignored"]
fn a_million_calls_get_every_reply_right() {
    load(4096, calls_or(1_000_000));
}
