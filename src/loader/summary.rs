//! What `--stats` tells after the program.

use std::fmt::Write;
use std::time::Duration;

use crate::libc::{HeapStats, Services};
use crate::stats::Stats;

/// A line for each kind of thing that was done.
pub(super) fn text(
    time: Duration,
    stats: &Stats,
    heap: Option<HeapStats>,
    services: &Services,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "hostcall-loader: {name:<8} {value}").expect("a String takes all");
    };
    line("time", format!("{:.3} s", time.as_secs_f64()));
    line(
        "calls",
        format!("{} begun, {} done, {} failed", stats.accepted, stats.completed, stats.failed()),
    );
    line("polling", format!("{} passes, {} stray packets", stats.passes, stats.strays));
    if let Some(heap) = heap {
        line(
            "malloc",
            format!(
                "{} bytes at most, {} in {} blocks not freed, {} refused, {} bad frees",
                heap.peak_bytes, heap.live_bytes, heap.live, heap.exhausted, heap.bad_frees
            ),
        );
    }
    let files = services.files().stats();
    line(
        "files",
        format!(
            "{} opened, {} closed, {} lost data",
            files.opened, files.closed, files.failed_closes
        ),
    );
    let denials = services.denials();
    line(
        "denied",
        format!(
            "{} files, {} commands, {} allocations, {} functions",
            denials.files.total(),
            denials.commands,
            denials.allocations,
            denials.functions
        ),
    );
    text
}
