//! What the benchmarks share: samples, medians, and the quick mode of continuous integration.
// Each of them is a crate of its own, and not every one uses all of it.
#![allow(dead_code)]

use std::time::{Duration, Instant};

/// Whether to show only that the benchmark runs (`HOSTCALL_BENCH_QUICK=1`).
pub(crate) fn quick() -> bool {
    std::env::var_os("HOSTCALL_BENCH_QUICK").is_some_and(|value| value != "0")
}

/// The time of one `work`, in nanoseconds: the median over many short batches, so that those in
/// which the operating system ran something else do not count.
pub(crate) fn median(time: Duration, mut work: impl FnMut()) -> f64 {
    const BATCHES: u32 = 2000;
    let time = if quick() { time / 20 } else { time };
    let mut batch = |repetitions: u32| {
        let begun = Instant::now();
        (0..repetitions).for_each(|_| work());
        begun.elapsed()
    };
    let mut repetitions = 1;
    while batch(repetitions) < time / BATCHES {
        repetitions *= 2;
    }
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || begun.elapsed() < time {
        times.push(batch(repetitions).as_secs_f64() * 1e9 / f64::from(repetitions));
    }
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
