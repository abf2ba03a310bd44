//! A megabyte on each of 32 lanes through an async handler, either way, against a copy of as many
//! bytes in the same run.

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hostcall::backend::host::HostAllocator;
use hostcall::{LaneMask, Opcode, Registry, Server};

const UP: Opcode = Opcode::new(b'x', 1);
const DOWN: Opcode = Opcode::new(b'x', 2);
const LANES: usize = 32;

fn main() {
    let length = if common::quick() { 1 << 14 } else { 1 << 20 };
    let total = LANES * length;
    let message: Arc<[u8]> = (0..length).map(|index| index as u8).collect();

    let registry = Registry::new();
    registry
        .conversation(UP, |mut call| async move {
            let messages = call.recv_stream().await?;
            let taken = |lane| messages.get(lane).map_or(0, <[u8]>::len) as u64;
            call.send(|lane| lane.set_word(0, taken(lane.index()))).await?;
            Ok(())
        })
        .expect("a new registry");
    let reply = message.clone();
    registry
        .conversation(DOWN, move |mut call| {
            let reply = reply.clone();
            async move {
                call.recv(|_| ()).await?;
                call.send_stream(|_| &reply).await?;
                Ok(())
            }
        })
        .expect("a new registry");
    let server = Server::builder(HostAllocator).registry(&registry).build().expect("memory");
    let stop = AtomicBool::new(false);

    let time = Duration::from_secs(4);
    let mut copies = vec![0u8; total];
    let copy = common::median(time / 4, || {
        for lane in copies.chunks_exact_mut(length) {
            lane.copy_from_slice(black_box(&message));
        }
        black_box(&mut copies);
    });
    let (up, down) = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                server.poll().expect("no call fails");
            }
        });
        let client = server.client();
        let mask = LaneMask::from_fn(|lane| lane < LANES as u32);
        let up = common::median(time, || {
            let opened = client.open(UP, mask).expect("a port");
            let mut port = opened.send_stream(|_| &message).expect("taken in");
            port.recv(|lane| assert_eq!(lane.word(0), length as u64)).expect("an answer");
        });
        let down = common::median(time, || {
            let mut port = client.open(DOWN, mask).expect("a port").send(|_| ());
            let mut written = 0;
            port.recv_stream(|lane, remaining, part| {
                let from = (lane as usize + 1) * length - remaining as usize;
                copies[from..from + part.len()].copy_from_slice(part);
                written += part.len();
            })
            .expect("a stream");
            assert_eq!(written, total);
        });
        stop.store(true, Ordering::Relaxed);
        (up, down)
    });

    println!("{LANES} streams of {length} bytes at a time, two threads: median\n");
    println!("{:>16} {:>12} {:>12} {:>8}", "", "time", "GB/s", "ratio");
    for (name, nanoseconds) in [("copy", copy), ("to the host", up), ("to the device", down)] {
        let (time, ratio) = (nanoseconds / 1e6, nanoseconds / copy);
        let rate = f64::from(total as u32) / nanoseconds;
        println!("{name:>16} {time:>9.2} ms {rate:>12.3} {ratio:>8.1}");
    }
}
