//! What goes wrong in one conversation: its client is released, it is counted and reported once, and
//! nobody else notices.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::error::Error;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use common::{
    A, B, C, Gate, Held, Holding, Log, assert_all_ports_free, assert_nothing_in_flight,
    in_finite_time, play, poll_until, server, settle,
};
use hostcall::backend::host::HostAllocator;
use hostcall::{
    Builder, Cause, ClientError, ClientPort, ConversationError, ErrorPolicy, HandlerError,
    Handling, LaneMask, OpcodeHandler, Registry, Request, Server, Stats, Status, StreamError,
};

const ONE: LaneMask = LaneMask(1);

/// A server of two ports whose opcode `A` fails somehow, and `B` answers; and what it reports.
fn failing(handler: impl OpcodeHandler) -> (Server<HostAllocator>, Log<String>) {
    let registry = Registry::new();
    registry.register(A, handler).unwrap();
    failing_of(&registry, |builder| builder)
}

fn failing_of(
    registry: &Registry,
    configure: impl FnOnce(Builder<HostAllocator>) -> Builder<HostAllocator>,
) -> (Server<HostAllocator>, Log<String>) {
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let errors = Log::default();
    let builder = server(registry).ports(2).lanes(4).on_error(errors.hook());
    (configure(builder).build().unwrap(), errors)
}

/// The client that calls `A` on port 0 with one packet, and what it gets.
fn call_it(server: &Server<HostAllocator>) -> Result<(), ClientError> {
    play(server, async {
        let client = server.client().starting_at(0);
        client.call_async(A, LaneMask(0b1010), |_| 7u64, |_, _: u64| ()).await
    })
}

fn finish(server: &Server<HostAllocator>, port: &mut ClientPort<'_>) -> Result<(), ClientError> {
    play(server, port.recv_async(|_| ()))
}

/// The server has forgotten the failure but for its counters.
fn assert_it_goes_on(server: &Server<HostAllocator>) -> Stats {
    for n in 0..10 {
        let mut reply = 0;
        play(server, server.client().call_async(B, ONE, |_| n, |_, r: u64| reply = r)).unwrap();
        assert_eq!(reply, n + 1);
    }
    assert_all_ports_free(server);
    assert_nothing_in_flight(server)
}

#[test]
fn an_immediate_handler_that_panics() {
    let (server, errors) = failing(|_: Request<'_>| panic!("at once"));
    assert_eq!(call_it(&server), Err(ClientError::Refused(Status::HandlerFailed)));
    assert_eq!(errors.entries(), [format!("opcode {A} on port 0: the handler panicked: at once")]);
    assert_eq!(assert_it_goes_on(&server).panics, 1);
}

#[test]
fn a_panic_after_the_conversation_was_detached() {
    let (server, errors) = failing(|request: Request<'_>| {
        let _call = request.detach();
        panic!("detached")
    });
    assert_eq!(call_it(&server), Err(ClientError::Refused(Status::HandlerFailed)));
    assert_eq!(errors.entries(), [format!("opcode {A} on port 0: the handler panicked: detached")]);
    assert_eq!(assert_it_goes_on(&server).panics, 1);
}

#[test]
fn a_panic_with_a_formatted_message_and_one_without_any() {
    let (server, errors) = failing(|request: Request<'_>| match request.mask().count() {
        1 => panic!("{} lane", 1),
        _ => std::panic::panic_any(7),
    });
    play(&server, server.client().call_async(A, ONE, |_| 0u64, |_, _: u64| ())).unwrap_err();
    call_it(&server).unwrap_err();
    let [formatted, other] = &errors.entries()[..] else { panic!("two errors") };
    assert!(formatted.ends_with("the handler panicked: 1 lane"), "{formatted}");
    assert!(other.ends_with("the handler panicked: a panic without a message"), "{other}");
}

fn conversation<F>(function: impl Fn(hostcall::Call) -> F + Send + Sync + 'static) -> Registry
where
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    let registry = Registry::new();
    registry.conversation(A, function).unwrap();
    registry
}

#[test]
fn an_async_handler_that_panics_in_its_first_step() {
    let registry = conversation(async |_| panic!("first step"));
    let (server, errors) = failing_of(&registry, |builder| builder);
    assert_eq!(call_it(&server), Err(ClientError::Refused(Status::HandlerFailed)));
    assert!(errors.entries()[0].ends_with("the handler panicked: first step"));
    assert_eq!(assert_it_goes_on(&server).panics, 1);
}

#[test]
fn an_async_handler_that_panics_later() {
    let held = Held::default();
    let holder = held.clone();
    let registry = conversation(move |mut call| {
        let holding = holder.hold();
        async move {
            let _holding = holding;
            call.recv(|_| ()).await?;
            call.recv(|_| ()).await?;
            panic!("later")
        }
    });
    let (server, errors) = failing_of(&registry, |builder| builder);
    let mut port = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
    settle(&server);
    assert_eq!(held.count(), 1);
    assert!(port.try_send(|_| ()).is_ready());
    assert_eq!(finish(&server, &mut port), Err(ClientError::Refused(Status::HandlerFailed)));
    drop(port);
    assert_eq!((held.count(), errors.len()), (0, 1), "its resources went with it");
    assert_eq!(assert_it_goes_on(&server).panics, 1);
}

#[test]
fn a_panic_in_the_midst_of_any_packet_releases_the_client() {
    for bad in 0..3 {
        let registry = conversation(move |mut call| async move {
            for packet in 0..3 {
                call.recv(|_| assert_ne!(packet, bad, "read")).await?;
            }
            Ok(())
        });
        let (server, errors) = failing_of(&registry, |builder| builder);
        let mut port = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
        settle(&server);
        for _ in 1..3 {
            assert!(port.try_send(|_| ()).is_ready());
            settle(&server);
        }
        assert_eq!(finish(&server, &mut port), Err(ClientError::Refused(Status::HandlerFailed)));
        drop(port);
        assert_eq!(errors.len(), 1, "packet {bad}");
        assert_eq!(assert_it_goes_on(&server).panics, 1);
    }
}

#[test]
fn a_panic_while_a_packet_is_filled_releases_the_client() {
    let registry = conversation(async |mut call| {
        call.recv(|_| ()).await?;
        call.send(|_| ()).await?;
        call.recv(|_| ()).await?;
        Ok(call.send(|_| panic!("fill")).await?)
    });
    let (server, errors) = failing_of(&registry, |builder| builder);
    let mut port = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
    assert_eq!(finish(&server, &mut port), Ok(()));
    assert!(port.try_send(|_| ()).is_ready());
    assert_eq!(finish(&server, &mut port), Err(ClientError::Refused(Status::HandlerFailed)));
    drop(port);
    assert_eq!(errors.len(), 1);
    assert_eq!(assert_it_goes_on(&server).panics, 1);
}

#[test]
fn a_panic_in_the_sink_of_a_stream_releases_the_client() {
    for bad in [1000, 1000 - 56, 1000 - 56 - 640] {
        let registry = conversation(move |mut call| async move {
            let sink = |_: u32, remaining, _: &[u8]| assert_ne!(remaining, bad, "sink");
            Ok(call.recv_stream_with(sink).await?)
        });
        let (server, errors) = failing_of(&registry, |builder| builder);
        let refused = play(&server, async {
            let opened = server.client().open_async(A, ONE).await?;
            opened.send_stream_async(|_| &[0; 1000]).await?.recv_async(|_| ()).await
        });
        assert_eq!(refused, Err(ClientError::Refused(Status::HandlerFailed)), "at {bad}");
        assert_eq!(errors.len(), 1, "at {bad}");
        assert_eq!(assert_it_goes_on(&server).panics, 1);
    }
}

/// Panics when it is dropped.
struct Bomb(#[expect(dead_code, reason = "dropped after the panic")] Holding);

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in drop")
    }
}

#[test]
fn a_future_that_panics_when_it_is_dropped() {
    let held = Held::default();
    let holder = held.clone();
    let registry = conversation(move |mut call| {
        let bomb = Bomb(holder.hold());
        async move {
            let _bomb = &bomb;
            call.recv(|_| ()).await?;
            Ok(call.recv(|_| ()).await?)
        }
    });
    let clock = Arc::new(hostcall::ManualClock::default());
    let deadline = Duration::from_secs(1);
    let (server, errors) =
        failing_of(&registry, |builder| builder.clock(clock.clone()).device_deadline(deadline));
    server.client().notify(A, ONE, |_| 0u64).unwrap();
    settle(&server);
    clock.advance(deadline);
    settle(&server);
    assert_eq!((held.count(), server.stats().expired), (0, 1), "the first cause counts");
    assert!(errors.entries()[0].contains("no progress for 1s"));
    // The same at the end of its work.
    let mut port = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
    settle(&server);
    assert!(port.try_send(|_| ()).is_ready());
    assert_eq!(finish(&server, &mut port), Err(ClientError::Refused(Status::HandlerFailed)));
    drop(port);
    assert_eq!(held.count(), 0);
    assert_eq!(server.stats().panics, 1);
    server.client().notify(A, ONE, |_| 0u64).unwrap();
    settle(&server);
    assert_eq!(held.count(), 1);
    drop(server);
    assert_eq!(held.count(), 0, "and when the server is dropped");
}

#[test]
fn work_on_the_pool_that_panics() {
    let registry = conversation(async |mut call| {
        call.recv(|_| ()).await?;
        let () = call.run_blocking(|| panic!("on the pool")).await;
        Ok(())
    });
    registry.blocking(C, |_| panic!("all on the pool")).unwrap();
    let (server, errors) = failing_of(&registry, |builder| builder);
    assert_eq!(call_it(&server), Err(ClientError::Refused(Status::HandlerFailed)));
    let blocking = play(&server, server.client().call_async(C, ONE, |_| 0u64, |_, _: u64| ()));
    assert_eq!(blocking, Err(ClientError::Refused(Status::HandlerFailed)));
    let errors = errors.entries();
    assert!(errors[0].ends_with("the handler panicked: on the pool"), "{errors:?}");
    assert!(errors[1].ends_with("the handler panicked: all on the pool"), "{errors:?}");
    assert_eq!(assert_it_goes_on(&server).panics, 2);
}

#[test]
fn an_error_names_opcode_port_and_lane_and_keeps_its_source() {
    let (server, errors) = failing(|request: Request<'_>| {
        let lane = request.mask().iter().last().unwrap();
        let error = std::io::Error::other("no paper");
        Err::<Handling, _>(HandlerError::new(error).at_lane(lane))
    });
    assert_eq!(call_it(&server), Err(ClientError::Refused(Status::HandlerFailed)));
    let error = server.first_error().unwrap();
    assert_eq!((error.opcode, error.port, error.lane), (A, 0, Some(3)));
    let text = format!("opcode {A} on port 0, lane 3: the handler failed: no paper");
    assert_eq!(error.to_string(), text);
    assert!(error.source().unwrap().is::<std::io::Error>());
    assert_eq!(errors.entries(), [text]);
    assert_eq!(assert_it_goes_on(&server).handler_errors, 1);
}

#[test]
fn an_error_of_an_async_handler_after_its_reply() {
    let registry = conversation(async |mut call| {
        call.recv(|_| ()).await?;
        call.send(|lane| lane.set_word(0, 42)).await?;
        Err(HandlerError::new("too late").at_lane(1))
    });
    let (server, errors) = failing_of(&registry, |builder| builder);
    assert_eq!(call_it(&server), Ok(()), "the reply went out before");
    assert_eq!(
        errors.entries(),
        [format!("opcode {A} on port 0, lane 1: the handler failed: too late")]
    );
    assert_eq!(assert_it_goes_on(&server).handler_errors, 1);
}

#[test]
fn a_stream_over_the_limit_names_its_lane() {
    let registry = conversation(async |mut call| Ok(call.recv_stream().await.map(|_| ())?));
    let (server, _) = failing_of(&registry, |builder| builder.stream_limit(1000));
    let messages = [400, 500, 0, 200].map(|length| vec![0; length]);
    let refused = play(&server, async {
        let opened = server.client().open_async(A, LaneMask(0b1111)).await?;
        let mut port = opened.send_stream_async(|lane| &messages[lane as usize]).await?;
        port.recv_async(|_| ()).await
    });
    assert_eq!(refused, Err(ClientError::Refused(Status::HandlerFailed)));
    let error = server.first_error().unwrap();
    assert_eq!((error.opcode, error.port, error.lane), (A, 0, Some(3)));
    let Cause::Handler(cause) = &error.cause else { panic!("{error}") };
    let cause = cause.get_ref().downcast_ref::<hostcall::CallError>();
    let too_long = StreamError::TooLong { lane: 3, length: 200, limit: 1000 };
    assert_eq!(cause, Some(&hostcall::CallError::Stream(too_long)));
    assert_it_goes_on(&server);
}

#[test]
fn a_handler_that_reads_too_little_ends_well_but_its_clients_next_packet_is_refused() {
    let (server, errors) = failing(|_: Request<'_>| Ok(Handling::Done));
    let client = server.client().starting_at(0);
    let mut port = client.try_open(A, ONE).unwrap().unwrap().send(|_| ());
    settle(&server);
    assert_eq!((server.stats().completed, errors.len()), (1, 0));
    for _ in 0..5 {
        assert!(port.try_send(|_| ()).is_ready());
        settle(&server);
    }
    assert_eq!(finish(&server, &mut port), Err(ClientError::Refused(Status::Protocol)));
    drop(port);
    let text = "the handler finished before it had read all that its client sent";
    assert_eq!(errors.entries(), [format!("opcode {A} on port 0: {text}")], "reported once");
    let stats = assert_it_goes_on(&server);
    assert_eq!((stats.failed(), stats.strays), (0, 5));
}

#[test]
fn a_packet_that_its_handler_left_unread_is_refused_when_the_handler_ends() {
    let gate = Gate::default();
    for outcome in [Ok(()), Err(HandlerError::new("changed its mind"))] {
        let (closed, end) = (gate.clone(), outcome.clone());
        let registry = conversation(move |mut call| {
            let (gate, outcome) = (closed.clone(), end.clone());
            async move {
                call.recv(|_| ()).await?;
                call.send(|_| ()).await?;
                gate.passed().await;
                outcome
            }
        });
        let (server, errors) = failing_of(&registry, |builder| builder);
        let mut port = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
        settle(&server);
        assert!(port.try_recv(|_| ()).is_ready());
        assert!(port.try_send(|_| ()).is_ready());
        settle(&server);
        gate.open();
        let refused = finish(&server, &mut port);
        drop(port);
        let status = outcome.map_or(Status::HandlerFailed, |()| Status::Protocol);
        assert_eq!(refused, Err(ClientError::Refused(status)));
        assert_eq!(errors.len(), 1);
        assert_it_goes_on(&server);
    }
}

#[test]
fn a_handler_that_reads_too_much_meets_the_ports_next_client_which_is_served() {
    let held = Held::default();
    let holder = held.clone();
    let registry = conversation(move |mut call| {
        let holding = holder.hold();
        async move {
            let _holding = holding;
            call.recv(|_| ()).await?;
            call.recv(|_| panic!("somebody else's packet")).await?;
            Ok(())
        }
    });
    let (server, errors) = failing_of(&registry, |builder| builder.ports(1));
    server.client().notify(A, ONE, |_| 7u64).unwrap();
    settle(&server);
    assert_eq!((held.count(), server.stats().in_flight()), (1, 1));
    let mut reply = 0;
    play(&server, server.client().call_async(B, ONE, |_| 41u64, |_, r: u64| reply = r)).unwrap();
    assert_eq!((reply, held.count()), (42, 0));
    let text = "the handler went on after its client had finished";
    assert_eq!(errors.entries(), [format!("opcode {A} on port 0: {text}")]);
    assert!(matches!(server.first_error().unwrap().cause, Cause::ReadTooMuch));
    assert_eq!(assert_it_goes_on(&server).read_too_much, 1);
}

#[test]
fn a_handler_that_has_not_returned_from_its_last_reply_has_done_well() {
    let gate = Gate::default();
    let opened = gate.clone();
    let registry = conversation(move |mut call| {
        let gate = opened.clone();
        async move {
            call.recv(|lane| lane.set_word(0, lane.word(0) + 1)).await?;
            call.send(|_| ()).await?;
            gate.passed().await;
            Ok(())
        }
    });
    let (server, errors) = failing_of(&registry, |builder| builder.ports(1));
    let mut replies = Vec::new();
    for number in 0..3u64 {
        play(&server, server.client().call_async(A, ONE, |_| number, |_, r: u64| replies.push(r)))
            .unwrap();
    }
    assert_eq!(replies, [1, 2, 3]);
    assert_eq!(errors.len(), 0);
    assert_eq!((server.stats().completed, server.stats().read_too_much), (2, 0));
    assert_it_goes_on(&server);
}

#[test]
fn a_call_of_an_opcode_nobody_knows() {
    let (server, errors) = failing_of(&Registry::new(), |builder| builder);
    let mut read = 0;
    let refused = play(&server, async {
        let client = server.client().starting_at(0);
        client.call_async(A, LaneMask(0b1111), |_| 7u64, |_, _: u64| read += 1).await
    });
    assert_eq!(refused, Err(ClientError::Refused(Status::UnknownOpcode)));
    assert_eq!(read, 0, "there is no reply to read");
    assert_eq!(errors.entries(), [format!("opcode {A} on port 0: no handler is registered")]);
    assert_eq!(assert_it_goes_on(&server).unknown_opcodes, 1);
}

#[test]
fn the_packets_of_a_refused_call_are_cleared_for_clients_that_do_not_look() {
    let (server, _) = failing_of(&Registry::new(), |builder| builder);
    let opened = server.client().try_open(A, LaneMask(0b0110)).unwrap().unwrap();
    let mut port = opened.send(|lane| lane.set_bytes(&[0xff; 64]));
    settle(&server);
    let mut packets = Vec::new();
    assert!(port.try_recv(|lane| packets.push((lane.index(), lane.load()))).is_ready());
    assert_eq!(packets, [(1, hostcall::Packet::default()), (2, hostcall::Packet::default())]);
}

#[test]
fn a_notification_of_an_opcode_nobody_knows() {
    let (server, errors) = failing_of(&Registry::new(), |builder| builder);
    for _ in 0..10 {
        server.client().notify(A, ONE, |_| 7u64).unwrap();
        settle(&server);
    }
    assert_eq!(errors.len(), 10);
    assert_eq!(assert_it_goes_on(&server).unknown_opcodes, 10);
}

#[test]
fn a_stream_to_an_opcode_nobody_knows_is_counted_once_and_reported_once() {
    let (server, errors) = failing_of(&Registry::new(), |builder| builder);
    let message = [7; 56 + 64 * 20];
    let refused = play(&server, async {
        let opened = server.client().open_async(A, ONE).await?;
        opened.send_stream_async(|_| &message).await?.recv_async(|_| ()).await
    });
    assert_eq!(refused, Err(ClientError::Refused(Status::UnknownOpcode)));
    assert_eq!(errors.len(), 1);
    let stats = assert_it_goes_on(&server);
    assert_eq!((stats.unknown_opcodes, stats.strays, stats.accepted), (1, 20, 11));
}

#[test]
fn a_stream_cut_off_by_its_handler_gives_the_client_nothing_that_was_not_sent() {
    let registry = conversation(async |mut call| {
        call.recv(|_| ()).await?;
        // Announces more than it sends.
        call.send(|lane| {
            lane.set_bytes(&[7; 64]);
            lane.set_word(0, 1000);
        })
        .await?;
        Err(HandlerError::new("no more"))
    });
    let (server, _) = failing_of(&registry, |builder| builder);
    let mut message = Vec::new();
    let refused = play(&server, async {
        let mut port = server.client().open_async(A, ONE).await?.send(|_| ());
        port.recv_stream_async(|_, _, part| message.extend_from_slice(part)).await
    });
    assert_eq!(refused, Err(ClientError::Refused(Status::HandlerFailed)));
    assert_eq!(message, [7; 56]);
    assert_eq!(assert_it_goes_on(&server).strays, 1, "the client stops at the first refusal");
}

#[test]
fn under_the_stop_policy_the_first_failure_ends_the_service() {
    let (server, errors) = {
        let registry = Registry::new();
        registry.register(A, |_: Request<'_>| panic!("fatal")).unwrap();
        failing_of(&registry, |builder| builder.error_policy(ErrorPolicy::Stop))
    };
    let client = server.client();
    client.notify(B, ONE, |_| 1u64).unwrap();
    assert_eq!(server.poll().unwrap(), 1, "all is well until then");
    let mut failed = client.open(A, ONE).unwrap().send(|_| ());
    let error = server.poll().unwrap_err();
    assert_eq!((error.opcode, error.cause.status()), (A, Status::HandlerFailed));
    assert!(failed.try_recv(|_| ()).is_ready(), "its client was released");
    assert_eq!(client.notify(B, ONE, |_| 1u64), Err(ClientError::ServerGone), "is told");
    for _ in 0..3 {
        assert_eq!(server.poll().unwrap_err().opcode, A, "the same error from then on");
        assert_eq!(server.drain().unwrap_err().opcode, A);
    }
    assert_eq!((server.stats().accepted, errors.len()), (2, 1), "nothing more was served");
}

#[test]
fn the_first_error_stays_the_first() {
    let (server, errors) = failing_of(&Registry::new(), |builder| builder);
    assert!(server.first_error().is_none());
    for opcode in [C, A, C] {
        server.client().notify(opcode, ONE, |_| 0u64).unwrap();
        settle(&server);
        assert_eq!(server.first_error().unwrap().opcode, C);
    }
    assert_eq!(errors.len(), 3);
}

#[test]
fn a_hook_that_panics_harms_nobody() {
    let registry = Registry::new();
    registry.unary(B, |_, n: u64| n + 1).unwrap();
    let server = server(&registry)
        .ports(2)
        .on_error(|_: &ConversationError| panic!("hook"))
        .build()
        .unwrap();
    for _ in 0..3 {
        let refused = play(&server, server.client().call_async(A, ONE, |_| 0u64, |_, (): ()| ()));
        assert_eq!(refused, Err(ClientError::Refused(Status::UnknownOpcode)));
    }
    assert_eq!(server.first_error().unwrap().opcode, A);
    assert_eq!(assert_it_goes_on(&server).unknown_opcodes, 3);
}

/// A server that its own handlers and hooks can reach.
#[derive(Clone, Default)]
struct Itself(Arc<OnceLock<Weak<Server<HostAllocator>>>>);

impl Itself {
    fn get(&self) -> Arc<Server<HostAllocator>> {
        self.0.get().and_then(Weak::upgrade).expect("the server lives")
    }

    fn is(&self, server: Server<HostAllocator>) -> Arc<Server<HostAllocator>> {
        let server = Arc::new(server);
        self.0.set(Arc::downgrade(&server)).expect("once");
        server
    }
}

#[test]
fn hooks_and_handlers_may_ask_the_server_anything() {
    in_finite_time(|| {
        let (registry, itself) = (Registry::new(), Itself::default());
        let ask = |itself: &Itself| {
            let server = itself.get();
            assert_eq!(server.poll().unwrap(), 0, "its ports are being served");
            assert_eq!(server.conversations(), []);
            let (stats, first) = (server.stats(), server.first_error());
            server.wake();
            (stats.accepted, first.map(|error| error.opcode), server.drain().unwrap().served)
        };
        let asked = Log::default();
        let (hook, hook_log) = (itself.clone(), asked.clone());
        let (handler, handler_log) = (itself.clone(), asked.clone());
        registry.notification(B, move |_, (): ()| handler_log.note(ask(&handler))).unwrap();
        let builder = server(&registry).on_error(move |_| hook_log.note(ask(&hook)));
        let server = itself.is(builder.build().unwrap());
        server.client().notify(B, ONE, |_| ()).unwrap();
        settle(&server);
        server.client().notify(A, ONE, |_| ()).unwrap();
        settle(&server);
        assert_eq!(asked.entries(), [(1, None, 0), (2, Some(A), 0)]);
    });
}

#[test]
fn a_shutdown_releases_clients_whose_handlers_are_at_work() {
    let (gate, held) = (Gate::default(), Held::default());
    let holder = held.clone();
    let registry = conversation(move |mut call| {
        let (gate, holding) = (gate.clone(), holder.hold());
        async move {
            let _holding = holding;
            call.recv(|_| ()).await?;
            gate.passed().await;
            Ok(())
        }
    });
    let (server, errors) = failing_of(&registry, |builder| builder);
    let mut port = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
    settle(&server);
    assert_eq!(server.stats().in_flight(), 1);
    server.shutdown();
    assert_eq!(port.recv(|_| ()), Err(ClientError::Refused(Status::ShuttingDown)));
    assert_eq!(held.count(), 0);
    assert_eq!(errors.entries(), [format!("opcode {A} on port 0: the server shut down")]);
    assert_eq!(assert_nothing_in_flight(&server).shut_down, 1);
    let mut after = server.client();
    assert_eq!(after.open(B, ONE).map(|_| ()), Err(ClientError::ServerGone));
    after = server.client().starting_at(1);
    assert_eq!(after.notify(B, ONE, |_| 1u64), Err(ClientError::ServerGone));
}

#[test]
fn a_shutdown_ends_the_waits_of_clients_whose_turn_comes_never() {
    let registry = conversation(async |mut call| {
        for _ in 0..1000 {
            call.recv(|_| ()).await?;
        }
        Ok(())
    });
    let (server, _) = failing_of(&registry, |builder| builder);
    let client = server.client();
    // Sent and not served, in the middle of a conversation, and opened but silent.
    let mut mid = client.try_open(A, ONE).unwrap().unwrap().send(|_| ());
    settle(&server);
    let mut unserved = client.try_open(B, ONE).unwrap().unwrap().send(|_| ());
    server.shutdown();
    assert_eq!(unserved.recv(|_| ()), Err(ClientError::ServerGone));
    assert_eq!(mid.send(|_| ()), Ok(()), "the client's own turn");
    assert_eq!(mid.recv(|_| ()), Err(ClientError::ServerGone));
    settle(&server);
    assert_eq!(mid.recv(|_| ()), Err(ClientError::Refused(Status::ShuttingDown)));
    assert_eq!(unserved.recv(|_| ()), Err(ClientError::Refused(Status::ShuttingDown)));
    assert_eq!(assert_nothing_in_flight(&server).shut_down, 2);
}

#[test]
fn a_shutdown_from_inside_a_handler() {
    in_finite_time(|| {
        let (registry, itself) = (Registry::new(), Itself::default());
        let handler = itself.clone();
        registry.unary(A, move |_, n: u64| (handler.get().shutdown(), n + 1).1).unwrap();
        registry
            .conversation(C, async |mut call| {
                loop {
                    call.recv(|_| ()).await?;
                }
            })
            .unwrap();
        let server = itself.is(server(&registry).build().unwrap());
        let client = server.client();
        let _mid = client.try_open(C, ONE).unwrap().unwrap().send(|_| ());
        settle(&server);
        let mut last = client.try_open(A, ONE).unwrap().unwrap().send(|lane| lane.set_word(0, 41));
        settle(&server);
        assert_eq!(common::received(&mut last), Ok(42), "the handler finished its work");
        let stats = assert_nothing_in_flight(&server);
        assert_eq!((stats.completed, stats.shut_down), (1, 1));
        server.shutdown();
        assert_eq!(server.stats(), stats, "a second shutdown finds nothing to end");
    });
}

#[test]
fn a_shutdown_from_a_future_ends_that_future_too() {
    in_finite_time(|| {
        let (registry, itself) = (Registry::new(), Itself::default());
        let handler = itself.clone();
        registry
            .conversation(A, move |mut call| {
                let server = handler.get();
                async move {
                    call.recv(|_| ()).await?;
                    server.shutdown();
                    Ok(call.recv(|_| ()).await?)
                }
            })
            .unwrap();
        let server = itself.is(server(&registry).build().unwrap());
        server.client().notify(A, ONE, |_| ()).unwrap();
        settle(&server);
        assert_eq!(assert_nothing_in_flight(&server).shut_down, 1);
        assert_eq!(Arc::strong_count(&server), 1, "the future is gone");
    });
}

#[test]
fn a_drain_ends_though_a_handler_is_never_done() {
    let drained = in_finite_time(|| {
        let registry = conversation(async |_| {
            loop {
                futures_lite::future::yield_now().await;
            }
        });
        let limit = Duration::from_millis(5);
        let (server, _) = failing_of(&registry, |builder| builder.drain_limit(limit));
        server.client().notify(A, ONE, |_| ()).unwrap();
        server.drain().unwrap()
    });
    assert_eq!(drained.unfinished, 1);
}

#[test]
fn a_drain_waits_for_work_on_the_pool() {
    let registry = conversation(async |mut call| {
        call.recv(|_| ()).await?;
        call.run_blocking(|| std::thread::sleep(Duration::from_millis(20))).await;
        Ok(())
    });
    let (server, _) = failing_of(&registry, |builder| builder);
    server.client().notify(A, ONE, |_| ()).unwrap();
    assert_eq!(server.drain().unwrap().unfinished, 0);
    assert_eq!(assert_nothing_in_flight(&server).completed, 1);
}

#[test]
fn counters_add_up_for_whoever_looks_meanwhile() {
    let registry = Registry::new();
    registry.unary(B, |_, n: u64| n).unwrap();
    let server = server(&registry).ports(64).build().unwrap();
    let done = Gate::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.is_open() {
                let in_flight = server.stats().in_flight();
                assert!(in_flight <= 64, "{in_flight} of 64 ports");
            }
        });
        for _ in 0..20_000 {
            server.client().notify(B, ONE, |_| 0u64).unwrap();
            settle(&server);
        }
        done.open();
    });
    poll_until(&server, || server.stats().in_flight() == 0);
}
