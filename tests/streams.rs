//! Streams: messages of any length, both ways, in both framings; too long ones cost nothing.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{
    A, B, Log, assert_all_ports_free, assert_nothing_in_flight, pattern, play, served, server,
    settle,
};
use hostcall::backend::host::HostAllocator;
use hostcall::protocol::stream::packets;
use hostcall::{
    Abi, CallError, Cause, ClientError, LaneBytes, LaneMask, LaneWidth, Registry, Server, Status,
    StreamError,
};

/// The system's allocator, which remembers the largest request.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code, reason = "a global allocator is an unsafe trait")]
// SAFETY: hands every request on as it is.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: Watched = Watched;

/// Larger than anything that the tests of this file allocate, which may run at the same time.
const LARGE: usize = 1 << 28;

const LENGTHS: [usize; 10] = [0, 1, 55, 56, 57, 119, 120, 121, 251, 1 << 20];

/// Sends back what it gets, and notes how long each lane's message was.
fn echo() -> (Registry, Log<(u32, usize)>) {
    let (registry, lengths) = (Registry::new(), Log::default());
    let log = lengths.clone();
    registry
        .bytes(A, move |info, bytes| {
            log.note((info.lane, bytes.len()));
            bytes
        })
        .unwrap();
    (registry, lengths)
}

/// Sends these messages and receives as many.
fn echoed(
    server: &Server<HostAllocator>,
    mask: LaneMask,
    messages: &LaneBytes,
) -> Result<LaneBytes, ClientError> {
    let message = |lane| messages.get(lane).unwrap_or_default();
    let mut parts: Vec<_> = (0..64).map(|_| None).collect();
    play(server, async {
        let opened = server.client().open_async(A, mask).await?;
        let mut port = opened.send_stream_async(message).await?;
        port.recv_stream_async(|lane, _, part| {
            parts[lane as usize].get_or_insert_with(Vec::new).extend_from_slice(part);
        })
        .await
    })?;
    let active: Vec<_> = (0..64).filter(|&lane| parts[lane as usize].is_some()).collect();
    Ok(LaneBytes::from_fn(active, |lane| parts[lane as usize].take().unwrap()))
}

#[test]
fn every_length_arrives_whole_both_ways() {
    let (registry, lengths) = echo();
    let server = server(&registry).lanes(2).build().unwrap();
    for length in LENGTHS {
        let messages = LaneBytes::from_fn([1], |lane| pattern(lane, length));
        let echo = echoed(&server, LaneMask(0b10), &messages).unwrap();
        assert!(echo == messages, "{length} bytes");
    }
    assert_eq!(lengths.entries(), LENGTHS.map(|length| (1, length)));
    assert_nothing_in_flight(&server);
    assert_all_ports_free(&server);
}

#[test]
fn every_length_takes_the_packets_that_the_protocol_says() {
    let registry = Registry::new();
    registry.conversation(A, async |mut call| Ok(call.recv_stream().await.map(|_| ())?)).unwrap();
    let counts =
        [(0, 1), (1, 1), (55, 1), (56, 1), (57, 2), (119, 2), (120, 2), (121, 3), (251, 5)];
    for (length, expected) in counts {
        assert_eq!(packets(length), expected);
        let server = server(&registry).ports(1).build().unwrap();
        let message = pattern(0, length as usize);
        play(&server, async {
            let opened = server.client().open_async(A, LaneMask(1)).await.unwrap();
            opened.send_stream_async(|_| &message).await.unwrap().close();
        });
        settle(&server);
        assert_eq!(assert_nothing_in_flight(&server).strays, 0, "{length} bytes");
        let mailbox = &server.client().channel().secondary()[0];
        let flips = u64::from(mailbox.load(Ordering::Acquire));
        assert_eq!(flips, expected % 2, "{length} bytes: one flip a packet");
    }
}

#[test]
fn lanes_of_different_lengths_share_a_stream() {
    for abi in Abi::ALL {
        for width in [1, 32, 64] {
            let (registry, _) = echo();
            let server = server(&registry).abi(abi).lanes(width).build().unwrap();
            let width = LaneWidth::new(width).unwrap();
            for hole in [u32::MAX, 0, 1, 5] {
                let mask = LaneMask::from_fn(|lane| lane % 7 != hole).cut(width);
                let length = |lane: u32| LENGTHS[(lane as usize * 5 + 3) % 9];
                let messages = LaneBytes::from_fn(mask, |lane| pattern(lane, length(lane)));
                let echo = echoed(&server, mask, &messages).unwrap();
                assert!(echo == messages, "{abi}, {width:?}, {mask:?}");
            }
            assert_nothing_in_flight(&server);
        }
    }
}

#[test]
fn zeros_and_holes_beside_a_long_message_stay_zeros_and_holes() {
    let (registry, lengths) = echo();
    let server = server(&registry).lanes(4).build().unwrap();
    let messages =
        LaneBytes::from_fn([0, 1, 3], |lane| pattern(lane, [0, 1 << 16, 0, 1][lane as usize]));
    let echo = echoed(&server, LaneMask(0b1011), &messages).unwrap();
    assert!(echo == messages);
    assert_eq!((echo.get(0), echo.get(2)), (Some(&[][..]), None));
    assert_eq!(lengths.entries(), [(0, 0), (1, 1 << 16), (3, 1)]);
}

#[test]
fn streams_between_threads_arrive_whole() {
    let (registry, _) = echo();
    let server = server(&registry).ports(4).lanes(2).build().unwrap();
    served(&server, || {
        std::thread::scope(|scope| {
            for client in 0..4u32 {
                let server = &server;
                scope.spawn(move || {
                    let messages =
                        LaneBytes::from_fn([0, 1], |lane| pattern(client + lane, 20_000));
                    let opened = server.client().open(A, LaneMask(0b11)).unwrap();
                    let message = |lane| messages.get(lane).unwrap();
                    let mut port = opened.send_stream(message).unwrap();
                    let mut echo = [Vec::new(), Vec::new()];
                    port.recv_stream(|lane, _, part| echo[lane as usize].extend_from_slice(part))
                        .unwrap();
                    assert!(echo[0] == message(0) && echo[1] == message(1));
                });
            }
        });
    });
    assert_eq!(assert_nothing_in_flight(&server).completed, 4);
}

#[test]
fn a_sink_hears_what_is_still_to_come() {
    let (registry, parts) = (Registry::new(), Log::default());
    let log = parts.clone();
    registry
        .conversation(A, move |mut call| {
            let log = log.clone();
            async move {
                let sink = |lane, remaining, part: &[u8]| log.note((lane, remaining, part.len()));
                Ok(call.recv_stream_with(sink).await?)
            }
        })
        .unwrap();
    let server = server(&registry).lanes(2).build().unwrap();
    let messages = [pattern(0, 130), Vec::new()];
    play(&server, async {
        let opened = server.client().open_async(A, LaneMask(0b11)).await.unwrap();
        opened.send_stream_async(|lane| &messages[lane as usize]).await.unwrap();
    });
    settle(&server);
    assert_eq!(parts.entries(), [(0, 130, 56), (1, 0, 0), (0, 74, 64), (0, 10, 10)]);
}

/// A value of several packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
struct Wide {
    numbers: [u64; 20],
    last: u32,
    padding: u32,
}

fn wide(seed: u64) -> Wide {
    Wide {
        numbers: std::array::from_fn(|at| seed * 100 + at as u64),
        last: seed as u32,
        padding: 0,
    }
}

#[test]
fn fixed_values_of_any_size_travel_without_a_length() {
    let registry = Registry::new();
    registry
        .conversation(A, async |mut call| {
            let mut values = Vec::new();
            call.recv_fixed(|lane, value: Wide| values.push((lane, value))).await?;
            let answer = |lane| {
                let (_, value) = values.iter().find(|&&(owner, _)| owner == lane).unwrap();
                Wide { last: value.last + lane, ..*value }
            };
            call.send_fixed(answer).await?;
            call.send_fixed(|lane| lane as u8).await?;
            Ok(())
        })
        .unwrap();
    let server = server(&registry).lanes(4).build().unwrap();
    let mask = LaneMask(0b1101);
    let bytes = |lane: u32| bytemuck::bytes_of(&wide(u64::from(lane))).to_vec();
    let part = |lane: u32, packet: usize| {
        let bytes = bytes(lane);
        bytes[64 * packet..bytes.len().min(64 * (packet + 1))].to_vec()
    };
    let mut replies: Vec<Vec<u8>> = vec![Vec::new(); 4];
    let mut small = Vec::new();
    play(&server, async {
        let opened = server.client().open_async(A, mask).await?;
        let mut port = opened.send(|lane| lane.set_bytes(&part(lane.index(), 0)));
        port.send_async(|lane| lane.set_bytes(&part(lane.index(), 1))).await?;
        port.send_async(|lane| lane.set_bytes(&part(lane.index(), 2))).await?;
        for _ in 0..3 {
            let reply = |lane: hostcall::Lane<'_>| {
                replies[lane.index() as usize].extend_from_slice(lane.load().bytes());
            };
            port.recv_async(reply).await?;
        }
        port.recv_async(|lane| small.push(lane.value::<u8>())).await
    })
    .unwrap();
    for lane in mask {
        let reply: Wide = bytemuck::pod_read_unaligned(&replies[lane as usize][..168]);
        assert_eq!(reply, Wide { last: 2 * lane, ..wide(u64::from(lane)) });
    }
    assert_eq!(small, [0, 2, 3]);
    assert_nothing_in_flight(&server);
}

/// A server whose handler of `A` receives a stream and notes the outcome; `B` answers.
fn limited(limit: u64) -> (Server<HostAllocator>, Log<Result<usize, CallError>>) {
    let (registry, outcomes) = (Registry::new(), Log::default());
    let log = outcomes.clone();
    registry
        .conversation(A, move |mut call| {
            let log = log.clone();
            async move {
                let received = call.recv_stream().await;
                log.note(received.clone().map(|all| all.iter().map(|(_, one)| one.len()).sum()));
                received?;
                Ok(())
            }
        })
        .unwrap();
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let builder = server(&registry).ports(1).lanes(4).stream_limit(limit);
    (builder.build().unwrap(), outcomes)
}

#[test]
fn a_length_over_the_limit_is_refused_before_memory_is_taken() {
    for (lane, length) in
        [(0, u64::MAX), (3, u64::MAX), (2, u64::MAX - 55), (1, 1 << 40), (0, 1001)]
    {
        let (server, outcomes) = limited(1000);
        let opened = server.client().try_open(A, LaneMask(0b1111)).unwrap().unwrap();
        let announced = |at| if at == lane { length } else { 0 };
        let mut port = opened.send(|at| at.set_word(0, announced(at.index())));
        settle(&server);
        let too_long = StreamError::TooLong { lane, length, limit: 1000 };
        assert_eq!(outcomes.entries(), [Err(CallError::Stream(too_long))]);
        let refused = play(&server, port.recv_async(|_| ()));
        assert_eq!(refused, Err(ClientError::Refused(Status::HandlerFailed)));
        drop(port);
        let error = server.first_error().unwrap();
        assert_eq!((error.opcode, error.port, error.lane), (A, 0, Some(lane)));
        assert!(matches!(error.cause, Cause::Handler(_)));
        play(&server, server.client().call_async(B, LaneMask(1), |_| 1u64, |_, _: u64| ()))
            .unwrap();
        assert_nothing_in_flight(&server);
        assert_all_ports_free(&server);
    }
    assert!(LARGEST.load(Ordering::Relaxed) < LARGE, "nobody allocated what was announced");
}

#[test]
fn lengths_that_overflow_together_are_over_the_limit() {
    let (server, outcomes) = limited(u64::MAX - 1);
    let opened = server.client().try_open(A, LaneMask(0b1111)).unwrap().unwrap();
    opened.send(|lane| lane.set_word(0, u64::MAX / 2)).close();
    settle(&server);
    let [Err(CallError::Stream(StreamError::TooLong { lane: 2, .. }))] = outcomes.entries()[..]
    else {
        panic!("{outcomes:?}")
    };
}

#[test]
fn the_limit_counts_all_lanes_together_and_is_itself_allowed() {
    let (server, outcomes) = limited(1000);
    let send = |lengths: [usize; 4]| {
        let messages = lengths.map(|length| vec![1; length]);
        play(&server, async {
            let opened = server.client().open_async(A, LaneMask(0b1111)).await.unwrap();
            opened.send_stream_async(|lane| &messages[lane as usize]).await.unwrap().close();
        });
        settle(&server);
    };
    send([1000, 0, 0, 0]);
    send([250; 4]);
    send([250, 250, 250, 251]);
    let too_long = StreamError::TooLong { lane: 3, length: 251, limit: 1000 };
    assert_eq!(outcomes.entries(), [Ok(1000), Ok(1000), Err(CallError::Stream(too_long))]);
    assert_all_ports_free(&server);
}

#[test]
fn memory_grows_with_what_has_arrived_not_with_what_was_announced() {
    let (server, _) = limited(u64::MAX);
    let opened = server.client().try_open(A, LaneMask(0b1111)).unwrap().unwrap();
    let mut port = opened.send(|lane| lane.set_word(0, 1 << 40));
    for _ in 0..100 {
        settle(&server);
        assert!(port.try_send(|_| ()).is_ready());
    }
    assert!(LARGEST.load(Ordering::Relaxed) < LARGE);
}
