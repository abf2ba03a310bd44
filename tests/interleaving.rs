//! Conversations side by side: none holds up another, none hangs for ever.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    A, B, C, Gate, Held, Log, assert_all_ports_free, assert_nothing_in_flight, is_ended, play,
    poll_until, served, server, settle,
};
use hostcall::{
    CallError, Cause, ClientError, ClientPort, HandlerError, LaneMask, ManualClock, Registry,
    Server, SharedAllocator, Status, WaitingFor,
};

const ONE: LaneMask = LaneMask(1);
const SECOND: Duration = Duration::from_secs(1);

fn answer<A: SharedAllocator + 'static>(
    server: &Server<A>,
    port: &mut ClientPort<'_>,
) -> Result<u64, ClientError> {
    play(server, async {
        let mut answer = 0;
        port.recv_async(|lane| answer = lane.word(0)).await?;
        Ok(answer)
    })
}

#[test]
fn a_long_stream_does_not_delay_a_call_on_another_port() {
    let registry = Registry::new();
    let log = Log::default();
    let (parts, calls) = (log.clone(), log.clone());
    registry
        .conversation(A, move |mut call| {
            let parts = parts.clone();
            async move {
                call.recv_stream_with(|_, remaining, _| parts.note(("part", remaining))).await?;
                parts.note(("stream ends", 0));
                Ok(())
            }
        })
        .unwrap();
    registry.unary(B, move |_, n: u64| calls.note(("call", n))).unwrap();
    let server = server(&registry).ports(2).build().unwrap();
    let message = vec![1; 100_000];
    play(&server, async {
        let client = server.client().starting_at(0);
        let streaming = async {
            let opened = client.open_async(A, ONE).await.unwrap();
            assert_eq!(opened.index(), 0);
            opened.send_stream_async(|_| &message).await.unwrap();
        };
        let calling = async {
            while log.len() < 10 {
                futures_lite::future::yield_now().await;
            }
            for n in 0..3 {
                client.call_async(B, ONE, |_| n, |_, (): ()| ()).await.unwrap();
            }
        };
        futures_lite::future::zip(streaming, calling).await;
    });
    settle(&server);
    let events = log.entries();
    let at = |event| events.iter().position(|&other| other == event).unwrap();
    let calls = [0, 1, 2].map(|n| at(("call", n)));
    assert!(calls[0] < calls[1] && calls[1] < calls[2]);
    assert!(calls[2] < 30, "all calls were answered within a few packets of the stream: {calls:?}");
    assert_eq!(at(("stream ends", 0)), events.len() - 1);
    assert_nothing_in_flight(&server);
}

/// A server whose handler of `A` receives a stream while it holds something.
fn streaming()
-> (Server<hostcall::backend::host::HostAllocator>, Arc<ManualClock>, Held, Log<String>) {
    let registry = Registry::new();
    let held = Held::default();
    let holder = held.clone();
    registry
        .conversation(A, move |mut call| {
            let holding = holder.hold();
            async move {
                let _holding = holding;
                let message = call.recv_stream().await?;
                call.send(|lane| lane.set_word(0, message.get(0).map_or(0, <[u8]>::len) as u64))
                    .await?;
                Ok(())
            }
        })
        .unwrap();
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let (clock, errors) = (Arc::new(ManualClock::default()), Log::default());
    let server = server(&registry)
        .ports(4)
        .clock(clock.clone())
        .device_deadline(SECOND)
        .on_error(errors.hook())
        .build()
        .unwrap();
    (server, clock, held, errors)
}

/// A client that has sent the first packet of a stream of `length` bytes and stopped there.
fn stopped_mid_stream<A: SharedAllocator + 'static>(
    server: &Server<A>,
    length: u64,
) -> ClientPort<'_> {
    let client = server.client().starting_at(0);
    let opened = client.try_open(common::A, ONE).unwrap().unwrap();
    let port = opened.send(|lane| lane.set_word(0, length));
    settle(server);
    port
}

#[test]
fn a_client_that_stops_mid_stream_does_not_stop_the_others() {
    let (server, _, held, _) = streaming();
    let _stopped = stopped_mid_stream(&server, 1000);
    play(&server, async {
        for n in 0..100 {
            let mut reply = 0;
            server.client().call_async(B, ONE, |_| n, |_, r: u64| reply = r).await.unwrap();
            assert_eq!(reply, n + 1);
            let opened = server.client().open_async(A, ONE).await.unwrap();
            let mut port = opened.send_stream_async(|_| &[0; 200]).await.unwrap();
            port.recv_async(|lane| assert_eq!(lane.word(0), 200)).await.unwrap();
        }
    });
    let [conversation] = server.conversations()[..] else { panic!("one is in flight") };
    assert_eq!((conversation.opcode, conversation.port), (A, 0));
    assert_eq!((conversation.lanes, conversation.waiting_for), (ONE, WaitingFor::Device));
    assert_eq!((held.count(), server.stats().in_flight()), (1, 1));
}

#[test]
fn after_its_deadline_a_stopped_conversation_is_gone_with_all_that_it_held() {
    let (server, clock, held, errors) = streaming();
    let _stopped = stopped_mid_stream(&server, 1000);
    clock.advance(SECOND / 2);
    settle(&server);
    assert_eq!((held.count(), server.stats().expired), (1, 0), "not before its deadline");
    assert_eq!(server.conversations()[0].age, SECOND / 2);
    clock.advance(SECOND / 2);
    settle(&server);
    assert_eq!(held.count(), 0);
    assert_eq!(assert_nothing_in_flight(&server).expired, 1);
    assert_eq!(
        errors.entries(),
        [format!("opcode {A} on port 0: no progress for 1s while waiting for the device")]
    );
    let first = server.first_error().unwrap();
    assert_eq!((first.opcode, first.port), (A, 0));
    assert!(matches!(
        first.cause,
        Cause::DeadlineExpired { waited: SECOND, on: WaitingFor::Device }
    ));
}

#[test]
fn each_packet_of_a_slow_client_moves_its_deadline() {
    let (server, clock, held, _) = streaming();
    let mut slow = stopped_mid_stream(&server, 56 + 64 * 10);
    for _ in 0..10 {
        clock.advance(SECOND * 9 / 10);
        settle(&server);
        assert!(slow.try_send(|_| ()).is_ready());
        settle(&server);
    }
    assert_eq!(answer(&server, &mut slow), Ok(56 + 64 * 10));
    assert_eq!((held.count(), assert_nothing_in_flight(&server).expired), (0, 0));
}

#[test]
fn a_port_serves_again_once_its_late_client_follows_the_protocol() {
    let (server, clock, _, errors) = streaming();
    let mut late = stopped_mid_stream(&server, 56 + 64 * 5);
    clock.advance(SECOND);
    settle(&server);
    for packet in 1..=5 {
        assert!(late.try_send(|lane| lane.set_word(0, packet)).is_ready());
        settle(&server);
        assert_eq!(server.stats().strays, packet);
    }
    assert_eq!(answer(&server, &mut late), Err(ClientError::Refused(Status::DeadlineExpired)));
    assert_eq!(late.status(), Some(Status::DeadlineExpired));
    late.close();
    let client = server.client().starting_at(0);
    let opened = client.try_open(B, ONE).unwrap().unwrap();
    assert_eq!(opened.index(), 0, "the same port");
    assert_eq!(answer(&server, &mut opened.send(|lane| lane.set_word(0, 41))), Ok(42));
    assert_eq!(errors.len(), 1, "reported once");
    assert_nothing_in_flight(&server);
    assert_all_ports_free(&server);
}

#[test]
fn a_late_client_that_gives_up_frees_its_port_with_its_last_packet() {
    let (server, clock, _, _) = streaming();
    let mut late = stopped_mid_stream(&server, 1000);
    clock.advance(SECOND);
    settle(&server);
    assert!(late.try_send(|_| ()).is_ready());
    late.close();
    settle(&server);
    assert_all_ports_free(&server);
}

/// A server whose handler of `A` waits at a gate for ever, holding something.
fn waiting_at_a_gate(
    limit: Option<Duration>,
) -> (Server<hostcall::backend::host::HostAllocator>, Arc<ManualClock>, Held, Gate) {
    let registry = Registry::new();
    let (held, gate) = (Held::default(), Gate::default());
    let (holder, closed) = (held.clone(), gate.clone());
    registry
        .conversation(A, move |mut call| {
            let (holding, gate) = (holder.hold(), closed.clone());
            async move {
                let _holding = holding;
                let mut sum = 0;
                call.recv(|lane| sum += lane.word(0)).await?;
                gate.passed().await;
                call.send(|lane| lane.set_word(0, sum)).await?;
                Ok(())
            }
        })
        .unwrap();
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let clock = Arc::new(ManualClock::default());
    let builder = server(&registry).ports(4).clock(clock.clone()).device_deadline(SECOND);
    (builder.handler_deadline(limit).build().unwrap(), clock, held, gate)
}

#[test]
fn a_handler_that_waits_for_a_channel_does_not_stop_the_others() {
    let (server, _, _, gate) = waiting_at_a_gate(None);
    let opened = server.client().try_open(A, ONE).unwrap().unwrap();
    let mut waiting = opened.send(|lane| lane.set_word(0, 7));
    settle(&server);
    assert_eq!(server.conversations()[0].waiting_for, WaitingFor::Handler);
    play(&server, async {
        for n in 0..100 {
            server.client().call_async(B, ONE, |_| n, |_, _: u64| ()).await.unwrap();
        }
    });
    assert!(waiting.try_recv(|_| ()).is_pending());
    gate.open();
    assert_eq!(server.poll().unwrap(), 1, "the waker brought it back");
    assert_eq!(answer(&server, &mut waiting), Ok(7));
    assert_nothing_in_flight(&server);
}

#[test]
fn a_waker_of_another_thread_brings_a_handler_back() {
    let (server, _, _, gate) = waiting_at_a_gate(None);
    let opened = server.client().try_open(A, ONE).unwrap().unwrap();
    let mut waiting = opened.send(|lane| lane.set_word(0, 7));
    settle(&server);
    std::thread::spawn(move || gate.open()).join().unwrap();
    assert_eq!(answer(&server, &mut waiting), Ok(7));
}

#[test]
fn without_a_limit_a_handler_may_take_for_ever() {
    let (server, clock, held, gate) = waiting_at_a_gate(None);
    let opened = server.client().try_open(A, ONE).unwrap().unwrap();
    let mut waiting = opened.send(|lane| lane.set_word(0, 7));
    settle(&server);
    clock.advance(SECOND * 1_000_000);
    settle(&server);
    assert_eq!((held.count(), server.stats().expired), (1, 0));
    gate.open();
    assert_eq!(answer(&server, &mut waiting), Ok(7));
}

#[test]
fn a_handler_that_takes_too_long_is_dropped_and_its_client_told() {
    let (server, clock, held, gate) = waiting_at_a_gate(Some(3 * SECOND));
    let opened = server.client().try_open(A, ONE).unwrap().unwrap();
    let mut waiting = opened.send(|lane| lane.set_word(0, 7));
    settle(&server);
    clock.advance(2 * SECOND);
    settle(&server);
    assert_eq!(held.count(), 1, "the device's deadline is not the handler's");
    clock.advance(SECOND);
    settle(&server);
    assert_eq!(held.count(), 0);
    assert_eq!(answer(&server, &mut waiting), Err(ClientError::Refused(Status::DeadlineExpired)));
    let cause = server.first_error().unwrap().cause;
    assert!(matches!(cause, Cause::DeadlineExpired { on: WaitingFor::Handler, .. }), "{cause}");
    gate.open();
    drop(waiting);
    settle(&server);
    assert_nothing_in_flight(&server);
    assert_all_ports_free(&server);
}

#[test]
fn a_device_that_has_answered_is_not_late_while_the_handler_is_busy() {
    let registry = Registry::new();
    let gate = Gate::default();
    let closed = gate.clone();
    registry
        .conversation(A, move |mut call| {
            let gate = closed.clone();
            async move {
                call.recv(|_| ()).await?;
                call.send(|_| ()).await?;
                gate.passed().await;
                call.recv(|lane| lane.set_word(0, lane.word(0) + 1)).await?;
                Ok(())
            }
        })
        .unwrap();
    let clock = Arc::new(ManualClock::default());
    let server = server(&registry).clock(clock.clone()).device_deadline(SECOND).build().unwrap();
    let opened = server.client().try_open(A, ONE).unwrap().unwrap();
    let mut port = opened.send(|_| ());
    settle(&server);
    assert!(port.try_recv(|_| ()).is_ready());
    assert!(port.try_send(|lane| lane.set_word(0, 41)).is_ready());
    settle(&server);
    assert_eq!(server.conversations()[0].waiting_for, WaitingFor::Handler);
    for _ in 0..10 {
        clock.advance(SECOND);
        settle(&server);
    }
    gate.open();
    assert_eq!(answer(&server, &mut port), Ok(42));
    assert_eq!(assert_nothing_in_flight(&server).expired, 0);
}

#[test]
fn blocking_work_does_not_stop_the_others() {
    let registry = Registry::new();
    let gate = Gate::default();
    let closed = gate.clone();
    registry
        .conversation(A, move |mut call| {
            let gate = closed.clone();
            async move {
                let mut sum = 0;
                call.recv(|lane| sum += lane.word(0)).await?;
                let sum = call
                    .run_blocking(move || {
                        gate.pass_blocking();
                        sum + 1
                    })
                    .await;
                call.send(|lane| lane.set_word(0, sum)).await?;
                Ok(())
            }
        })
        .unwrap();
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let server = server(&registry).build().unwrap();
    let opened = server.client().try_open(A, ONE).unwrap().unwrap();
    let mut waiting = opened.send(|lane| lane.set_word(0, 7));
    play(&server, async {
        for n in 0..100 {
            server.client().call_async(B, ONE, |_| n, |_, _: u64| ()).await.unwrap();
        }
    });
    assert_eq!(server.conversations()[0].waiting_for, WaitingFor::Handler);
    gate.open();
    assert_eq!(answer(&server, &mut waiting), Ok(8));
    assert_nothing_in_flight(&server);
}

#[test]
fn handlers_in_the_blocking_style_serve_many_ports_at_a_time() {
    let registry = Registry::new();
    let (gate, arrived) = (Gate::default(), Log::default());
    let (closed, arriving) = (gate.clone(), arrived.clone());
    registry
        .blocking(A, move |mut call| {
            let mut sum = 0;
            for _ in 0..3 {
                call.recv(|lane| sum += lane.word(0))?;
            }
            arriving.note(call.call().port());
            closed.pass_blocking();
            call.send(|lane| lane.set_word(0, sum))?;
            let message = call.recv_stream()?;
            call.send_stream(|lane| message.get(lane).unwrap_or_default())?;
            Ok(())
        })
        .unwrap();
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let server = server(&registry).ports(8).build().unwrap();
    let client = server.client();
    let message = common::pattern(0, 1000);
    let talk = async |n: u64| {
        let mut port = client.open_async(A, ONE).await?.send(|lane| lane.set_word(0, n));
        port.send_async(|lane| lane.set_word(0, n)).await?;
        port.send_async(|lane| lane.set_word(0, n)).await?;
        port.recv_async(|lane| assert_eq!(lane.word(0), 3 * n)).await?;
        port.send_stream_async(|_| &message).await?;
        let mut echo = Vec::new();
        port.recv_stream_async(|_, _, part| echo.extend_from_slice(part)).await?;
        assert_eq!(echo, message);
        Ok::<_, ClientError>(())
    };
    play(&server, async {
        let others = async {
            while arrived.len() < 4 {
                client.call_async(B, ONE, |_| 1u64, |_, _: u64| ()).await?;
            }
            gate.open();
            Ok(())
        };
        let pair = |a, b| futures_lite::future::try_zip(talk(a), talk(b));
        let talks = futures_lite::future::try_zip(pair(1, 2), pair(3, 4));
        futures_lite::future::try_zip(talks, others).await
    })
    .unwrap();
    poll_until(&server, || server.stats().in_flight() == 0);
    assert_nothing_in_flight(&server);
}

#[test]
fn a_cancelled_blocking_handler_finds_its_call_ended_and_the_ports_next_conversation_whole() {
    let registry = Registry::new();
    let (begun, gate, ends) = (Gate::default(), Gate::default(), Log::<bool>::default());
    let (begin, closed, ending) = (begun.clone(), gate.clone(), ends.clone());
    registry
        .blocking(A, move |mut call| {
            call.recv(|_| ())?;
            begin.open();
            closed.pass_blocking();
            ending.note(is_ended(&call.recv(|_| panic!("not its packet"))));
            ending.note(is_ended(&call.send(|lane| lane.set_word(0, 666))));
            ending.note(is_ended(&call.recv_stream()));
            ending.note(is_ended(&call.send_stream(|_| &[6; 100])));
            Ok(())
        })
        .unwrap();
    registry
        .conversation(B, async |mut call| {
            let mut sum = 0;
            for _ in 0..2 {
                call.recv(|lane| sum += lane.word(0)).await?;
            }
            call.send(|lane| lane.set_word(0, sum)).await?;
            Ok(())
        })
        .unwrap();
    let clock = Arc::new(ManualClock::default());
    let server =
        server(&registry).ports(1).clock(clock.clone()).handler_deadline(SECOND).build().unwrap();
    let mut cancelled = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
    poll_until(&server, || begun.is_open());
    poll_until(&server, || {
        clock.advance(SECOND);
        server.stats().expired == 1
    });
    let refused = Err(ClientError::Refused(Status::DeadlineExpired));
    assert_eq!(answer(&server, &mut cancelled), refused);
    drop(cancelled);
    let opened = server.client().try_open(B, ONE).unwrap().unwrap();
    let mut next = opened.send(|lane| lane.set_word(0, 20));
    settle(&server);
    gate.open();
    poll_until(&server, || ends.len() == 4);
    assert_eq!(ends.entries(), [true; 4]);
    assert!(next.try_send(|lane| lane.set_word(0, 22)).is_ready());
    assert_eq!(answer(&server, &mut next), Ok(42));
    assert_nothing_in_flight(&server);
}

/// The device answers while the handler still runs its step, so the server's next look at the
/// mailbox finds it as it was.
#[test]
fn a_device_faster_than_the_handlers_step_is_not_forgotten() {
    let registry = Registry::new();
    let gates: [Gate; 3] = Default::default();
    let [replied, answered, again] = gates.clone();
    registry
        .conversation(A, move |mut call| {
            let (replied, answered) = (replied.clone(), answered.clone());
            async move {
                let mut sum = 0;
                call.recv(|lane| sum += lane.word(0)).await?;
                call.send(|_| ()).await?;
                replied.open();
                // As a handler does that computes for a while.
                answered.pass_blocking();
                call.recv(|lane| sum += lane.word(0)).await?;
                call.recv(|lane| sum += lane.word(0)).await?;
                call.send(|lane| lane.set_word(0, sum)).await?;
                Ok(())
            }
        })
        .unwrap();
    registry.notification(B, move |_, (): ()| again.pass_blocking()).unwrap();
    let server = server(&registry).ports(2).build().unwrap();
    let [replied, answered, again] = gates;
    let client = server.client().starting_at(0);
    let mut port = client.try_open(A, ONE).unwrap().unwrap().send(|lane| lane.set_word(0, 1));
    // Served after port 0 in the same pass, which it keeps from ending.
    client.notify(B, ONE, |_| ()).unwrap();
    let sum = served(&server, || {
        replied.pass_blocking();
        port.recv(|_| ()).unwrap();
        port.send(|lane| lane.set_word(0, 20)).unwrap();
        answered.open();
        port.send(|lane| lane.set_word(0, 300)).unwrap();
        again.open();
        common::received(&mut port)
    });
    assert_eq!(sum, Ok(321));
}

/// As above, and the same port's next client is there before the server's next look.
#[test]
fn a_request_that_follows_a_fast_end_is_not_forgotten() {
    let registry = Registry::new();
    let gates: [Gate; 3] = Default::default();
    let [replied, answered, reopened] = gates.clone();
    registry
        .conversation(A, move |mut call| {
            let (replied, answered) = (replied.clone(), answered.clone());
            async move {
                call.recv(|_| ()).await?;
                call.send(|_| ()).await?;
                replied.open();
                answered.pass_blocking();
                Ok(call.recv(|_| ()).await?)
            }
        })
        .unwrap();
    let busy = reopened.clone();
    registry.notification(B, move |_, (): ()| busy.pass_blocking()).unwrap();
    registry.unary(C, |_, n: u64| n + 1).unwrap();
    let server = server(&registry).ports(2).build().unwrap();
    let [replied, answered, reopened] = gates;
    let client = server.client().starting_at(0);
    let opened = client.try_open(A, ONE).unwrap().unwrap();
    assert_eq!(opened.index(), 0);
    let mut port = opened.send(|_| ());
    // Served after port 0 in the same pass, which it keeps from ending.
    client.notify(B, ONE, |_| ()).unwrap();
    let answer = served(&server, || {
        replied.pass_blocking();
        port.recv(|_| ()).unwrap();
        port.send(|_| ()).unwrap();
        port.close();
        answered.open();
        let opened = client.open(C, ONE).unwrap();
        assert_eq!(opened.index(), 0);
        let mut port = opened.send(|lane| lane.set_word(0, 41));
        reopened.open();
        common::received(&mut port)
    });
    assert_eq!(answer, Ok(42));
}

#[test]
fn a_blocking_handler_loses_no_packet_between_the_servers_looks() {
    let registry = Registry::new();
    let (taken, sent) = (Log::default(), Log::default());
    let (take, send) = (taken.clone(), sent.clone());
    registry
        .blocking(A, move |mut call| {
            for n in 0..3u64 {
                call.recv(|lane| assert_eq!(lane.word(0), n))?;
                take.note(());
                if n == 0 {
                    call.send(|_| ())?;
                    // Reads what comes next without a look of the server's.
                    while send.len() == 0 {
                        std::thread::yield_now();
                    }
                }
            }
            call.send(|lane| lane.set_word(0, 42))?;
            Ok(())
        })
        .unwrap();
    let server = server(&registry).build().unwrap();
    let opened = server.client().try_open(A, ONE).unwrap().unwrap();
    let mut port = opened.send(|lane| lane.set_word(0, 0));
    // One pass begins the conversation; the next one comes when both packets have been sent.
    assert_eq!(server.poll().unwrap(), 1);
    port.recv(|_| ()).unwrap();
    port.send(|lane| lane.set_word(0, 1)).unwrap();
    sent.note(());
    port.send(|lane| lane.set_word(0, 2)).unwrap();
    assert_eq!(answer(&server, &mut port), Ok(42));
    assert_eq!(taken.len(), 3);
}

#[test]
fn work_after_a_reply_keeps_its_port_until_it_ends() {
    let (registry, gate, done) = (Registry::new(), Gate::default(), Log::default());
    let (closed, finish) = (gate.clone(), done.clone());
    registry
        .conversation(A, move |mut call| {
            let (gate, done) = (closed.clone(), finish.clone());
            async move {
                call.recv(|_| ()).await?;
                call.send(|lane| lane.set_word(0, 42)).await?;
                gate.passed().await;
                done.note(());
                Ok::<_, HandlerError>(())
            }
        })
        .unwrap();
    let server = server(&registry).ports(1).build().unwrap();
    let mut port = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
    assert_eq!(answer(&server, &mut port), Ok(42), "the reply goes out at once");
    drop(port);
    settle(&server);
    assert_eq!(server.stats().in_flight(), 1);
    gate.open();
    settle(&server);
    assert_eq!((done.len(), assert_nothing_in_flight(&server).completed), (1, 1));
}

#[test]
fn a_call_kept_beyond_its_conversation_is_ended() {
    let registry = Registry::new();
    let kept = Arc::new(parking_lot::Mutex::new(None));
    let keep = kept.clone();
    registry
        .register(A, move |request: hostcall::Request<'_>| {
            *keep.lock() = Some(request.detach());
            Ok(hostcall::Handling::Done)
        })
        .unwrap();
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let server = server(&registry).ports(1).build().unwrap();
    server.client().notify(A, ONE, |_| 0u64).unwrap();
    settle(&server);
    let mut call = kept.lock().take().unwrap();
    let opened = server.client().try_open(B, ONE).unwrap().unwrap();
    let mut next = opened.send(|lane| lane.set_word(0, 41));
    let kept = play(&server, call.send(|lane| lane.set_word(0, 666)));
    assert_eq!(kept, Err(CallError::Ended));
    assert_eq!(answer(&server, &mut next), Ok(42));
    drop(next);
    drop(server);
    assert_eq!(futures_lite::future::block_on(call.recv(|_| ())), Err(CallError::Ended));
}
