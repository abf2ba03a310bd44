//! Who answers which opcode, while everything runs.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use common::{A, B, C, Gate, assert_nothing_in_flight, in_finite_time, play, server, settle};
use hostcall::backend::host::HostAllocator;
use hostcall::{
    Call, ClientError, HandlerError, Handling, LaneMask, Opcode, RegisterError, Registry, Request,
    Server, Status, Worker,
};

const ONE: LaneMask = LaneMask(1);

fn ask(server: &Server<HostAllocator>, opcode: Opcode) -> Result<u64, ClientError> {
    let mut reply = 0;
    play(server, server.client().call_async(opcode, ONE, |_| 0u64, |_, r: u64| reply = r))?;
    Ok(reply)
}

/// A handler that answers with a number.
fn answers(
    number: u64,
) -> impl Fn(Request<'_>) -> Result<Handling, HandlerError> + Send + Sync + 'static {
    move |request| {
        request.lanes().for_each(|lane| lane.set_word(0, number));
        Ok(Handling::Done)
    }
}

const UNKNOWN: Result<u64, ClientError> = Err(ClientError::Refused(Status::UnknownOpcode));

#[test]
fn handlers_come_change_and_go_while_a_server_runs() {
    let registry = Registry::new();
    let server = server(&registry).build().unwrap();
    assert_eq!(ask(&server, A), UNKNOWN);
    registry.register(A, answers(1)).unwrap();
    assert_eq!(ask(&server, A), Ok(1));
    assert_eq!(registry.register(A, answers(2)), Err(RegisterError::OpcodeTaken(A)));
    assert_eq!(ask(&server, A), Ok(1), "the owner stays");
    let first = registry.replace(A, answers(2)).unwrap();
    assert_eq!(ask(&server, A), Ok(2));
    assert!(registry.unregister(A).is_some());
    assert_eq!(ask(&server, A), UNKNOWN);
    registry.register(A, move |request: Request<'_>| first.handle(request)).unwrap();
    assert_eq!(ask(&server, A), Ok(1), "the first one again");
    assert_eq!(assert_nothing_in_flight(&server).unknown_opcodes, 2);
}

#[test]
fn an_opcode_goes_before_its_class_and_a_class_before_the_fallback() {
    let registry = Registry::new();
    let server = server(&registry).build().unwrap();
    let [own, sibling, stranger] =
        [Opcode::new(b'x', 1), Opcode::new(b'x', 2), Opcode::new(b'y', 1)];
    let asked = || [own, sibling, stranger].map(|opcode| ask(&server, opcode));
    assert_eq!(asked(), [UNKNOWN; 3]);
    assert!(registry.set_fallback(answers(3)).is_none());
    assert_eq!(asked(), [Ok(3), Ok(3), Ok(3)]);
    registry.register_class(b'x', answers(2)).unwrap();
    assert_eq!(registry.register_class(b'x', answers(4)), Err(RegisterError::ClassTaken(b'x')));
    assert_eq!(asked(), [Ok(2), Ok(2), Ok(3)]);
    registry.register(own, answers(1)).unwrap();
    assert_eq!(asked(), [Ok(1), Ok(2), Ok(3)]);
    assert!(registry.unregister(own).is_some());
    assert_eq!(asked(), [Ok(2), Ok(2), Ok(3)]);
    assert!(registry.unregister_class(b'x').is_some());
    assert!(registry.set_fallback(answers(5)).is_some());
    assert_eq!(asked(), [Ok(5); 3]);
    assert!(registry.clear_fallback().is_some());
    assert_eq!(asked(), [UNKNOWN; 3]);
}

#[test]
fn a_class_handler_hears_which_opcode_it_was() {
    let registry = Registry::new();
    let number = |request: Request<'_>| {
        let opcode = request.opcode();
        request.lanes().for_each(|lane| lane.set_word(0, u64::from(opcode.number())));
        Ok(Handling::Done)
    };
    registry.register_class(b'x', number).unwrap();
    let server = server(&registry).build().unwrap();
    let replies = [0, 1, 0xff_ffff].map(|number| ask(&server, Opcode::new(b'x', number)));
    assert_eq!(replies, [Ok(0), Ok(1), Ok(0xff_ffff)]);
}

#[test]
fn a_conversation_in_flight_keeps_its_handler() {
    let registry = Registry::new();
    let old = Gate::default();
    let closed = old.clone();
    let slow = move |mut call: Call| {
        let gate = closed.clone();
        async move {
            call.recv(|_| ()).await?;
            gate.passed().await;
            call.send(|lane| lane.set_word(0, 1)).await?;
            Ok(())
        }
    };
    registry.conversation(A, slow).unwrap();
    let server = server(&registry).build().unwrap();
    let mut replaced = server.client().try_open(A, ONE).unwrap().unwrap().send(|_| ());
    settle(&server);
    let kept = registry.replace(A, answers(2)).unwrap();
    assert_eq!(ask(&server, A), Ok(2), "others get the new one");
    registry.unregister(A).unwrap();
    drop(kept);
    assert_eq!(ask(&server, A), UNKNOWN);
    old.open();
    settle(&server);
    assert_eq!(common::received(&mut replaced), Ok(1));
    assert_nothing_in_flight(&server);
}

#[test]
fn a_handler_may_change_the_registry() {
    in_finite_time(|| {
        let registry = Registry::new();
        let inside = registry.clone();
        registry
            .unary(A, move |_, _: u64| {
                let taken = inside.register(B, answers(7)).is_err();
                inside.unregister(C);
                inside.replace(A, answers(8));
                u64::from(taken)
            })
            .unwrap();
        registry.register(C, answers(9)).unwrap();
        let server = server(&registry).build().unwrap();
        assert_eq!((ask(&server, B), ask(&server, C)), (UNKNOWN, Ok(9)));
        assert_eq!(ask(&server, A), Ok(0));
        assert_eq!((ask(&server, B), ask(&server, C), ask(&server, A)), (Ok(7), UNKNOWN, Ok(8)));
    });
}

#[test]
fn servers_share_a_registry() {
    let registry = Registry::new();
    let servers = [1, 2, 3].map(|ports| server(&registry).ports(ports).build().unwrap());
    registry.register(A, answers(1)).unwrap();
    let replies = servers.each_ref().map(|server| ask(server, A));
    assert_eq!(replies, [Ok(1); 3]);
    servers[0].registry().replace(A, answers(2));
    let replies = servers.each_ref().map(|server| ask(server, A));
    assert_eq!(replies, [Ok(2); 3]);
}

#[test]
fn a_replacement_is_in_force_when_replace_returns() {
    let registry = Registry::new();
    registry.register(A, answers(0)).unwrap();
    let worker = Worker::start(server(&registry).build().unwrap()).unwrap();
    for number in 1..500 {
        registry.replace(A, answers(number));
        let mut reply = 0;
        worker.server().client().call(A, ONE, |_| 0u64, |_, r: u64| reply = r).unwrap();
        assert_eq!(reply, number);
    }
    worker.stop().unwrap();
}

#[test]
fn a_handler_that_was_removed_is_dropped_once_no_server_uses_it() {
    let registry = Registry::new();
    let held = common::Held::default();
    let holding = held.hold();
    registry.unary(A, move |_, n: u64| (&holding, n).1).unwrap();
    let server = server(&registry).build().unwrap();
    ask(&server, A).unwrap();
    drop(registry.unregister(A));
    ask(&server, A).unwrap_err();
    assert_eq!(held.count(), 0);
}
