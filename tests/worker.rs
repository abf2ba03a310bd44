//! Workers: start, stop and drop in every order; nothing is lost while they sleep.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use common::memory::{Ledger, LedgerAllocator, TestDoorbell};
use common::{
    A, B, C, Gate, Log, assert_all_ports_free, assert_nothing_in_flight, in_finite_time, server,
};
use hostcall::backend::host::HostAllocator;
use hostcall::{
    Abi, Builder, Doorbell, ErrorPolicy, IdlePolicy, LaneMask, Registry, Request, Server,
    WaitingFor, Worker, WorkerError,
};
use parking_lot::Mutex;

const ONE: LaneMask = LaneMask(1);

/// Sleeps at once and for as long as it may.
const SLEEPY: IdlePolicy = IdlePolicy {
    spin: Duration::ZERO,
    pause: Duration::ZERO,
    max_sleep: Duration::from_secs(3600),
    doorbell: Duration::from_secs(3600),
};

fn squares() -> Registry {
    let registry = Registry::new();
    registry.unary(A, |_, n: u64| n * n).unwrap();
    registry
}

fn square(server: &Server<impl hostcall::SharedAllocator + 'static>, n: u64) -> u64 {
    let mut reply = 0;
    server.client().call(A, ONE, |_| n, |_, r: u64| reply = r).unwrap();
    reply
}

#[test]
fn a_worker_started_and_stopped_at_once_ends() {
    in_finite_time(|| {
        let server = Arc::new(server(&squares()).build().unwrap());
        for _ in 0..1000 {
            Worker::start(server.clone()).unwrap().stop().unwrap();
        }
        for _ in 0..1000 {
            drop(Worker::start(server.clone()).unwrap());
        }
        assert_eq!(Arc::strong_count(&server), 1, "no thread is left");
        assert_nothing_in_flight(&server);
    });
}

#[test]
fn a_sleepy_worker_of_several_threads_started_and_stopped_at_once_ends() {
    in_finite_time(|| {
        let server = Arc::new(server(&squares()).ports(64).shards(4).build().unwrap());
        for _ in 0..250 {
            let worker = Worker::builder(server.clone()).threads(4).idle(SLEEPY).start().unwrap();
            worker.stop().unwrap();
        }
        assert_eq!(Arc::strong_count(&server), 1, "no thread is left");
    });
}

#[test]
fn a_server_serves_under_one_worker_after_the_other() {
    in_finite_time(|| {
        let server = Arc::new(server(&squares()).build().unwrap());
        for n in 0..1000 {
            let worker = Worker::start(server.clone()).unwrap();
            assert_eq!(square(&server, n), n * n);
            let drained = worker.stop().unwrap();
            assert_eq!((drained.served, drained.unfinished), (0, 0));
        }
        assert_eq!(assert_nothing_in_flight(&server).completed, 1000);
    });
}

#[test]
fn a_server_lives_and_dies_with_its_worker_a_thousand_times() {
    in_finite_time(|| {
        let (registry, ledger) = (squares(), Ledger::default());
        for n in 0..1000 {
            let builder = Server::builder(ledger.allocator()).registry(&registry).ports(4);
            let worker = Worker::start(builder.build().unwrap()).unwrap();
            if n % 3 > 0 {
                assert_eq!(square(worker.server(), n), n * n);
            }
            if n % 2 == 0 {
                worker.stop().unwrap();
            } else {
                drop(worker);
            }
            assert_eq!(ledger.live(), 0);
        }
        assert_eq!(ledger.returned(), (3000, 0));
    });
}

#[test]
fn creation_and_destruction_from_many_threads() {
    in_finite_time(|| {
        let (registry, ledger) = (squares(), Ledger::default());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..100 {
                        let builder = Server::builder(ledger.allocator()).registry(&registry);
                        let worker = Worker::start(builder.build().unwrap()).unwrap();
                        assert_eq!(square(worker.server(), n), n * n);
                    }
                });
            }
        });
        assert_eq!((ledger.live(), ledger.returned()), (0, (1200, 0)));
    });
}

#[test]
fn a_worker_dropped_on_another_thread_ends() {
    in_finite_time(|| {
        for n in 0..100 {
            let worker = Worker::start(server(&squares()).build().unwrap()).unwrap();
            assert_eq!(square(worker.server(), n), n * n);
            let server = worker.server().clone();
            thread::spawn(move || drop(worker)).join().unwrap();
            assert_eq!(Arc::strong_count(&server), 1, "no thread is left");
        }
    });
}

type Slot<A> = Arc<Mutex<Option<Worker<A>>>>;

/// A worker whose handler of `B` gets it in a slot.
fn in_its_own_hands(
    registry: &Registry,
    ledger: &Ledger,
    end: impl Fn(Worker<LedgerAllocator>) + Send + Sync + 'static,
) -> (Arc<Server<LedgerAllocator>>, Slot<LedgerAllocator>) {
    let slot = Slot::default();
    let own = slot.clone();
    registry
        .unary(B, move |_, n: u64| {
            if let Some(worker) = own.lock().take() {
                end(worker);
            }
            n + 1
        })
        .unwrap();
    let builder = Server::builder(ledger.allocator()).registry(registry).ports(4);
    let worker = Worker::start(builder.build().unwrap()).unwrap();
    let server = worker.server().clone();
    *slot.lock() = Some(worker);
    (server, slot)
}

#[test]
fn a_worker_dropped_by_its_own_handler_ends_after_it() {
    in_finite_time(|| {
        for _ in 0..100 {
            let ledger = Ledger::default();
            let (server, _slot) = in_its_own_hands(&squares(), &ledger, drop);
            let mut reply = 0;
            server.client().call(B, ONE, |_| 41u64, |_, r: u64| reply = r).unwrap();
            assert_eq!(reply, 42, "the handler finished");
            while Arc::strong_count(&server) > 1 {
                thread::yield_now();
            }
            assert_nothing_in_flight(&server);
            drop(server);
            assert_eq!(ledger.live(), 0);
        }
    });
}

#[test]
fn a_worker_that_owns_its_server_alone_may_be_dropped_by_its_own_handler() {
    in_finite_time(|| {
        let (registry, ledger) = (squares(), Ledger::default());
        let (server, _slot) = in_its_own_hands(&registry, &ledger, drop);
        server.client().notify(B, ONE, |_| 0u64).unwrap();
        drop(server);
        while ledger.live() > 0 {
            thread::yield_now();
        }
        assert_eq!(ledger.returned(), (3, 0), "the last to go was the worker's thread");
    });
}

#[test]
fn a_worker_stopped_by_its_own_handler_ends_after_it() {
    in_finite_time(|| {
        let (results, ledger) = (Log::default(), Ledger::default());
        let log = results.clone();
        let stop = move |worker: Worker<_>| log.note(worker.stop().is_ok());
        let (server, _slot) = in_its_own_hands(&squares(), &ledger, stop);
        server.client().call(B, ONE, |_| 0u64, |_, _: u64| ()).unwrap();
        while Arc::strong_count(&server) > 1 {
            thread::yield_now();
        }
        assert_eq!(results.entries(), [true]);
    });
}

#[test]
fn a_stop_under_traffic_loses_nothing() {
    in_finite_time(|| {
        let (registry, heard) = (Registry::new(), Log::default());
        let log = heard.clone();
        registry.notification(B, move |_, n: u64| log.note(n)).unwrap();
        let server = Arc::new(server(&registry).ports(8).build().unwrap());
        let (mut worker, mut sent) = (Worker::start(server.clone()).unwrap(), 0);
        for _ in 0..50 {
            let stop = Gate::default();
            let stopping = stop.clone();
            let stopped = thread::spawn(move || {
                stopping.pass_blocking();
                worker.stop().unwrap()
            });
            for n in 0..200 {
                if n == 100 {
                    stop.open();
                }
                // Once it has stopped, ports fill up with what nobody serves.
                if let Some(port) = server.client().try_open(B, ONE).unwrap() {
                    port.send(|lane| lane.set_word(0, sent)).close();
                    sent += 1;
                }
            }
            stopped.join().unwrap();
            worker = Worker::start(server.clone()).unwrap();
        }
        worker.stop().unwrap();
        let mut heard = heard.entries();
        heard.sort_unstable();
        assert!(heard.into_iter().eq(0..sent), "all {sent}, each once");
        assert_all_ports_free(&server);
    });
}

#[test]
fn a_stop_does_not_wait_for_clients_that_never_cease() {
    in_finite_time(|| {
        let registry = squares();
        let limit = Duration::from_millis(20);
        let server = Arc::new(server(&registry).drain_limit(limit).build().unwrap());
        let worker = Worker::start(server.clone()).unwrap();
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let server = server.clone();
                thread::spawn(move || {
                    while server.client().call(A, ONE, |_| 1u64, |_, _: u64| ()).is_ok() {}
                })
            })
            .collect();
        while server.stats().completed < 100 {
            thread::yield_now();
        }
        worker.stop().unwrap();
        server.shutdown();
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}

#[test]
fn a_worker_asleep_looks_again_by_itself() {
    in_finite_time(|| {
        let server = server(&squares()).build().unwrap();
        let idle = IdlePolicy { max_sleep: Duration::from_millis(1), ..SLEEPY };
        let worker = Worker::builder(server).idle(idle).start().unwrap();
        for n in 0..20 {
            // Long enough to be asleep; whether it is does not matter.
            thread::sleep(Duration::from_millis(2));
            assert_eq!(square(worker.server(), n), n * n, "without any wake-up");
        }
    });
}

#[test]
fn a_sleeping_worker_goes_on_when_woken() {
    in_finite_time(|| {
        let worker = Worker::builder(server(&squares()).build().unwrap());
        let worker = worker.idle(SLEEPY).name("sleepy").start().unwrap();
        for n in 0..100 {
            let opened = worker.server().client().open(A, ONE).unwrap();
            let mut port = opened.send(|lane| lane.set_word(0, n));
            worker.server().wake();
            assert_eq!(common::received(&mut port), Ok(n * n));
        }
        worker.stop().unwrap();
    });
}

#[test]
fn finished_blocking_work_wakes_a_sleeping_worker() {
    in_finite_time(|| {
        let registry = Registry::new();
        registry
            .conversation(C, async |mut call| {
                let mut sum = 0;
                call.recv(|lane| sum += lane.word(0)).await?;
                let sum = call.run_blocking(move || sum + 1).await;
                call.send(|lane| lane.set_word(0, sum)).await?;
                Ok(())
            })
            .unwrap();
        let server = server(&registry).ports(32).shards(2).build().unwrap();
        let worker = Worker::builder(server).threads(2).idle(SLEEPY).start().unwrap();
        for n in 0..500 {
            let client = worker.server().client().starting_at(16 * (n % 2));
            let mut port = client.open(C, ONE).unwrap().send(|lane| lane.set_word(0, 41));
            worker.server().wake();
            assert_eq!(common::received(&mut port), Ok(42));
        }
        worker.stop().unwrap();
    });
}

/// A server with a doorbell, whose sleepers nothing but a ring wakes.
fn with_doorbell(registry: &Registry) -> (Arc<TestDoorbell>, Builder<LedgerAllocator>) {
    let doorbell = Arc::new(TestDoorbell::default());
    let allocator = Ledger::with_doorbell(doorbell.clone()).allocator();
    (doorbell, Server::builder(allocator).abi(Abi::LlvmMain).registry(registry))
}

/// Until the only thing left to do is to sleep at the doorbell.
fn until_asleep_at(doorbell: &TestDoorbell) {
    while !doorbell.has_sleeper() {
        thread::yield_now();
    }
}

#[test]
fn a_worker_asleep_at_its_doorbell_goes_on_when_it_rings() {
    in_finite_time(|| {
        for threads in [1, 4] {
            let (doorbell, builder) = with_doorbell(&squares());
            let server = builder.ports(64).shards(threads).build().unwrap();
            let worker = Worker::builder(server).threads(threads as usize);
            let idle = IdlePolicy { max_sleep: Duration::from_millis(1), ..SLEEPY };
            let worker = worker.idle(idle).start().unwrap();
            for n in 0..200 {
                assert_eq!(square(worker.server(), n), n * n, "whichever shard it is");
                if n % 10 == 0 {
                    until_asleep_at(&doorbell);
                }
            }
            worker.stop().unwrap();
            assert!(doorbell.waits() >= 20);
            assert_eq!(doorbell.counter().load(Ordering::Acquire), 0);
        }
    });
}

#[test]
fn a_worker_asleep_at_its_doorbell_hears_the_host_too() {
    in_finite_time(|| {
        let (doorbell, builder) = with_doorbell(&squares());
        let server = Arc::new(builder.ports(64).shards(4).build().unwrap());
        for n in 0..100 {
            let worker = Worker::builder(server.clone()).threads(4).idle(SLEEPY).start().unwrap();
            if n % 2 == 0 {
                until_asleep_at(&doorbell);
                worker.server().wake();
            }
            until_asleep_at(&doorbell);
            worker.stop().unwrap();
            assert_eq!(doorbell.counter().load(Ordering::Acquire), 0, "no ring of the host stays");
        }
        let worker = Worker::builder(server.clone()).threads(4).idle(SLEEPY).start().unwrap();
        until_asleep_at(&doorbell);
        server.shutdown();
        drop(worker);
        assert_eq!(Arc::strong_count(&server), 1, "no thread is left");
    });
}

/// Calls of several clients that overlap, and rings of the host between them: one count that stayed would
/// swallow the next interrupt, for an hour.
#[test]
fn clients_and_host_ring_together_and_nobody_is_forgotten() {
    in_finite_time(|| {
        for threads in [1, 2] {
            let (doorbell, builder) = with_doorbell(&squares());
            let server = Arc::new(builder.ports(64).shards(threads).build().unwrap());
            let worker = Worker::builder(server.clone()).threads(threads as usize);
            let idle = IdlePolicy { max_sleep: Duration::from_millis(1), ..SLEEPY };
            let worker = worker.idle(idle).start().unwrap();
            thread::scope(|scope| {
                for client in 0..3 {
                    let (server, doorbell) = (&server, &doorbell);
                    scope.spawn(move || {
                        for n in 0..200 {
                            assert_eq!(square(server, n), n * n);
                            if n % 20 == client {
                                server.wake();
                                thread::sleep(Duration::from_micros(500));
                            }
                        }
                        assert!(doorbell.waits() > 0);
                    });
                }
            });
            until_asleep_at(&doorbell);
            worker.stop().unwrap();
            assert_eq!(doorbell.counter().load(Ordering::Acquire), 0);
        }
    });
}

#[test]
fn with_a_port_open_a_worker_looks_instead_of_waiting_at_the_doorbell() {
    in_finite_time(|| {
        let registry = Registry::new();
        registry
            .conversation(A, async |mut call| {
                loop {
                    call.recv(|_| ()).await?;
                }
            })
            .unwrap();
        let (doorbell, builder) = with_doorbell(&registry);
        let idle = IdlePolicy { max_sleep: Duration::from_millis(1), ..SLEEPY };
        let worker = Worker::builder(builder.build().unwrap()).idle(idle).start().unwrap();
        let mut port = worker.server().client().open(A, ONE).unwrap().send(|_| ());
        while worker.server().stats().in_flight() == 0 {
            thread::yield_now();
        }
        let waits = doorbell.waits();
        for _ in 0..20 {
            port.send(|_| ()).unwrap();
        }
        assert_eq!(doorbell.waits(), waits, "nobody would have rung for those");
    });
}

#[test]
fn a_ring_that_gets_lost_costs_one_sleep() {
    in_finite_time(|| {
        let (doorbell, builder) = with_doorbell(&squares());
        doorbell.mute.store(true, Ordering::Release);
        let idle = IdlePolicy { doorbell: Duration::from_millis(1), ..SLEEPY };
        let idle = IdlePolicy { max_sleep: Duration::from_millis(1), ..idle };
        let worker = Worker::builder(builder.build().unwrap()).idle(idle).start().unwrap();
        for n in 0..20 {
            until_asleep_at(&doorbell);
            assert_eq!(square(worker.server(), n), n * n);
        }
    });
}

#[test]
fn a_worker_told_so_does_not_wait_at_the_doorbell() {
    in_finite_time(|| {
        let (doorbell, builder) = with_doorbell(&squares());
        let idle = IdlePolicy { doorbell: Duration::ZERO, ..SLEEPY };
        let idle = IdlePolicy { max_sleep: Duration::from_millis(1), ..idle };
        let worker = Worker::builder(builder.build().unwrap()).idle(idle).start().unwrap();
        for n in 0..20 {
            assert_eq!(square(worker.server(), n), n * n);
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(doorbell.waits(), 0);
    });
}

#[test]
fn a_shutdown_is_heard_by_a_sleeping_worker() {
    in_finite_time(|| {
        let registry = Registry::new();
        registry
            .conversation(A, async |mut call| {
                loop {
                    call.recv(|_| ()).await?;
                }
            })
            .unwrap();
        let worker = Worker::builder(server(&registry).build().unwrap()).idle(SLEEPY);
        let worker = worker.start().unwrap();
        let mut port = worker.server().client().open(A, ONE).unwrap().send(|_| ());
        worker.server().wake();
        while worker.server().stats().in_flight() == 0 {
            thread::yield_now();
        }
        worker.server().shutdown();
        port.send(|_| ()).unwrap();
        assert!(port.recv(|_| ()).is_err());
        drop(port);
        worker.stop().unwrap();
    });
}

#[test]
fn threads_share_the_shards() {
    in_finite_time(|| {
        let server = server(&squares()).ports(64).shards(4).build().unwrap();
        let worker = Worker::builder(server).threads(3).start().unwrap();
        assert!(worker.is_running());
        thread::scope(|scope| {
            for first in [0, 16, 32, 48] {
                let server = worker.server();
                scope.spawn(move || {
                    let client = server.client().starting_at(first);
                    for n in 0..500 {
                        let mut reply = 0;
                        client.call(A, ONE, |_| n, |_, r: u64| reply = r).unwrap();
                        assert_eq!(reply, n * n);
                    }
                });
            }
        });
        let server = worker.server().clone();
        worker.stop().unwrap();
        assert_eq!(assert_nothing_in_flight(&server).completed, 2000);
        assert_all_ports_free(&server);
    });
}

#[test]
fn more_threads_than_shards_are_not_started() {
    in_finite_time(|| {
        let server = Arc::new(server(&squares()).ports(32).shards(9).build().unwrap());
        assert_eq!(server.shards(), 2, "whole cache lines");
        let worker = Worker::builder(server.clone()).threads(9).start().unwrap();
        assert_eq!(Arc::strong_count(&server), 2 + server.shards());
        assert_eq!(square(&server, 9), 81);
        drop(worker);
    });
}

/// Fails at once.
fn fatal(
    builder: impl FnOnce(Builder<HostAllocator>) -> Builder<HostAllocator>,
) -> Worker<HostAllocator> {
    let registry = squares();
    registry.register(B, |_: Request<'_>| panic!("fatal")).unwrap();
    let builder = builder(server(&registry)).error_policy(ErrorPolicy::Stop);
    Worker::builder(builder.build().unwrap()).threads(2).start().unwrap()
}

#[test]
fn under_the_stop_policy_a_failure_ends_the_worker_and_stop_returns_it() {
    in_finite_time(|| {
        let worker = fatal(|builder| builder.ports(32).shards(2));
        assert_eq!(square(worker.server(), 9), 81);
        assert!(worker.is_running());
        let refused = worker.server().client().call(B, ONE, |_| 0u64, |_, (): ()| ());
        assert!(refused.is_err(), "its client was released");
        while worker.is_running() {
            thread::yield_now();
        }
        let Err(WorkerError::Conversation(error)) = worker.stop() else { panic!("it failed") };
        assert_eq!(error.opcode, B);
        assert!(error.to_string().ends_with("the handler panicked: fatal"), "{error}");
    });
}

#[test]
fn a_failure_that_the_stop_itself_meets_is_returned_too() {
    in_finite_time(|| {
        for _ in 0..100 {
            let worker = fatal(|builder| builder);
            worker.server().client().notify(B, ONE, |_| 0u64).unwrap();
            assert!(matches!(worker.stop(), Err(WorkerError::Conversation(_))));
        }
    });
}

#[test]
fn a_handler_that_blocks_its_worker_is_reported_and_left_behind() {
    in_finite_time(|| {
        let (registry, gate, begun) = (Registry::new(), Gate::default(), Gate::default());
        let (closed, begin) = (gate.clone(), begun.clone());
        registry
            .notification(B, move |_, (): ()| {
                begin.open();
                closed.pass_blocking();
            })
            .unwrap();
        let limit = Duration::from_millis(20);
        let server = Arc::new(server(&registry).drain_limit(limit).build().unwrap());
        let worker = Worker::start(server.clone()).unwrap();
        server.client().notify(B, ONE, |_| ()).unwrap();
        begun.pass_blocking();
        // Nobody waits for it for longer than the limit, and who is in the way has a name.
        let [blocked] = server.conversations()[..] else { panic!("{:?}", server.conversations()) };
        assert_eq!((blocked.opcode, blocked.lanes), (B, ONE));
        assert_eq!(blocked.waiting_for, WaitingFor::Handler);
        assert_eq!(server.drain().unwrap().unfinished, 1);
        server.shutdown();
        let error = worker.stop().unwrap_err();
        let WorkerError::Stuck { waited, handler: Some(handler) } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((*waited, handler.opcode, handler.port), (limit, B, blocked.port));
        assert!(error.to_string().contains(&format!("opcode {B} on port {}", blocked.port)));
        gate.open();
        while Arc::strong_count(&server) > 1 {
            thread::yield_now();
        }
        assert_nothing_in_flight(&server);
    });
}

#[test]
fn a_drain_waits_for_another_threads_pass_and_serves_what_that_did_not_see() {
    let registry = Registry::new();
    let (entered, leave) = (Gate::default(), Gate::default());
    let (enter, left) = (entered.clone(), leave.clone());
    registry
        .notification(A, move |_, _: u64| {
            enter.open();
            left.pass_blocking();
        })
        .unwrap();
    registry.notification(B, |_, _: u64| ()).unwrap();
    let server = server(&registry).build().unwrap();
    server.client().notify(A, ONE, |_| 0u64).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| server.poll().unwrap());
        entered.pass_blocking();
        // Behind that pass's scan.
        server.client().notify(B, ONE, |_| 0u64).unwrap();
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            leave.open();
        });
        assert_eq!(server.drain().unwrap().unfinished, 0);
        assert_eq!(server.stats().completed, 2);
    });
}
