//! How to unit-test your own opcode without a GPU. `cargo test --example unit_test_a_handler` runs
//! the tests below; run as a program, it plays a hundred seeds and shows how a failing one replays.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hostcall::{ClientError, Opcode, Registry, Report, Simulation, SimulationError};

const PUT: Opcode = Opcode::new(b'k', 1);
const GET: Opcode = Opcode::new(b'k', 2);

/// The code under test: a key-value store for device code.
fn register_store(registry: &Registry) -> Result<(), hostcall::RegisterError> {
    let store = Arc::new(Mutex::new(HashMap::<u64, u64>::new()));
    let shared = store.clone();
    registry.unary(PUT, move |_, [key, value]: [u64; 2]| {
        shared.lock().map_or(0, |mut store| store.insert(key, value).unwrap_or(0))
    })?;
    registry.unary(GET, move |_, key: u64| {
        store.lock().map_or(0, |store| store.get(&key).copied().unwrap_or(0))
    })
}

/// Four warps write and read keys of their own, half of the lanes each.
fn play(seed: u64) -> Result<Report<bool>, SimulationError> {
    let registry = Registry::new();
    register_store(&registry).expect("a new registry has no owners");
    Simulation::new(&registry).seed(seed).warps(4).ports(2).run(async |warp| {
        let warp = warp.diverge(hostcall::LaneMask::from_fn(|lane| lane % 2 == 1));
        let key = |lane: u32| u64::from(warp.index() * 100 + lane);
        warp.call(PUT, |lane| [key(lane), key(lane) + 1], |_, _: u64| ()).await?;
        let mut right = true;
        warp.call(GET, key, |lane, value: u64| right &= value == key(lane) + 1).await?;
        Ok::<_, ClientError>(right)
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for seed in 0..100 {
        assert!(play(seed)?.outputs()?.iter().all(|&right| right), "seed {seed} fails");
    }
    let (first, again) = (play(42)?, play(42)?);
    println!("100 seeds pass; seed 42 takes {} steps, and again {}", first.steps, again.steps);
    Ok(())
}

#[test]
fn what_a_lane_puts_it_gets_back() {
    for seed in 0..100 {
        let outputs = play(seed).unwrap().outputs().unwrap();
        assert_eq!(outputs, [true; 4], "seed {seed}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let (first, again) = (play(42).unwrap(), play(42).unwrap());
    assert_eq!((first.steps, first.stats), (again.steps, again.stats));
}
