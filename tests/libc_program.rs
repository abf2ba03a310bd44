//! The original job, end to end: a device program prints through its host and exits.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

use hostcall::libc::Services;
use hostcall::libc::files::{Captured, Standard};
use hostcall::{LaneMask, Registry, Simulation};

const WARPS: u32 = 64;
const LINES: u32 = 10_000;

#[test]
fn ten_thousand_lines_from_64_warps_arrive_whole_and_the_status_is_the_programs() {
    let (registry, printed) = (Registry::new(), Captured::new());
    let services = Services::builder().standard(Standard::null().stderr(printed.clone())).build();
    services.register(&registry).unwrap();
    let number = |round: u32, warp: u32, lane: u32| (round * WARPS + warp) * 32 + lane;
    let line = |number: u32| format!("line {number} {}\n", "=".repeat(number as usize % 150));
    let report = Simulation::new(&registry)
        .seed(3)
        .warps(WARPS)
        .ports(16)
        .run(async |warp| {
            for round in 0..LINES.div_ceil(WARPS * 32) {
                let active = LaneMask::from_fn(|lane| number(round, warp.index(), lane) < LINES);
                if active.is_empty() {
                    continue;
                }
                let text = |lane| line(number(round, warp.index(), lane));
                warp.diverge(active).write_stderr(text).await?;
            }
            if warp.index() == 0 {
                warp.exit(42).await?;
            }
            Ok(())
        })
        .unwrap();

    assert_eq!(report.exit.map(|exit| exit.status), Some(42));
    assert_eq!((report.stats.failed(), report.in_flight.len()), (0, 0));
    report.outputs().unwrap();
    let text = String::from_utf8(printed.take()).unwrap();
    let mut lines: Vec<_> = text.split_inclusive('\n').map(str::to_owned).collect();
    let mut expected: Vec<_> = (0..LINES).map(line).collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}
