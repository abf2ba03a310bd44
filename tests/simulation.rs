//! The simulation: exact replay, broken devices, and a bug that it has to find.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{A, B, C, Gate, Held, in_finite_time, printing};
use futures_lite::future::{poll_once, yield_now};
use hostcall::{
    Cause, ClientError, ErrorPolicy, LaneMask, Packet, Registry, Report, Request, Simulation,
    SimulationError, Status, WaitingFor, Warp,
};

/// `A` squares, `B` takes note, `C` echoes streams.
fn registry() -> Registry {
    let registry = Registry::new();
    registry.unary(A, |_, n: u64| n.wrapping_mul(n)).unwrap();
    registry.notification(B, |_, _: u64| ()).unwrap();
    registry.bytes(C, |_, bytes| bytes).unwrap();
    registry
}

/// Some of everything; what the warp got to see.
async fn everything(warp: &Warp<'_>) -> Result<u64, ClientError> {
    let mut seen = 0;
    for round in 0..3 {
        let n = u64::from(warp.index()) + round;
        warp.call(A, |lane| n + u64::from(lane), |_, square: u64| seen = square.wrapping_add(seen))
            .await?;
        warp.open(B).await?.send(|lane| lane.set_word(0, n)).close();
        let message = common::pattern(warp.index(), 100 * round as usize);
        let mut port = warp.open(C).await?.send_stream_async(|_| &message).await?;
        port.recv_stream_async(|_, _, part| seen = seen.wrapping_add(part.len() as u64)).await?;
    }
    Ok(seen)
}

fn play(seed: u64) -> Report<u64> {
    let simulation = Simulation::new(&registry()).seed(seed).warps(5).lanes(4).ports(3);
    simulation.run(async |warp| everything(&warp).await).unwrap()
}

/// All of a report that another run can be compared with.
fn essence<T: std::fmt::Debug>(report: &Report<T>) -> String {
    format!("{report:?}")
}

#[test]
fn the_same_seed_gives_the_same_report() {
    for seed in 0..50 {
        let (first, again) = (play(seed), play(seed));
        assert_eq!(essence(&first), essence(&again), "seed {seed}");
        assert_eq!(first.seed, seed);
    }
}

#[test]
fn another_seed_takes_another_way_to_the_same_results() {
    let reports: Vec<_> = (0..50).map(play).collect();
    let steps: std::collections::BTreeSet<_> = reports.iter().map(|report| report.steps).collect();
    assert!(steps.len() > 20, "50 seeds took {} numbers of steps", steps.len());
    let expected = play(0).outputs().unwrap();
    for report in reports {
        let seed = report.seed;
        assert_eq!((report.stats.accepted, report.stats.in_flight()), (45, 0), "seed {seed}");
        assert_eq!(report.outputs().unwrap(), expected, "seed {seed}");
    }
}

#[test]
fn sixty_four_warps_of_32_lanes_finish_on_eight_ports() {
    for seed in 0..4 {
        let simulation = Simulation::new(&registry()).seed(seed).warps(64).ports(8);
        let report = simulation.run(async |warp| everything(&warp).await).unwrap();
        assert_eq!((report.stats.completed, report.in_flight.len()), (64 * 9, 0), "seed {seed}");
        assert_eq!(report.outputs().unwrap().len(), 64, "seed {seed}");
    }
}

#[test]
fn a_warp_that_stops_for_ever_keeps_its_port_and_nobody_else_waits() {
    for seed in 0..100 {
        let simulation = Simulation::new(&registry()).seed(seed).warps(5).lanes(4).ports(3);
        let report = simulation
            .run(async |warp| {
                if warp.index() == 2 {
                    let _port = warp.open(C).await?.send(|lane| lane.set_word(0, 1000));
                    warp.stop().await;
                }
                everything(&warp).await
            })
            .unwrap();
        assert!(report.results[2].is_none(), "seed {seed}");
        assert_eq!(report.in_flight.len(), 1, "seed {seed}");
        assert_eq!(report.in_flight[0].waiting_for, WaitingFor::Device, "seed {seed}");
        assert_eq!(report.stats.in_flight(), 1, "seed {seed}");
        assert_eq!(report.outputs().unwrap().len(), 4, "seed {seed}");
    }
}

#[test]
fn a_warp_stopped_anywhere_leaves_the_others_their_ports() {
    for seed in 0..200 {
        let simulation = Simulation::new(&registry()).seed(seed).warps(5).lanes(4).ports(2);
        let report = simulation
            .stop_warp(0, 1 + seed % 40)
            .run(async |warp| everything(&warp).await)
            .unwrap();
        assert!(report.results[1..].iter().flatten().all(Result::is_ok), "seed {seed}");
        let left = usize::from(report.results[0].is_none());
        assert!(report.in_flight.len() <= left, "seed {seed}");
    }
}

/// Runs a program for some steps only: what a device with a broken neighbour can count on.
async fn for_some_steps<T>(
    warp: &Warp<'_>,
    program: impl Future<Output = Result<T, ClientError>>,
) -> Option<Result<T, ClientError>> {
    let mut program = std::pin::pin!(program);
    for _ in 0..500 {
        if let Some(result) = poll_once(program.as_mut()).await {
            return Some(result);
        }
        warp.pause().await;
    }
    None
}

#[test]
fn garbage_anywhere_never_ends_the_server() {
    let mut intact = 0;
    for seed in 0..300 {
        let registry = registry();
        let (services, _) = printing(&registry);
        let services = parking_lot::Mutex::new(Some(services));
        let simulation = Simulation::new(&registry)
            .seed(seed)
            .warps(6)
            .lanes(8)
            .ports(8)
            .server(move |builder| builder.owning(services.lock().take()));
        let report = simulation
            .run(async |warp| {
                if warp.index() == 0 {
                    for _ in 0..20 {
                        warp.write_garbage();
                        warp.pause().await;
                    }
                    return Ok(None);
                }
                Ok(for_some_steps(&warp, everything(&warp)).await)
            })
            .unwrap_or_else(|error| panic!("{error}"));
        let stats = report.stats;
        assert_eq!(stats.panics, 0, "seed {seed}");
        assert_eq!(stats.accepted, stats.completed + stats.failed() + stats.in_flight());
        assert_eq!(stats.in_flight(), report.in_flight.len() as u64, "seed {seed}");
        let finished = |result: &Option<_>| matches!(result, Some(Ok(Some(Ok(_)))));
        intact += report.results.iter().filter(|result| finished(result)).count();
    }
    assert!(intact > 0, "some warps that garbage missed were served");
}

/// A handler that reads in a loop would never wait if such a port were the host's for ever.
#[test]
fn a_mailbox_with_an_impossible_value_is_handed_over_once_at_most() {
    let stats = in_finite_time(|| {
        let registry = registry();
        let read_on = |request: Request<'_>| {
            let mut call = request.detach();
            Ok(hostcall::Handling::future(async move {
                loop {
                    call.recv(|_| ()).await?;
                }
            }))
        };
        registry.replace(C, read_on);
        let report = Simulation::new(&registry).run(async |warp| {
            let port = warp.open(C).await?.send(|_| ());
            while warp.server().stats().in_flight() == 0 {
                warp.pause().await;
            }
            let mailbox = &warp.channel().secondary()[port.index() as usize];
            for value in [2, 3, u32::MAX] {
                mailbox.store(value, Ordering::Release);
                warp.call(A, u64::from, |_, _: u64| ()).await?;
            }
            Ok(())
        });
        report.unwrap().stats
    });
    assert_eq!((stats.accepted, stats.completed, stats.in_flight()), (4, 3, 1));
}

/// The first packet of every port.
fn packets(warp: &Warp<'_>) -> Vec<Packet> {
    let channel = warp.channel();
    (0..channel.layout().ports().get()).map(|port| channel.lane(port, 0).load()).collect()
}

#[test]
fn garbage_on_other_ports_harms_nobody() {
    for seed in 0..200 {
        let untouched = RefCell::new(Vec::new());
        let simulation = Simulation::new(&registry()).seed(seed).warps(4).lanes(8).ports(64);
        let report = simulation
            .run(async |warp| {
                if warp.index() == 0 {
                    let before = packets(&warp);
                    (0..20).for_each(|_| warp.write_garbage());
                    let after = packets(&warp);
                    let same = |&port: &u32| before[port as usize] == after[port as usize];
                    *untouched.borrow_mut() = (0..64).filter(same).collect();
                    return Ok(140);
                }
                while untouched.borrow().is_empty() {
                    warp.pause().await;
                }
                let port = untouched.borrow()[warp.index() as usize];
                let mut sum = 0;
                let client = warp.starting_at(port);
                client.call_async(A, warp.mask(), u64::from, |_, n: u64| sum += n).await?;
                Ok(sum)
            })
            .unwrap();
        assert_eq!(report.outputs().unwrap(), [140; 4], "seed {seed}");
    }
}

/// A handler with a bug: it waits for its client's second packet for a moment only.
fn impatient() -> Registry {
    let registry = Registry::new();
    registry
        .conversation(A, async |mut call| {
            let mut sum = 0;
            call.recv(|lane| sum += lane.word(0)).await?;
            for _ in 0..8 {
                let mut second = 0;
                if let Some(received) = poll_once(call.recv(|lane| second += lane.word(0))).await {
                    received?;
                    call.send(|lane| lane.set_word(0, sum + second)).await?;
                    return Ok(());
                }
                yield_now().await;
            }
            // The bug: replies before it has read the second packet.
            call.send(|lane| lane.set_word(0, sum)).await?;
            Ok(())
        })
        .unwrap();
    registry
}

/// Two packets of which a lane wants the sum back.
fn sum_of_two(seed: u64) -> Result<(bool, u64), SimulationError> {
    let report = Simulation::new(&impatient()).seed(seed).warps(1).lanes(1).run(async |warp| {
        let mut port = warp.open(A).await?.send(|lane| lane.set_word(0, 40));
        port.send_async(|lane| lane.set_word(0, 2)).await?;
        let mut sum = 0;
        port.recv_async(|lane| sum = lane.word(0)).await?;
        Ok(sum)
    })?;
    let steps = report.steps;
    Ok((matches!(report.outputs(), Ok(sums) if sums == [42]), steps))
}

#[test]
fn a_planted_bug_is_found_within_a_thousand_seeds_and_its_seed_replays_it() {
    let found = (0..1000).find_map(|seed| match sum_of_two(seed).unwrap() {
        (true, _) => None,
        (false, steps) => Some((seed, steps)),
    });
    let (seed, steps) = found.expect("the bug shows within a thousand seeds");
    println!("seed {seed} shows the bug after {steps} steps");
    for _ in 0..10 {
        assert_eq!(sum_of_two(seed).unwrap(), (false, steps), "seed {seed} replays");
    }
    assert!(seed > 0, "most seeds do not show it: it takes the search");
}

#[test]
fn a_program_that_prints_and_exits() {
    for seed in 0..20 {
        let registry = Registry::new();
        let (services, printed) = printing(&registry);
        let report = Simulation::new(&registry)
            .seed(seed)
            .run(async |warp| {
                let all = warp.write_stderr(|lane| format!("lane {lane}\n")).await?;
                let odd = warp.diverge(LaneMask::from_fn(|lane| lane % 2 == 1));
                let some = odd.write_stderr(|lane| format!("{lane},")).await?;
                odd.exit(7).await?;
                Ok((all, some))
            })
            .unwrap();
        drop(services);
        let lines: String = (0..32).map(|lane| format!("lane {lane}\n")).collect();
        let odd: String = (0..32).skip(1).step_by(2).map(|lane| format!("{lane},")).collect();
        assert_eq!(String::from_utf8(printed.contents()).unwrap(), lines.clone() + &odd);
        let exit = report.exit.unwrap();
        assert_eq!((exit.status, exit.lane, exit.aborted), (7, 1, false), "seed {seed}");
        assert_eq!(report.outputs().unwrap(), [(lines.len() as u64, odd.len() as u64)]);
    }
}

#[test]
fn time_passes_as_the_program_says_and_deadlines_follow() {
    let (registry, held) = (registry(), Held::default());
    let holder = held.clone();
    let receive = move |mut call: hostcall::Call| {
        let holding = holder.hold();
        async move {
            let _holding = holding;
            Ok(call.recv_stream().await.map(|_| ())?)
        }
    };
    registry.replace(C, move |request: Request<'_>| {
        Ok(hostcall::Handling::future(receive(request.detach())))
    });
    let minute = Duration::from_secs(60);
    let simulation = Simulation::new(&registry).server(move |b| b.device_deadline(minute));
    let report = simulation
        .run(async |warp| {
            let mut port = warp.open(C).await?.send(|lane| lane.set_word(0, 1000));
            while warp.server().stats().in_flight() == 0 {
                warp.pause().await;
            }
            let began = warp.now();
            while warp.server().stats().expired == 0 {
                warp.pass_time(minute / 6).await;
            }
            assert!(warp.now() - began >= minute, "{:?}", warp.now() - began);
            port.send_async(|_| ()).await?;
            port.recv_async(|_| ()).await
        })
        .unwrap();
    let refused = ClientError::Refused(Status::DeadlineExpired);
    assert_eq!(report.results, [Some(Err(refused))]);
    assert_eq!((held.count(), report.stats.expired, report.stats.strays), (0, 1, 1));
    let error = report.first_error.unwrap();
    assert!(matches!(error.cause, Cause::DeadlineExpired { on: WaitingFor::Device, .. }));
}

#[test]
fn a_simulation_that_gets_nowhere_says_who_waits_for_what() {
    let registry = registry();
    let gate = Gate::default();
    let closed = move |mut call: hostcall::Call| {
        let gate = gate.clone();
        async move {
            call.recv(|_| ()).await?;
            gate.passed().await;
            Ok(())
        }
    };
    registry.replace(C, move |request: Request<'_>| {
        Ok(hostcall::Handling::future(closed(request.detach())))
    });
    let simulation = Simulation::new(&registry).seed(77).warps(4).step_limit(10_000);
    let stuck = simulation.run(async |warp| {
        if warp.index() == 3 {
            return warp.call(C, |_| 0u64, |_, _: u64| ()).await;
        }
        warp.call(A, u64::from, |_, _: u64| ()).await
    });
    let error = stuck.unwrap_err();
    let SimulationError::Stuck { seed: 77, steps: 10_000, warps, in_flight } = &error else {
        panic!("{error}")
    };
    assert_eq!((&warps[..], in_flight.len()), (&[3][..], 1));
    assert_eq!((in_flight[0].opcode, in_flight[0].waiting_for), (C, WaitingFor::Handler));
    let text = error.to_string();
    assert!(text.starts_with("seed 77: warps [3] still run after 10000 steps"), "{text}");
}

#[test]
fn an_error_of_a_program_names_seed_and_warp() {
    let report =
        Simulation::new(&Registry::new()).seed(5).warps(3).run(async |warp| match warp.index() {
            1 => warp.call(A, |_| 0u64, |_, _: u64| ()).await,
            _ => Ok(()),
        });
    let error = report.unwrap().outputs().unwrap_err().to_string();
    assert!(error.starts_with("seed 5: warp 1: the server refused"), "{error}");
}

#[test]
fn under_the_stop_policy_the_first_failure_ends_the_simulation_and_names_the_seed() {
    let simulation = Simulation::new(&Registry::new())
        .seed(5)
        .server(|builder| builder.error_policy(ErrorPolicy::Stop));
    let ended = simulation.run(async |warp| warp.call(A, |_| 0u64, |_, _: u64| ()).await);
    let Err(SimulationError::Conversation { seed: 5, error }) = ended else { panic!("{ended:?}") };
    assert!(matches!(error.cause, Cause::UnknownOpcode));
}
