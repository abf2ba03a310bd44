//! Calls, notifications and streams from kernels: this crate's client and server against the published
//! algorithm (PROTOCOL.md §2) and against a bare flag ping-pong, all in one run on one GPU.
//!
//! `cargo bench --features cuda --bench cuda` on a machine with an NVIDIA GPU. To carry it there, build
//! it with `--no-run`; it compiles its kernels with NVRTC when it runs. Words as arguments choose parts:
//! `latency`, `calls`, `notifications`, `streams`.
#![allow(unsafe_code, clippy::cast_precision_loss)]

use std::alloc::Layout;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Instant;

use hostcall::backend::{Purpose, SharedBox};
use hostcall::cuda::cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use hostcall::cuda::cudarc::nvrtc::Ptx;
use hostcall::cuda::{self, CudaAllocator, DeviceClient};
use hostcall::device::{CLIENT_SYMBOL, FAST_CLIENT_SYMBOL};
use hostcall::protocol::Channel;
use hostcall::{Abi, IdlePolicy, LaneMask, Opcode, Registry, Server, Worker};

const CALL: Opcode = Opcode::new(b'b', 1);
const NOTE: Opcode = Opcode::new(b'b', 2);
const STREAM: Opcode = Opcode::new(b'b', 3);
const PORTS: u32 = 4096;

type AnyError = Box<dyn Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether a part of the benchmark was asked for by a word of its title; all are, where none was.
fn wanted(title: &str) -> bool {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    words.peek().is_none() || words.any(|word| title.contains(&word))
}

fn run() -> Result<(), AnyError> {
    let context = CudaAllocator::open(0)?.context().clone();
    println!("{}, {PORTS} ports", context.name()?);
    let bench = Bench::new(&context)?;
    let floor = bench.ping("ping_ordered")?;
    println!("flag ping-pong, release and acquire: {:.2} µs", floor * 1e6);
    println!("flag ping-pong, relaxed:             {:.2} µs", bench.ping("ping_relaxed")? * 1e6);

    println!("\none call, one warp: median µs (99th percentile), ratio to the ordered ping-pong");
    println!(
        "{:>6} {:>22} {:>22} {:>22}",
        "lanes", "baseline", "ours, LLVM's wire", "ours, own wire"
    );
    for lanes in [1, 32].into_iter().filter(|_| wanted("latency")) {
        print!("{lanes:>6}");
        for client in [Side::Baseline, Side::Ours, Side::Fast] {
            let (median, slow) = bench.latency(client, lanes)?;
            print!(" {:>6.2} ({:>5.2}) {:>7.2}", median * 1e6, slow * 1e6, median / floor);
        }
        println!();
    }

    let parts = [("calls", "calls", CALL), ("notifications", "notify", NOTE)];
    for (what, kernel, opcode) in parts.into_iter().filter(|(what, ..)| wanted(what)) {
        println!("\n{what} of a warp: million a second, and times the baseline");
        println!(
            "{:>6} {:>6} {:>10} {:>18} {:>18} {:>18} {:>18}",
            "warps",
            "lanes",
            "baseline",
            "its client, ours",
            "LLVM's wire",
            "own wire",
            "own, 4 threads"
        );
        for (warps, lanes, n) in [
            (1, 1, 10_000),
            (1, 32, 10_000),
            (132, 1, 2000),
            (132, 32, 1000),
            (1056, 1, 400),
            (1056, 32, 150),
            (4224, 1, 100),
            (4224, 32, 40),
        ] {
            let grid = Grid { warps, lanes, n };
            let rate = |client, server| -> Result<f64, AnyError> {
                let time = bench.calls(client, server, kernel, opcode, grid);
                let time = time.map_err(|error| named(client, server, grid, error))?;
                Ok(f64::from(warps) * f64::from(n) / time / 1e6)
            };
            let baseline = rate(Side::Baseline, Host::Baseline)?;
            let mixed = rate(Side::Baseline, Host::Ours(1))?;
            print!("{warps:>6} {lanes:>6} {baseline:>10.3}");
            for rate in [
                mixed,
                rate(Side::Ours, Host::Ours(1))?,
                rate(Side::Fast, Host::Ours(1))?,
                rate(Side::Fast, Host::Ours(4))?,
            ] {
                print!(" {rate:>10.3} {:>7.1}", rate / baseline);
            }
            println!();
        }
    }

    if !wanted("streams") {
        return Ok(());
    }
    println!("\nstreams of 32 lanes to the host: GB/s, and times the baseline");
    println!(
        "{:>6} {:>10} {:>10} {:>18} {:>18} {:>18} {:>18}",
        "warps",
        "bytes",
        "baseline",
        "its client, ours",
        "LLVM's wire",
        "own wire",
        "own, 4 threads"
    );
    for (warps, size, n) in [(1, 65536, 10), (132, 4096, 2), (528, 4096, 1)] {
        let grid = Grid { warps, lanes: 32, n };
        let rate = |client, server| -> Result<f64, AnyError> {
            let time = bench.streams(client, server, grid, size);
            let time = time.map_err(|error| named(client, server, grid, error))?;
            Ok(f64::from(warps) * f64::from(n) * 32.0 * size as f64 / time / 1e9)
        };
        let baseline = rate(Side::Baseline, Host::Baseline)?;
        let mixed = rate(Side::Baseline, Host::Ours(1))?;
        print!("{warps:>6} {size:>10} {baseline:>10.3}");
        for rate in [
            mixed,
            rate(Side::Ours, Host::Ours(1))?,
            rate(Side::Fast, Host::Ours(1))?,
            rate(Side::Fast, Host::Ours(4))?,
        ] {
            print!(" {rate:>10.3} {:>7.1}", rate / baseline);
        }
        println!();
    }
    Ok(())
}

/// Which client the kernel uses.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// The header's on LLVM's wire.
    Ours,
    /// The header's on the crate's own wire.
    Fast,
    Baseline,
}

/// Which server answers, ours with how many threads.
#[derive(Clone, Copy, Debug)]
enum Host {
    Baseline,
    Ours(usize),
}

#[derive(Clone, Copy, Debug)]
struct Grid {
    warps: u32,
    lanes: u32,
    n: u32,
}

fn named(client: Side, server: Host, grid: Grid, error: AnyError) -> AnyError {
    format!("client {client:?}, server {server:?}, {grid:?}: {error}").into()
}

/// What a kernel reports: `Result` of bench.cu as words.
struct Report {
    wrong: u32,
    done: u32,
    nanoseconds: u64,
    cycles: u64,
}

impl Report {
    fn check(&self, grid: Grid) -> Result<(), AnyError> {
        if (self.wrong, self.done) == (0, grid.warps) {
            return Ok(());
        }
        let replies = u64::from(grid.warps) * u64::from(grid.lanes) * u64::from(grid.n);
        Err(format!("{} of {replies} replies were wrong, {} warps ended", self.wrong, self.done)
            .into())
    }
}

struct Bench {
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

impl Bench {
    fn new(context: &Arc<CudaContext>) -> Result<Self, AnyError> {
        let baseline = include_str!("../device/bench/baseline.h")
            .replace("#include \"../hostcall.h\"", "#include \"hostcall.h\"");
        let source =
            include_str!("../device/bench/bench.cu").replace("#include \"baseline.h\"", &baseline);
        let ptx = cuda::compile(&source, &cuda::architecture(context)?, &[])?;
        let module = context.load_module(Ptx::from_src(ptx))?;
        Ok(Bench { stream: context.new_stream()?, module })
    }

    fn kernel(&self, name: &str) -> Result<CudaFunction, AnyError> {
        Ok(self.module.load_function(name)?)
    }

    fn allocator(&self) -> CudaAllocator {
        CudaAllocator::new(self.stream.context().clone())
    }

    /// Seconds of one round trip of a flag between a GPU thread and a host thread.
    fn ping(&self, kernel: &str) -> Result<f64, AnyError> {
        const N: u32 = 20_000;
        let kernel = self.kernel(kernel)?;
        let allocator = Arc::new(self.allocator());
        let page = Layout::from_size_align(4096, 4096)?;
        let there = SharedBox::new(allocator.clone(), page, Purpose::HostPolledFlags)?;
        let back = SharedBox::new(allocator, page, Purpose::DevicePolledFlags)?;
        let mut result = self.stream.alloc_zeros::<u64>(5)?;
        let (there_device, back_device) = (there.device().0, back.device().0);
        // SAFETY: the arguments are those of the kernel; all memory outlives it, which `report`
        // waits for.
        unsafe {
            self.stream
                .launch_builder(&kernel)
                .arg(&there_device)
                .arg(&back_device)
                .arg(&N)
                .arg(&mut result)
                .launch(config(1))?;
        }
        // SAFETY: both pages are valid, aligned, zeroed and accessed by atomics only.
        let (there, back) = unsafe {
            (
                AtomicU32::from_ptr(there.host().as_ptr().cast()),
                AtomicU32::from_ptr(back.host().as_ptr().cast()),
            )
        };
        for i in 1..=N {
            while there.load(Ordering::Acquire) != i {
                std::hint::spin_loop();
            }
            back.store(i, Ordering::Release);
        }
        let report = self.report(&result)?;
        Ok(report.nanoseconds as f64 / 1e9 / f64::from(N))
    }

    /// Median and 99th percentile of a call's seconds, one warp, one polling thread.
    fn latency(&self, client: Side, lanes: u32) -> Result<(f64, f64), AnyError> {
        const N: u32 = 20_000;
        let mut samples = self.stream.alloc_zeros::<u32>(N as usize)?;
        let server = match client {
            Side::Ours | Side::Fast => Host::Ours(1),
            Side::Baseline => Host::Baseline,
        };
        let grid = Grid { warps: 1, lanes, n: N };
        let mut scale = 0.0;
        self.served(client, server, |kernel_of| {
            let (result, report) =
                self.launch(&kernel_of("calls"), CALL, grid, Some(&mut samples))?;
            drop(result);
            scale = report.nanoseconds as f64 / 1e9 / report.cycles as f64;
            Ok(())
        })?;
        let mut cycles = self.stream.clone_dtoh(&samples)?;
        cycles.sort_unstable();
        let at = |part: f64| f64::from(cycles[(f64::from(N) * part) as usize]) * scale;
        Ok((at(0.5), at(0.99)))
    }

    /// Seconds from launch to end.
    fn calls(
        &self,
        client: Side,
        server: Host,
        kernel: &str,
        opcode: Opcode,
        grid: Grid,
    ) -> Result<f64, AnyError> {
        self.served(client, server, |kernel_of| {
            let began = Instant::now();
            self.launch(&kernel_of(kernel), opcode, grid, None)?;
            Ok(began.elapsed().as_secs_f64())
        })
    }

    fn streams(&self, client: Side, server: Host, grid: Grid, size: u64) -> Result<f64, AnyError> {
        let bytes = u64::from(grid.warps) * 32 * size;
        let data = self.stream.alloc_zeros::<u8>(bytes as usize)?;
        self.served(client, server, |kernel_of| {
            let mut result = self.stream.alloc_zeros::<u64>(5)?;
            self.stream.synchronize()?;
            let (opcode, kernel) = (STREAM.0, kernel_of("stream"));
            let began = Instant::now();
            // SAFETY: the arguments are those of the kernel; `report` waits for its end.
            unsafe {
                self.stream
                    .launch_builder(&kernel)
                    .arg(&opcode)
                    .arg(&grid.n)
                    .arg(&grid.lanes)
                    .arg(&data)
                    .arg(&size)
                    .arg(&mut result)
                    .launch(config(grid.warps))?;
            }
            self.report(&result)?.check(grid)?;
            Ok(began.elapsed().as_secs_f64())
        })
    }

    fn launch(
        &self,
        kernel: &CudaFunction,
        opcode: Opcode,
        grid: Grid,
        samples: Option<&mut CudaSlice<u32>>,
    ) -> Result<(CudaSlice<u64>, Report), AnyError> {
        use hostcall::cuda::cudarc::driver::DevicePtr;
        let samples = samples.map_or(0, |samples| samples.device_ptr(&self.stream).0);
        let mut result = self.stream.clone_htod(&[0, 0, 0, 0, samples])?;
        self.stream.synchronize()?;
        let opcode = opcode.0;
        // SAFETY: the arguments are those of the kernel; `report` waits for its end.
        unsafe {
            self.stream
                .launch_builder(kernel)
                .arg(&opcode)
                .arg(&grid.n)
                .arg(&grid.lanes)
                .arg(&mut result)
                .launch(config(grid.warps))?;
        }
        let report = self.report(&result)?;
        report.check(grid)?;
        Ok((result, report))
    }

    fn report(&self, result: &CudaSlice<u64>) -> Result<Report, AnyError> {
        // Waits in the driver: another thread serves.
        let words = self.stream.clone_dtoh(result)?;
        self.stream.synchronize()?;
        Ok(Report {
            wrong: words[0] as u32,
            done: (words[0] >> 32) as u32,
            nanoseconds: words[2],
            cycles: words[3],
        })
    }

    /// Publishes a client, serves it while `launch` runs.
    fn served<T>(
        &self,
        client: Side,
        server: Host,
        launch: impl FnOnce(&dyn Fn(&str) -> CudaFunction) -> Result<T, AnyError>,
    ) -> Result<T, AnyError> {
        let (symbol, prefix) = match client {
            Side::Ours => (CLIENT_SYMBOL, "ours"),
            Side::Fast => (FAST_CLIENT_SYMBOL, "fast"),
            Side::Baseline => ("__hostcall_baseline_client", "baseline"),
        };
        let abi = if matches!(client, Side::Fast) { Abi::Hostcall } else { Abi::Llvm20 };
        let threads = match server {
            Host::Ours(threads) => threads,
            Host::Baseline => 1,
        };
        let registry = registry()?;
        let builder = Server::builder(self.allocator()).abi(abi).ports(PORTS).lanes(32);
        let host = Arc::new(builder.registry(&registry).shards(threads as u32).build()?);
        DeviceClient::find_named(&self.module, &self.stream, symbol)?.publish(&host)?;
        let kernel_of = |name: &str| self.kernel(&format!("{prefix}_{name}")).expect("in bench.cu");
        match server {
            Host::Ours(threads) => {
                let worker =
                    Worker::builder(host).threads(threads).idle(IdlePolicy::BUSY).start()?;
                let result = launch(&kernel_of);
                worker.stop()?;
                result
            }
            Host::Baseline => {
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    let served = host.clone();
                    let stop = &stop;
                    scope.spawn(move || published::serve(&served, stop));
                    let result = launch(&kernel_of);
                    stop.store(true, Ordering::Relaxed);
                    result
                })
            }
        }
    }
}

/// One warp a block, so that as many can be resident as the device has room for.
fn config(warps: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (warps, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 }
}

fn registry() -> Result<Registry, AnyError> {
    let registry = Registry::new();
    registry.unary(CALL, |_, number: u64| number + 1)?;
    registry.notification(NOTE, |_, _: u64| ())?;
    registry.conversation(STREAM, async |mut call| {
        let mut lengths = [0; 64];
        call.recv_stream_with(|lane, _, part| lengths[lane as usize] += part.len() as u64).await?;
        call.send(|lane| lane.set_word(0, lengths[lane.index() as usize])).await?;
        Ok(())
    })?;
    Ok(registry)
}

/// The server's half of the algorithm as it was published (PROTOCOL.md §2): a linear scan that goes on
/// behind the last port, both mailboxes read each time, lock bits, relaxed accesses with fences apart,
/// and each conversation served to its end.
mod published {
    use super::{
        AtomicBool, AtomicU32, Channel, CudaAllocator, LaneMask, NOTE, Opcode, Ordering, PORTS,
        STREAM, Server, fence,
    };

    pub(super) fn serve(server: &Server<CudaAllocator>, stop: &AtomicBool) {
        let channel = server.client().channel();
        let locks: Vec<_> = (0..PORTS.div_ceil(32)).map(|_| AtomicU32::new(0)).collect();
        let mut start = 0;
        while !stop.load(Ordering::Relaxed) {
            match (start..PORTS).find(|&port| try_open(&channel, &locks, port)) {
                Some(port) => {
                    conversation(&channel, port, stop);
                    fence(Ordering::Release);
                    locks[port as usize / 32].fetch_and(!(1 << (port % 32)), Ordering::Relaxed);
                    start = port + 1;
                }
                None => start = 0,
            }
        }
    }

    fn owns(channel: &Channel<'_>, port: u32) -> bool {
        let [inbox, outbox] = [channel.secondary(), channel.primary()]
            .map(|mailboxes| mailboxes[port as usize].load(Ordering::Relaxed));
        inbox != outbox
    }

    fn try_open(channel: &Channel<'_>, locks: &[AtomicU32], port: u32) -> bool {
        if !owns(channel, port) {
            return false;
        }
        let (lock, bit) = (&locks[port as usize / 32], 1 << (port % 32));
        if lock.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return false;
        }
        fence(Ordering::Acquire);
        if owns(channel, port) {
            return true;
        }
        fence(Ordering::Release);
        lock.fetch_and(!bit, Ordering::Relaxed);
        false
    }

    fn flip(channel: &Channel<'_>, port: u32) {
        fence(Ordering::Release);
        let outbox = &channel.primary()[port as usize];
        outbox.store(outbox.load(Ordering::Relaxed) ^ 1, Ordering::Relaxed);
    }

    fn wait(channel: &Channel<'_>, port: u32, stop: &AtomicBool) {
        while !owns(channel, port) && !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        fence(Ordering::Acquire);
    }

    fn conversation(channel: &Channel<'_>, port: u32, stop: &AtomicBool) {
        fence(Ordering::Acquire);
        let mask: LaneMask = channel.mask(port);
        match Opcode(channel.raw_opcode(port)) {
            STREAM => stream(channel, port, mask, stop),
            NOTE => {}
            _ => {
                for lane in mask {
                    let lane = channel.lane(port, lane);
                    lane.set_word(0, lane.word(0) + 1);
                }
            }
        }
        flip(channel, port);
    }

    fn stream(channel: &Channel<'_>, port: u32, mask: LaneMask, stop: &AtomicBool) {
        let mut lengths = [0; 64];
        let mut messages = vec![Vec::new(); 64];
        for lane in mask {
            let packet = channel.lane(port, lane).load();
            let length = packet.words[0];
            lengths[lane as usize] = length;
            let message = &mut messages[lane as usize];
            message.reserve(length as usize);
            message.extend_from_slice(&packet.bytes()[8..][..length.min(56) as usize]);
        }
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let mut received = 56;
        while received < longest {
            flip(channel, port);
            wait(channel, port, stop);
            for lane in mask {
                let left = lengths[lane as usize].saturating_sub(received).min(64);
                let packet = channel.lane(port, lane).load();
                messages[lane as usize].extend_from_slice(&packet.bytes()[..left as usize]);
            }
            received += 64;
        }
        for lane in mask {
            channel.lane(port, lane).set_word(0, messages[lane as usize].len() as u64);
        }
    }
}
