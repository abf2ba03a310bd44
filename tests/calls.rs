//! Calls and notifications: every interface, every lane, every form of the client.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::sync::Arc;
use std::task::Poll;

use common::memory::Ledger;
use common::{
    A, B, C, Gate, Log, assert_all_ports_free, assert_nothing_in_flight, play, poll_until,
    received, served, server, settle,
};
use hostcall::{
    Abi, ClientError, LaneInfo, LaneMask, LaneWidth, Opcode, Purpose, Registry, Request, Server,
    SharedAllocator, Status, libc,
};

const WIDTHS: [u32; 3] = [1, 32, 64];

/// All lanes, the first, the last, every third, none.
fn masks(width: u32) -> [LaneMask; 5] {
    let width = LaneWidth::new(width).unwrap();
    let thirds = LaneMask::from_fn(|lane| lane % 3 == 1).cut(width);
    let last = LaneMask::lane(width.get() - 1);
    [LaneMask::all(width), LaneMask::lane(0), last, thirds, LaneMask::EMPTY]
}

/// `A` answers with the square, `B` takes note.
fn squares() -> (Registry, Log<(u32, u64)>) {
    let (registry, notes) = (Registry::new(), Log::default());
    let log = notes.clone();
    registry.unary(A, |_, n: u64| n * n).unwrap();
    registry.notification(B, move |info: LaneInfo, n: u64| log.note((info.lane, n))).unwrap();
    (registry, notes)
}

#[test]
fn every_active_lane_gets_its_own_reply_in_every_interface() {
    for abi in Abi::ALL {
        for width in WIDTHS {
            let (registry, _) = squares();
            let server = server(&registry).abi(abi).lanes(width).build().unwrap();
            for mask in masks(width) {
                let mut replies = Vec::new();
                let reply = |lane, n: u64| replies.push((lane, n));
                play(
                    &server,
                    server.client().call_async(A, mask, |lane| 3 + u64::from(lane), reply),
                )
                .unwrap();
                let expected: Vec<_> =
                    mask.iter().map(|lane| (lane, (3 + u64::from(lane)).pow(2))).collect();
                assert_eq!(replies, expected, "{abi}, {width} lanes, {mask:?}");
            }
            assert_nothing_in_flight(&server);
            assert_all_ports_free(&server);
        }
    }
}

#[test]
fn notifications_arrive_from_every_active_lane_in_lane_order() {
    for abi in Abi::ALL {
        for width in WIDTHS {
            let (registry, notes) = squares();
            let server = server(&registry).abi(abi).lanes(width).build().unwrap();
            let mut expected = Vec::new();
            for mask in masks(width) {
                server.client().notify(B, mask, |lane| 100 + u64::from(lane)).unwrap();
                settle(&server);
                expected.extend(mask.iter().map(|lane| (lane, 100 + u64::from(lane))));
            }
            assert_eq!(notes.entries(), expected, "{abi}, {width} lanes");
            assert_nothing_in_flight(&server);
            assert_all_ports_free(&server);
        }
    }
}

#[test]
fn conversations_of_several_packets_work_in_every_interface() {
    for abi in Abi::ALL {
        let registry = Registry::new();
        registry
            .conversation(A, async |mut call| {
                let mut sums = [0; 64];
                for _ in 0..2 {
                    call.recv(|lane| sums[lane.index() as usize] += lane.word(0)).await?;
                }
                call.send(|lane| lane.set_word(0, sums[lane.index() as usize])).await?;
                call.send(|lane| lane.set_word(0, 2 * sums[lane.index() as usize])).await?;
                Ok(())
            })
            .unwrap();
        let server = server(&registry).abi(abi).ports(1).build().unwrap();
        for round in 0..4u64 {
            let replies = play(&server, async {
                let opened = server.client().open_async(A, LaneMask(0b101)).await?;
                let mut port = opened.send(|lane| lane.set_word(0, round));
                port.send_async(|lane| lane.set_word(0, u64::from(lane.index()))).await?;
                let mut replies = Vec::new();
                port.recv_async(|lane| replies.push(lane.word(0))).await?;
                port.recv_async(|lane| replies.push(lane.word(0))).await?;
                Ok::<_, ClientError>(replies)
            });
            let expected = [round, round + 2, 2 * round, 2 * round + 4];
            assert_eq!(replies.unwrap(), expected, "{abi}");
        }
        assert_nothing_in_flight(&server);
        assert_all_ports_free(&server);
    }
}

#[test]
fn a_handler_of_the_c_library_hears_todays_opcode_in_every_interface() {
    for abi in Abi::ALL {
        let (registry, heard) = (Registry::new(), Log::default());
        let log = heard.clone();
        let note = move |request: Request<'_>| {
            log.note(request.opcode());
            Ok(hostcall::Handling::Done)
        };
        registry.register_class(libc::opcode::CLASS, note).unwrap();
        let server = server(&registry).abi(abi).build().unwrap();
        let mut said = Vec::new();
        for &(opcode, name) in libc::opcode::ALL {
            match server.client().notify(opcode, LaneMask(1), |_| 0u64) {
                Ok(()) => said.push(opcode),
                Err(error) => assert_eq!(error, ClientError::Unspeakable(opcode), "{abi}: {name}"),
            }
            settle(&server);
        }
        assert!(said.len() >= 12, "{abi}: {} opcodes", said.len());
        assert_eq!(heard.entries(), said, "{abi}");
        assert_eq!(server.stats().unknown_opcodes, 0);
    }
}

#[test]
fn a_program_prints_and_exits_in_every_interface() {
    for abi in Abi::ALL {
        let registry = Registry::new();
        let (services, printed) = common::printing(&registry);
        let server = server(&registry).abi(abi).lanes(4).owning(services).build().unwrap();
        let texts = ["zero ", "one ", "two ", "three "];
        play(&server, async {
            let client = server.client();
            let opened = client.open_async(libc::opcode::WRITE_TO_STDERR, LaneMask(0b1011)).await?;
            let text = |lane: u32| texts[lane as usize].as_bytes();
            let mut written = Vec::new();
            let mut port = opened.send_stream_async(text).await?;
            port.recv_async(|lane| written.push(lane.word(0))).await?;
            assert_eq!(written, [5, 4, 6]);
            drop(port);
            let opened = client.open_async(libc::opcode::EXIT, LaneMask(0b1010)).await?;
            let mut port = opened.send(|_| ());
            port.recv_async(|_| ()).await?;
            port.send_async(|lane| lane.set_word(0, 10 + u64::from(lane.index()))).await
        })
        .unwrap();
        settle(&server);
        assert_eq!(printed.contents(), b"zero one three ", "{abi}");
        let exit = server.exit_request().unwrap();
        assert_eq!((exit.status, exit.lane, exit.aborted), (11, 1, false), "{abi}");
        assert_nothing_in_flight(&server);
    }
}

#[test]
fn what_an_interface_cannot_say_is_refused_before_a_port_is_taken() {
    let server = server(&Registry::new()).abi(Abi::Llvm19).ports(1).build().unwrap();
    let own = Opcode::new(b'x', 1);
    let refused = server.client().notify(own, LaneMask(1), |_| 0u64);
    assert_eq!(refused, Err(ClientError::Unspeakable(own)));
    assert_all_ports_free(&server);
}

#[test]
fn lanes_beyond_the_width_are_cut_off_by_the_client() {
    let (registry, notes) = squares();
    let server = server(&registry).lanes(2).build().unwrap();
    let opened = server.client().try_open(B, LaneMask(u64::MAX)).unwrap().unwrap();
    opened.send(|lane| lane.set_word(0, 7)).close();
    settle(&server);
    assert_eq!(notes.entries(), [(0, 7), (1, 7)]);
}

/// Writes the mask of a port's header as a device may, whatever the lane width.
fn write_mask(ledger: &Ledger, server: &Server<impl SharedAllocator + 'static>, mask: u64) {
    let layout = server.layout();
    let header = (layout.header_offset(0) - layout.packets_offset()) / 8;
    if layout.abi() == Abi::Hostcall {
        let tag = ledger.word(Purpose::Packets, header + 3) as u32;
        ledger.set_word(Purpose::Packets, header + 3, mask << 32 | u64::from(tag));
    } else {
        ledger.set_word(Purpose::Packets, header, mask);
    }
}

#[test]
fn lanes_beyond_the_width_are_cut_off_by_the_server() {
    for abi in Abi::ALL {
        for (raw, lanes) in [(u64::MAX, &[0, 1][..]), (0b1110, &[1]), (1 << 63, &[]), (0, &[])] {
            let (registry, notes) = squares();
            let ledger = Ledger::default();
            let builder = Server::builder(ledger.allocator()).registry(&registry).abi(abi);
            let server = builder.ports(1).lanes(2).build().unwrap();
            server.client().notify(B, LaneMask(0b11), |lane| 7 + u64::from(lane)).unwrap();
            write_mask(&ledger, &server, raw);
            settle(&server);
            // Our own wire's messages lie by rank: the first active lane has what the first one sent.
            let place = |(rank, lane): (u64, u32)| match abi {
                Abi::Hostcall => (lane, 7 + rank),
                _ => (lane, 7 + u64::from(lane)),
            };
            let expected: Vec<_> = (0..).zip(lanes.iter().copied()).map(place).collect();
            assert_eq!(notes.entries(), expected, "{abi}, mask {raw:#x}");
            assert_nothing_in_flight(&server);
            assert_all_ports_free(&server);
        }
    }
}

#[test]
fn a_call_without_lanes_is_answered_and_its_port_freed() {
    let (registry, _) = squares();
    registry.bytes(C, |_, bytes| bytes).unwrap();
    let server = server(&registry).ports(1).build().unwrap();
    play(&server, async {
        let client = server.client();
        client.call_async(A, LaneMask::EMPTY, |_| 1u64, |_, _: u64| panic!("no lane")).await?;
        let opened = client.open_async(C, LaneMask::EMPTY).await?;
        let mut port = opened.send_stream_async(|_| panic!("no lane")).await?;
        port.recv_stream_async(|_, _, _| panic!("no lane")).await
    })
    .unwrap();
    assert_eq!(assert_nothing_in_flight(&server).completed, 2);
    assert_all_ports_free(&server);
}

#[test]
fn inactive_lanes_are_left_as_they_are() {
    let (registry, _) = squares();
    let server = server(&registry).ports(1).lanes(4).build().unwrap();
    let channel = server.client().channel();
    for lane in 0..4 {
        channel.lane(0, lane).set_bytes(&[0xee; 64]);
    }
    let mask = LaneMask(0b0101);
    play(&server, server.client().call_async(A, mask, |_| 5u64, |_, _: u64| ())).unwrap();
    let words = [0, 1, 2, 3].map(|lane| channel.lane(0, lane).word(0));
    let untouched = 0xeeee_eeee_eeee_eeee;
    assert_eq!(words, [25, untouched, 25, untouched]);
}

#[test]
fn a_drain_serves_what_clients_sent_and_did_not_wait_for() {
    let (registry, notes) = squares();
    let server = server(&registry).ports(8).build().unwrap();
    for n in 0..8 {
        server.client().notify(B, LaneMask(1), |_| n).unwrap();
    }
    let drained = server.drain().unwrap();
    assert_eq!((drained.served, drained.unfinished), (8, 0));
    assert_eq!(notes.len(), 8);
    assert_all_ports_free(&server);
}

#[test]
fn a_drain_says_how_many_wait_for_a_device_that_says_nothing_more() {
    let registry = Registry::new();
    registry.conversation(A, async |mut call| Ok(call.recv_stream().await.map(|_| ())?)).unwrap();
    let server = server(&registry).build().unwrap();
    for _ in 0..3 {
        server.client().notify(A, LaneMask(1), |_| 1000u64).unwrap();
    }
    let drained = server.drain().unwrap();
    assert_eq!((drained.served, drained.unfinished), (3, 3));
    assert_eq!(server.stats().in_flight(), 3);
}

#[test]
fn a_notification_blocks_its_port_until_it_is_served() {
    let (registry, _) = squares();
    let server = server(&registry).ports(1).build().unwrap();
    let client = server.client();
    client.notify(B, LaneMask(1), |_| 1u64).unwrap();
    assert!(client.try_open(B, LaneMask(1)).unwrap().is_none());
    assert_eq!(server.poll().unwrap(), 1);
    assert!(client.try_open(B, LaneMask(1)).unwrap().is_some());
}

#[test]
fn the_try_forms_never_wait() {
    let (registry, _) = squares();
    let server = server(&registry).ports(1).build().unwrap();
    let client = server.client();
    let opened = client.try_open(A, LaneMask(1)).unwrap().unwrap();
    assert!(client.try_open(A, LaneMask(1)).unwrap().is_none(), "its only port is taken");
    let mut port = opened.send(|lane| lane.set_word(0, 9));
    assert_eq!(port.try_recv(|_| panic!("not there")), Poll::Pending);
    assert_eq!(port.try_send(|_| panic!("not its turn")), Poll::Pending);
    assert_eq!(server.poll().unwrap(), 1);
    let mut reply = 0;
    assert_eq!(port.try_recv(|lane| reply = lane.word(0)), Poll::Ready(()));
    assert_eq!((reply, port.status()), (81, None));
    port.close();
    assert!(client.try_open(A, LaneMask(1)).unwrap().is_some());
}

#[test]
fn the_blocking_forms_wait_for_a_server_on_another_thread() {
    let (registry, notes) = squares();
    registry.bytes(C, |_, bytes| bytes.into_iter().rev().collect()).unwrap();
    let server = server(&registry).ports(1).build().unwrap();
    served(&server, || {
        let client = server.client();
        for n in 0..1000 {
            let mut reply = 0;
            client.call(A, LaneMask(1), |_| n, |_, r: u64| reply = r).unwrap();
            assert_eq!(reply, n * n);
            client.notify(B, LaneMask(1), |_| n).unwrap();
        }
        let message = common::pattern(0, 1000);
        let mut port = client.open(C, LaneMask(1)).unwrap().send_stream(|_| &message).unwrap();
        let mut echo = Vec::new();
        port.recv_stream(|_, _, part| echo.extend_from_slice(part)).unwrap();
        echo.reverse();
        assert_eq!(echo, message);
    });
    settle(&server);
    assert!(notes.entries().into_iter().eq((0..1000).map(|n| (0, n))), "in order");
    assert_nothing_in_flight(&server);
}

#[test]
fn a_call_on_a_server_that_shut_down_is_an_error_at_once() {
    let (registry, _) = squares();
    let server = server(&registry).build().unwrap();
    server.shutdown();
    let client = server.client();
    let gone = Err(ClientError::ServerGone);
    assert_eq!(client.call(A, LaneMask(1), |_| 1u64, |_, _: u64| ()), gone);
    assert_eq!(client.notify(B, LaneMask(1), |_| 1u64), gone);
    assert_eq!(client.open(A, LaneMask(1)).map(|_| ()), gone);
    assert_eq!(client.try_open(A, LaneMask(1)).map(|_| ()), gone);
    assert_eq!(play(&server, client.call_async(A, LaneMask(1), |_| 1u64, |_, _: u64| ())), gone);
}

#[test]
fn a_port_opened_before_the_shutdown_is_refused_after_it() {
    let (registry, _) = squares();
    let server = server(&registry).build().unwrap();
    let opened = server.client().try_open(A, LaneMask(1)).unwrap().unwrap();
    server.shutdown();
    let mut port = opened.send(|lane| lane.set_word(0, 9));
    settle(&server);
    assert_eq!(port.recv(|_| ()), Err(ClientError::Refused(Status::ShuttingDown)));
}

#[test]
fn more_warps_than_ports_all_finish() {
    let (registry, _) = squares();
    let server = server(&registry).ports(2).build().unwrap();
    served(&server, || {
        std::thread::scope(|scope| {
            for warp in 0..16u64 {
                let server = &server;
                scope.spawn(move || {
                    for n in 0..100 {
                        let (n, mut reply) = (100 * warp + n, 0);
                        let client = server.client();
                        client.call(A, LaneMask(1), |_| n, |_, r: u64| reply = r).unwrap();
                        assert_eq!(reply, n * n);
                    }
                });
            }
        });
    });
    assert_eq!(assert_nothing_in_flight(&server).completed, 1600);
    assert_all_ports_free(&server);
}

#[test]
fn two_polling_threads_serve_each_request_once() {
    let (registry, notes) = squares();
    let server = server(&registry).ports(64).shards(4).build().unwrap();
    assert_eq!(server.shards(), 4);
    served(&server, || {
        served(&server, || {
            std::thread::scope(|scope| {
                for warp in 0..4u64 {
                    let server = &server;
                    scope.spawn(move || {
                        for n in 0..500 {
                            let (n, mut reply) = (1000 * warp + n, 0);
                            let client = server.client();
                            client.notify(B, LaneMask(1), |_| n).unwrap();
                            client.call(A, LaneMask(1), |_| n, |_, r: u64| reply = r).unwrap();
                            assert_eq!(reply, n * n);
                        }
                    });
                }
            });
        });
    });
    settle(&server);
    let mut heard = notes.entries();
    heard.sort_unstable();
    let said = (0..4).flat_map(|warp| (0..500).map(move |n| (0, 1000 * warp + n)));
    assert!(heard.into_iter().eq(said), "every notification once");
    assert_eq!(assert_nothing_in_flight(&server).completed, 4000);
}

#[test]
fn polling_threads_share_one_shard_without_serving_anything_twice() {
    let (registry, notes) = squares();
    let server = Arc::new(server(&registry).ports(16).build().unwrap());
    let done = Gate::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| poll_until(&server, || done.is_open()));
        }
        for n in 0..2000 {
            server.client().notify(B, LaneMask(1), |_| n).unwrap();
        }
        let mut last = server.client().open(A, LaneMask(1)).unwrap().send(|_| ());
        received(&mut last).unwrap();
        done.open();
    });
    settle(&server);
    let mut heard = notes.entries();
    heard.sort_unstable();
    assert!(heard.into_iter().eq((0..2000).map(|n| (0, n))));
}

#[test]
fn one_pass_serves_every_port_however_busy_the_low_ones_are() {
    let (registry, notes) = squares();
    let server = server(&registry).ports(64).build().unwrap();
    let client = server.client().starting_at(0);
    let mut served = [0; 64];
    for _ in 0..50 {
        // All ports want something in each pass; the low ones again at once.
        let calls = std::iter::from_fn(|| client.try_open(A, LaneMask(1)).unwrap());
        let mut calls: Vec<_> = calls.map(|port| port.send(|lane| lane.set_word(0, 3))).collect();
        assert_eq!(calls.len(), 64);
        assert_eq!(server.poll().unwrap(), 64);
        for port in &mut calls {
            assert_eq!(received(port), Ok(9));
            served[port.index() as usize] += 1;
        }
    }
    assert_eq!((served, notes.len()), ([50; 64], 0));
}

#[test]
fn a_handler_that_always_has_more_to_do_leaves_the_other_ports_their_turn() {
    let (registry, _) = squares();
    registry
        .conversation(C, async |mut call| {
            call.recv(|_| ()).await?;
            for _ in 0..1000 {
                futures_lite::future::yield_now().await;
            }
            Ok(())
        })
        .unwrap();
    let server = server(&registry).ports(8).build().unwrap();
    for _ in 0..7 {
        server.client().notify(C, LaneMask(1), |_| ()).unwrap();
    }
    server.poll().unwrap();
    assert_eq!(server.stats().in_flight(), 7);
    for _ in 0..100 {
        let opened = server.client().try_open(A, LaneMask(1)).unwrap().unwrap();
        let mut port = opened.send(|lane| lane.set_word(0, 3));
        assert_eq!(server.poll().unwrap(), 7 + 1);
        assert_eq!(received(&mut port), Ok(9), "in the very next pass");
    }
    settle(&server);
    assert_nothing_in_flight(&server);
}
