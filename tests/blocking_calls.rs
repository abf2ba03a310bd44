//! Handlers that block a thread of the pool: what becomes of them when their conversation ends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hostcall::backend::host::HostAllocator;
use hostcall::{CallError, LaneMask, ManualClock, Opcode, Registry, Server};

const GREEDY: Opcode = Opcode::new(b'x', 1);

/// A server whose handler reads twice and says how the second read ended; its client sends once.
fn waiting_for_a_second_packet() -> (Server<HostAllocator>, Arc<ManualClock>, Receiver<CallError>) {
    let registry = Registry::new();
    let (ended, end) = channel();
    registry
        .blocking(GREEDY, move |mut call| {
            call.recv(|_| ())?;
            let result = call.recv(|_| ());
            if let Err(error) = &result {
                let _ = ended.send(error.clone());
            }
            Ok(result?)
        })
        .unwrap();
    let clock = Arc::new(ManualClock::default());
    let server = Server::builder(HostAllocator)
        .registry(&registry)
        .clock(clock.clone())
        .device_deadline(Duration::from_secs(1))
        .build()
        .unwrap();
    server.client().notify(GREEDY, LaneMask(1), |_| 7u64).unwrap();
    let acknowledged = |server: &Server<_>| {
        let port = server.conversations().first().map(|conversation| conversation.port);
        port.is_some_and(|port| {
            let flags = server.client().channel().primary();
            flags[port as usize].load(std::sync::atomic::Ordering::Acquire) == 1
        })
    };
    while !acknowledged(&server) {
        server.poll().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    (server, clock, end)
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_deadline_ends_the_wait_of_a_blocking_handler() {
    let (server, clock, end) = waiting_for_a_second_packet();
    // What the pool's thread did is noticed at the first look; from then on time counts.
    for _ in 0..2 {
        clock.advance(Duration::from_secs(2));
        server.poll().unwrap();
    }
    assert_eq!(server.stats().expired, 1);
    assert_eq!(end.recv_timeout(SOON), Ok(CallError::Ended));
}

#[test]
fn a_shutdown_ends_the_wait_of_a_blocking_handler() {
    let (server, _, end) = waiting_for_a_second_packet();
    server.shutdown();
    assert_eq!(end.recv_timeout(SOON), Ok(CallError::Ended));
}

#[test]
fn the_servers_end_is_the_end_of_a_blocking_handlers_wait() {
    let (server, _, end) = waiting_for_a_second_packet();
    drop(server);
    assert_eq!(end.recv_timeout(SOON), Ok(CallError::Ended));
}
