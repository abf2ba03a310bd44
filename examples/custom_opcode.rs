//! Opcodes of your own, in four ways. You see a unary call, a
//! notification, a conversation with several packets, and blocking work off the polling thread,
//! served by a worker thread to a client in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};
use hostcall::backend::host::HostAllocator;
use hostcall::{HandlerError, LaneMask, Opcode, Registry, Server, Worker};

const DISTANCE: Opcode = Opcode::new(b'x', 1);
const PROGRESS: Opcode = Opcode::new(b'x', 2);
const AVERAGE: Opcode = Opcode::new(b'x', 3);
const LOOK_UP: Opcode = Opcode::new(b'x', 4);

/// What a lane sends: at most 64 bytes of plain data, the same on both sides.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Vector {
    x: f64,
    y: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let registry = Registry::new();

    // One value in, one value out, for each active lane.
    registry.unary(DISTANCE, |_, v: Vector| v.x.hypot(v.y))?;

    // One value in, and nobody waits.
    let progress = Arc::new(AtomicU64::new(0));
    let seen = progress.clone();
    registry.notification(PROGRESS, move |_, steps: u64| {
        seen.fetch_add(steps, Ordering::Relaxed);
    })?;

    // A conversation: how many, then so many packets, then the answer.
    registry.conversation(AVERAGE, async |mut call| {
        let mut count = 0;
        call.recv(|lane| count = lane.word(0) as u32).await?;
        if count == 0 || count > 1000 {
            return Err(HandlerError::new(format!("an average of {count} numbers")));
        }
        let mut sums = [0.0; 64];
        for _ in 0..count {
            call.recv(|lane| sums[lane.index() as usize] += lane.value::<f64>()).await?;
        }
        call.send(|lane| lane.set_value(&(sums[lane.index() as usize] / f64::from(count)))).await?;
        Ok(())
    })?;

    // Work that blocks runs on a pool; the worker goes on with other ports meanwhile.
    registry.conversation(LOOK_UP, async |mut call| {
        let name = call.recv_stream().await?.take(0);
        let name = String::from_utf8(name)?;
        let value = call.run_blocking(move || std::env::var(name).unwrap_or_default()).await;
        call.send_stream(|_| value.as_bytes()).await?;
        Ok(())
    })?;

    let server = Server::builder(HostAllocator).registry(&registry).build()?;
    let worker = Worker::start(server)?;
    let client = worker.server().client();
    let lanes = LaneMask(0b1011);

    client.call(
        DISTANCE,
        lanes,
        |lane| Vector { x: 3.0 * f64::from(lane), y: 4.0 * f64::from(lane) },
        |lane, distance: f64| println!("lane {lane} is {distance} away"),
    )?;

    client.notify(PROGRESS, lanes, |_| 10u64)?;

    let mut port = client.open(AVERAGE, lanes)?.send(|lane| lane.set_word(0, 2));
    port.send(|lane| lane.set_value(&f64::from(lane.index())))?;
    port.send(|lane| lane.set_value(&10.0))?;
    port.recv(|lane| println!("lane {}'s average is {}", lane.index(), lane.value::<f64>()))?;
    port.close();

    let mut port = client.open(LOOK_UP, LaneMask::lane(0))?.send_stream(|_| b"CARGO_PKG_NAME")?;
    let mut value = Vec::new();
    port.recv_stream(|_, _, part| value.extend_from_slice(part))?;
    port.close();
    println!("CARGO_PKG_NAME is {:?}", String::from_utf8(value)?);

    worker.stop()?;
    println!("{} steps of progress", progress.load(Ordering::Relaxed));
    Ok(())
}
