//! Signals that ask the loader to end: what the program has written is written out first.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, iterator};

type Task = Box<dyn FnOnce() + Send>;

/// From now on the first SIGINT, SIGTERM or SIGHUP ends this process with status 128 and its number, as shells
/// have it, after a task has been done; a second one ends it at once. Those that whoever started this
/// process ignores, as `nohup` does, stay ignored.
pub(super) struct Signals {
    task: Arc<Mutex<Option<Task>>>,
}

impl Signals {
    pub(super) fn catch() -> io::Result<Self> {
        let seen = Arc::new(AtomicBool::new(false));
        let wanted = [SIGINT, SIGTERM, SIGHUP];
        let caught: Vec<_> = wanted.into_iter().filter(|&signal| !is_ignored(signal)).collect();
        for &signal in &caught {
            // In this order: the first signal finds it unset.
            flag::register_conditional_shutdown(signal, 128 + signal, seen.clone())?;
            flag::register(signal, seen.clone())?;
        }
        let mut signals = iterator::Signals::new(&caught)?;
        let task: Arc<Mutex<Option<Task>>> = Arc::default();
        let todo = task.clone();
        let wait = move || {
            if let Some(signal) = signals.forever().next() {
                // Kept locked: whoever wants to take the task back waits for the end.
                let mut todo = todo.lock();
                if let Some(task) = todo.take() {
                    task();
                }
                process::exit(128 + signal);
            }
        };
        thread::Builder::new().name("hostcall-signals".to_owned()).spawn(wait)?;
        Ok(Signals { task })
    }

    /// Does this at the first signal, if that comes before the result is dropped.
    pub(super) fn at_the_first(&self, task: impl FnOnce() + Send + 'static) -> AtSignal<'_> {
        *self.task.lock() = Some(Box::new(task));
        AtSignal(self)
    }
}

/// Whether this process ignores a signal, where the system says so.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| set >> (signal - 1) & 1 == 1)
}

/// Something to do at a signal, for as long as this is there.
pub(super) struct AtSignal<'s>(&'s Signals);

impl Drop for AtSignal<'_> {
    fn drop(&mut self) {
        *self.0.task.lock() = None;
    }
}
