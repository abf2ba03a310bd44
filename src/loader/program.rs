//! A loaded program on whichever runtime: its kernels in their order, what it may do, its exit status.

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::backend::SharedAllocator;
use crate::error::{BuildError, Cause, ConversationError};
use crate::launch::{KernelState, LaunchError, Served, Watch};
use crate::libc::files::{Access, FilePolicy, Standard};
use crate::libc::{Heap, Services};
use crate::protocol::Abi;
use crate::registry::Registry;
use crate::server::Server;

use super::complain;
use super::error::{LoaderError, RuntimeError};
use super::options::{Files, Options};
use super::signals::Signals;
use super::summary;

/// How long a program that has called `exit` may take to end by itself. Its other threads may never.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Failed conversations that are told of.
const REPORTS: u32 = 8;

/// Ports that a server has at least.
const FEWEST_PORTS: u32 = 64;

/// The kernels of a program (PROTOCOL.md §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Constructors.
    Begin,
    /// `main`, by every thread.
    Start,
    /// Destructors.
    End,
}

impl Kernel {
    pub(super) fn name(self) -> &'static str {
        ["_begin", "_start", "_end"][self as usize]
    }

    /// What a loader gives it: `argc`, `argv`, `envp`, and the place for the result; the status.
    pub(super) fn most_parameters(self) -> usize {
        [3, 4, 1][self as usize]
    }

    /// Their number where it can be given.
    pub(super) fn checked(self, parameters: usize) -> Result<usize, LoaderError> {
        let (kernel, given) = (self.name(), self.most_parameters());
        if parameters > given {
            return Err(LoaderError::Parameters { kernel, parameters, given });
        }
        Ok(parameters)
    }
}

/// What is launched: a kernel with its sizes, and the status for `_end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) kernel: Kernel,
    pub(super) blocks: [u32; 3],
    pub(super) threads: [u32; 3],
    pub(super) status: i32,
}

/// A program on a device, loaded and published, and all that it needs while it runs.
pub(super) trait Loaded {
    /// The source of the memory that it shares with its server.
    type Allocator: SharedAllocator + 'static;

    /// Its server.
    fn server(&self) -> &Arc<Server<Self::Allocator>>;

    /// Whether it has that kernel.
    fn has(&self, kernel: Kernel) -> bool;

    /// Launches a kernel, and serves and waits as `watch` says.
    fn launch(
        &self,
        watch: &Watch<'_, Self::Allocator>,
        launch: Launch,
    ) -> Result<Served, LaunchError<RuntimeError>>;

    /// What the kernels left as their result.
    fn result(&self) -> i32;
}

/// What answers the program's calls.
pub(super) struct Host {
    registry: Registry,
    services: Services,
    heap: Option<Heap>,
}

impl Host {
    /// What the options allow: by default all that a local program may.
    pub(super) fn new(options: &Options, heap: Option<Heap>) -> Result<Self, LoaderError> {
        let access = match options.files {
            Files::None => None,
            Files::Read => Some(Access::ReadOnly),
            Files::All => Some(Access::ReadWrite),
        };
        let files = match (access, &options.root) {
            (None, _) => FilePolicy::denied(),
            (Some(access), None) => FilePolicy::everything(access),
            (Some(access), Some(root)) => FilePolicy::directory(root, access)
                .map_err(|error| LoaderError::Root { path: root.clone(), error })?,
        };
        let mut services = Services::builder().standard(Standard::process()).files(files);
        if options.system {
            services = services.allow_system();
        }
        if let Some(heap) = &heap {
            services = services.heap(heap.clone());
        }
        let (registry, services) = (Registry::new(), services.build());
        services.register(&registry)?;
        Ok(Host { registry, services, heap })
    }

    /// A server of those handlers.
    pub(super) fn serve<A>(
        &self,
        allocator: A,
        abi: Abi,
        ports: u32,
        lanes: u32,
    ) -> Result<Arc<Server<A>>, LoaderError>
    where
        A: SharedAllocator + 'static,
        RuntimeError: From<A::Error>,
    {
        let server = Server::builder(allocator)
            .abi(abi)
            .ports(ports)
            .lanes(lanes)
            .registry(&self.registry)
            .on_error(report());
        match server.build() {
            Ok(server) => Ok(Arc::new(server)),
            Err(BuildError::Allocator(error)) => Err(RuntimeError::from(error).into()),
            Err(BuildError::Layout(error)) => Err(error.into()),
        }
    }

    /// Writes out what the program has written, and tells what was done where that is wanted. The
    /// file table counts what it cannot write. Standard output has been flushed at each write, and is
    /// left alone: somebody may be in the middle of one that nobody reads.
    fn close<A: SharedAllocator + 'static>(
        &self,
        server: &Server<A>,
        began: Instant,
        options: &Options,
    ) {
        let _ = self.services.files().close_all();
        if options.stats {
            let heap = self.heap.as_ref().map(Heap::stats);
            let text = summary::text(began.elapsed(), &server.stats(), heap, &self.services);
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
}

/// Tells of failed conversations, the first ones only: a program may have thousands of threads.
fn report() -> impl Fn(&ConversationError) + Send + Sync {
    let left = AtomicU32::new(REPORTS);
    move |error| {
        // Those are told of once, as the reason for the shutdown.
        if matches!(error.cause, Cause::ShutDown) {
            return;
        }
        let count = |left: u32| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Ok(1) => complain(&Last(error)),
            Ok(_) => complain(error),
            Err(_) => {}
        }
    }
}

/// The last failed conversation that is told of.
#[derive(Debug, thiserror::Error)]
#[error("{0}; more like this is not reported")]
struct Last<'e>(&'e ConversationError);

/// The image's name, as the user wrote it, and the program's arguments.
pub(super) fn argv(options: &Options) -> Vec<OsString> {
    let name = options.image.clone().into_os_string();
    std::iter::once(name).chain(options.arguments.iter().cloned()).collect()
}

/// A port for each warp of so many lanes, of those that can run at a time.
pub(super) fn ports(options: &Options, abi: Abi, lanes: u32, resident: u64) -> u32 {
    let most = abi.max_ports();
    if let Some(ports) = options.ports {
        return ports.min(most);
    }
    let product = |sizes: [u32; 3]| sizes.into_iter().map(u64::from).fold(1, u64::saturating_mul);
    let warps = product(options.threads).div_ceil(lanes.into());
    let warps = warps.saturating_mul(product(options.blocks));
    (warps.min(resident).min(most.into()) as u32).max(FEWEST_PORTS)
}

/// Runs a loaded program and returns its exit status.
pub(super) fn run<L: Loaded>(
    options: &Options,
    signals: Option<&Signals>,
    loaded: L,
    host: Host,
) -> Result<i32, LoaderError> {
    let (host, began) = (Arc::new(host), Instant::now());
    let at_signal = signals.map(|signals| {
        let (host, server, options) = (host.clone(), loaded.server().clone(), options.clone());
        signals.at_the_first(move || host.close(&server, began, &options))
    });
    let result = run_kernels(options, &loaded, began);
    drop(at_signal);
    let running = match &result {
        Ok(ended) => ended.kernel == KernelState::StillRuns,
        Err(LoaderError::Launch { error, .. }) => matches!(
            error,
            LaunchError::TimedOut { kernel: KernelState::StillRuns, .. }
                | LaunchError::ServerStopped(_)
                | LaunchError::Worker(_)
        ),
        Err(_) => false,
    };
    // Before anything that could wait.
    host.close(loaded.server(), began, options);
    if running {
        // To give memory back would wait for the kernel, which ends with this process.
        std::mem::forget((loaded, host));
    }
    result.map(|ended| ended.status)
}

/// How a program ended.
struct Ended {
    status: i32,
    kernel: KernelState,
}

fn run_kernels(
    options: &Options,
    loaded: &impl Loaded,
    began: Instant,
) -> Result<Ended, LoaderError> {
    let once = |kernel, status| Launch { kernel, blocks: [1; 3], threads: [1; 3], status };
    let ended = |served: &Served, status| Ended {
        status: served.exit.map_or(status, |exit| exit.status),
        kernel: served.kernel,
    };
    if loaded.has(Kernel::Begin) {
        let served = launch(options, loaded, began, once(Kernel::Begin, 0))?;
        if served.exit.is_some() {
            return Ok(ended(&served, 0));
        }
    }
    let (blocks, threads) = (options.blocks, options.threads);
    let start = Launch { kernel: Kernel::Start, blocks, threads, status: 0 };
    let served = launch(options, loaded, began, start)?;
    let status = loaded.result();
    if served.exit.is_some() || !loaded.has(Kernel::End) {
        return Ok(ended(&served, status));
    }
    // Older libraries end with exit(status), which the server reports; newer ones return.
    let served = launch(options, loaded, began, once(Kernel::End, status))?;
    Ok(ended(&served, status))
}

fn launch<L: Loaded>(
    options: &Options,
    loaded: &L,
    began: Instant,
    launch: Launch,
) -> Result<Served, LoaderError> {
    let mut watch = Watch::new(loaded.server());
    watch.timeout = options.timeout.map(|limit| limit.saturating_sub(began.elapsed()));
    watch.exit_grace = Some(EXIT_GRACE);
    loaded.launch(&watch, launch).map_err(|mut error| {
        // The time is the program's, of which this kernel had what was left.
        if let (LaunchError::TimedOut { after, .. }, Some(limit)) = (&mut error, options.timeout) {
            *after = limit;
        }
        LoaderError::Launch { kernel: launch.kernel.name(), error }
    })
}
