//! On an NVIDIA GPU. One command runs them all, on a machine with a driver and libnvrtc:
//!
//! ```sh
//! cargo test --features cuda,loader --test cuda -- --ignored
//! ```
//!
//! The kernels are compiled as the tests run. Where the test was built elsewhere, `HOSTCALL_LOADER`
//! says where the loader's binary is. `HOSTCALL_GPU_PROGRAMS` names a folder with the loader's
//! programs as PTX (`tests/gpu/build.sh` makes them with clang); without it they are compiled too.
#![cfg(all(unix, not(hostcall_loom)))]
#![expect(unsafe_code, reason = "to launch a kernel is to trust it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hostcall::cuda::cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use hostcall::cuda::cudarc::nvrtc::Ptx;
use hostcall::cuda::{
    self, CudaAllocator, DeviceClient, KernelState, LaunchError, Launcher, PublishError, Served,
};
use hostcall::libc::Services;
use hostcall::libc::files::{Access, Captured, FilePolicy, Standard};
use hostcall::{Abi, Builder, Cause, HandlerError, Opcode, Registry, Server, Worker};

const INCREMENT: Opcode = Opcode::new(b'x', 1);
const COUNT: Opcode = Opcode::new(b'x', 2);
const ECHO: Opcode = Opcode::new(b'x', 3);
const NEVER: Opcode = Opcode::new(b'x', 4);
const UNKNOWN: Opcode = Opcode::new(b'x', 5);

/// Warps that an H200 has resident at a time, 32 for each of its processors.
const WARPS: u32 = 4224;

/// The wires that the header speaks, each with the prefix of its kernels in [`HEADER_KERNELS`].
const WIRES: [(Abi, &str); 2] = [(Abi::Llvm20, "ours"), (Abi::Hostcall, "fast")];

/// The kernels that come with the header.
const HEADER_KERNELS: &str = include_str!("device/kernels.cu");
const KERNELS: &str = include_str!("gpu/kernels.cu");

/// A device with a module, for one test at a time: a fault takes everybody's context.
struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    wrong: CudaSlice<u32>,
    abi: Abi,
    _turn: Option<MutexGuard<'static, ()>>,
}

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    cuda::device_count().unwrap_or_else(|error| panic!("{error}"));
    turn
}

impl Gpu {
    fn new(source: &str) -> Self {
        Self::speaking(Abi::Llvm20, source)
    }

    fn speaking(abi: Abi, source: &str) -> Self {
        let turn = turn();
        Gpu { _turn: Some(turn), ..Self::on(0, abi, source) }
    }

    /// On a device whose turn is somebody else's care.
    fn on(device: usize, abi: Abi, source: &str) -> Self {
        let context = CudaContext::new(device).unwrap();
        let stream = context.new_stream().unwrap();
        let module = module(&context, abi, source);
        let wrong = stream.alloc_zeros(1).unwrap();
        stream.synchronize().unwrap();
        Gpu { context, stream, module, wrong, abi, _turn: None }
    }

    fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }

    fn builder(&self, registry: &Registry) -> Builder<CudaAllocator> {
        Server::builder(CudaAllocator::new(self.context.clone()))
            .abi(self.abi)
            .registry(registry)
            .device_deadline(Duration::from_secs(20))
    }

    /// A published server.
    fn server(&self, builder: Builder<CudaAllocator>) -> Arc<Server<CudaAllocator>> {
        let server = Arc::new(builder.build().unwrap());
        cuda::publish(&self.module, &self.stream, &server).unwrap();
        server
    }

    /// What the kernels have counted as wrong.
    fn wrong(&self) -> u32 {
        let wrong = self.stream.clone_dtoh(&self.wrong).unwrap();
        self.stream.synchronize().unwrap();
        wrong[0]
    }
}

fn module(context: &Arc<CudaContext>, abi: Abi, source: &str) -> Arc<CudaModule> {
    let source = source.replace("../../device/hostcall.h", "hostcall.h");
    let fast = if abi == Abi::Hostcall { "-DHOSTCALL_FAST=1" } else { "-DHOSTCALL_FAST=0" };
    let ptx = compiled(&cuda::architecture(context).unwrap(), &source, &[fast]);
    context.load_module(Ptx::from_src(ptx)).unwrap()
}

/// Compiles a source once.
fn compiled(architecture: &str, source: &str, options: &[&str]) -> String {
    static DONE: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let compile =
        || cuda::compile(source, architecture, options).unwrap_or_else(|error| panic!("{error}"));
    done.entry(format!("{options:?} {source}")).or_insert_with(compile).clone()
}

fn shape(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Launches and serves: `launch!(gpu, server, "kernel", (blocks, threads), arguments...)`.
macro_rules! launch {
    ($gpu:expr, $server:expr, $kernel:expr, ($blocks:expr, $threads:expr) $(, $argument:expr)*) => {{
        let kernel = $gpu.kernel($kernel);
        #[allow(unused_mut)]
        let mut launch = $gpu.stream.launch_builder(&kernel);
        $(launch.arg($argument);)*
        launcher(&$server).launch(&$gpu.stream.clone(), || {
            // SAFETY: the callers' arguments have the types that the kernel declares, in its order.
            unsafe { launch.launch(shape($blocks, $threads)) }
        })
    }};
}

fn launcher(server: &Arc<Server<CudaAllocator>>) -> Launcher<'_, CudaAllocator> {
    Launcher::new(server).timeout(Duration::from_secs(60))
}

/// Answers INCREMENT, COUNT, ECHO and, not at all, NEVER. Returns the count.
fn registry() -> (Registry, Arc<AtomicU64>) {
    let (registry, count) = (Registry::new(), Arc::new(AtomicU64::new(0)));
    registry.unary(INCREMENT, |_, number: u64| number + 1).unwrap();
    let counted = count.clone();
    registry
        .notification(COUNT, move |_, _: u64| {
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    registry.bytes(ECHO, |_, bytes| bytes).unwrap();
    registry
        .conversation(NEVER, async |_call| {
            std::future::pending::<()>().await;
            Ok::<_, HandlerError>(())
        })
        .unwrap();
    (registry, count)
}

fn assert_ended(served: &Served) {
    assert_eq!(served.kernel, KernelState::Ended);
    assert_eq!(served.unfinished, []);
}

/// Every conversation came to its end, none failed.
fn assert_all_completed(server: &Server<CudaAllocator>, conversations: u64) {
    let stats = server.stats();
    assert_eq!((stats.completed, stats.failed(), stats.strays), (conversations, 0, 0));
    assert_eq!(stats.accepted, conversations);
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn a_lane_calls_its_host() {
    for (abi, _) in WIRES {
        let (mut gpu, (registry, _)) = (Gpu::speaking(abi, KERNELS), registry());
        let server = gpu.server(gpu.builder(&registry));
        let (opcode, rounds, by) = (INCREMENT.0, 1000u32, 1u32);
        let ended =
            launch!(gpu, server, "increment", (1, 1), &opcode, &rounds, &by, &mut gpu.wrong)
                .unwrap();
        assert_ended(&ended);
        assert_eq!(gpu.wrong(), 0);
        assert_all_completed(&server, 1000);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn all_lanes_of_a_warp_share_a_conversation() {
    for (abi, _) in WIRES {
        let (mut gpu, (registry, _)) = (Gpu::speaking(abi, KERNELS), registry());
        let server = gpu.server(gpu.builder(&registry));
        let (opcode, rounds, by) = (INCREMENT.0, 1000u32, 1u32);
        launch!(gpu, server, "increment", (1, 32), &opcode, &rounds, &by, &mut gpu.wrong).unwrap();
        assert_eq!(gpu.wrong(), 0);
        assert!(server.stats().completed < 2000, "lanes called together: {:?}", server.stats());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn more_warps_than_ports_all_finish() {
    for (abi, _) in WIRES {
        let (mut gpu, (registry, _)) = (Gpu::speaking(abi, KERNELS), registry());
        let (opcode, rounds, by) = (INCREMENT.0, 4u32, 1u32);
        for (ports, shards) in [(1, 1), (3, 1), (64, 1), (1000, 4), (4096, 4)] {
            let rounds = if ports < 64 { 1 } else { rounds };
            let server = gpu.server(gpu.builder(&registry).ports(ports).shards(shards));
            let (blocks, threads) = (WARPS / 8, 256);
            let ended = launch!(
                gpu,
                server,
                "increment",
                (blocks, threads),
                &opcode,
                &rounds,
                &by,
                &mut gpu.wrong
            );
            assert_ended(&ended.unwrap());
            assert_eq!(gpu.wrong(), 0, "{ports} ports");
            assert_eq!(server.stats().in_flight(), 0);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn any_subset_of_lanes_calls() {
    for (abi, _) in WIRES {
        let (mut gpu, (registry, _)) = (Gpu::speaking(abi, KERNELS), registry());
        let server = gpu.server(gpu.builder(&registry));
        for lanes in
            [1u32, 1 << 31, 0x5555_5555, 0xaaaa_aaaa, 0x8000_0001, 0x0ff0_0000, 0, u32::MAX]
        {
            launch!(gpu, server, "increment_lanes", (4, 64), &INCREMENT.0, &lanes, &mut gpu.wrong)
                .unwrap();
            assert_eq!(gpu.wrong(), 0, "{lanes:#x}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn divergent_warps_call_notify_nest_and_reopen() {
    for (abi, prefix) in WIRES {
        let (mut gpu, (registry, count)) = (Gpu::speaking(abi, HEADER_KERNELS), registry());
        let server = gpu.server(gpu.builder(&registry).ports(1024));
        let mut notified: CudaSlice<u32> = gpu.stream.alloc_zeros(1).unwrap();
        let ops = ops();
        let rounds = 5u32;
        for (kernel, blocks, threads) in [
            ("diverge", 1, 32),
            ("diverge", 33, 96),
            ("diverge", 132, 256),
            ("nest", 1, 32),
            ("nest", 32, 96),
            ("reopen", 1, 32),
            ("reopen", 132, 64),
        ] {
            let kernel = format!("{prefix}_{kernel}");
            let function = gpu.kernel(&kernel);
            let mut launch = gpu.stream.launch_builder(&function);
            launch.arg(&ops).arg(&rounds).arg(&mut gpu.wrong).arg(&mut notified);
            let stream = gpu.stream.clone();
            // SAFETY: the arguments are those that the kernels declare.
            let ended = launcher(&server)
                .launch(&stream, || unsafe { launch.launch(shape(blocks, threads)) });
            assert_ended(&ended.unwrap());
            let told = stream.clone_dtoh(&notified).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(gpu.wrong(), 0, "{kernel} with {blocks} × {threads}");
            assert_eq!(count.load(Ordering::Relaxed), told[0].into(), "{kernel}");
        }
        assert_eq!(server.stats().failed(), 0);
    }
}

/// Opcodes as the kernels of the header take them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ops([u32; 4]);

fn ops() -> Ops {
    Ops([INCREMENT, COUNT, ECHO, UNKNOWN].map(|opcode| opcode.0))
}

// SAFETY: four 32-bit numbers, as the kernels' `struct Ops`.
unsafe impl hostcall::cuda::cudarc::driver::DeviceRepr for Ops {}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_functions_of_the_header_do_what_they_say() {
    let (registry, _) = registry();
    let printed = [Captured::new(), Captured::new()];
    let [out, err] = printed.clone();
    let services = Services::builder().standard(Standard::null().stdout(out).stderr(err)).build();
    services.register(&registry).unwrap();
    let mut gpu = Gpu::new(HEADER_KERNELS);
    // Before anything is published, nothing is dereferenced.
    let unpublished = gpu.kernel("unpublished");
    let mut launch = gpu.stream.launch_builder(&unpublished);
    launch.arg(&mut gpu.wrong);
    // SAFETY: the argument is the one that the kernel declares.
    unsafe { launch.launch(shape(2, 64)) }.unwrap();
    assert_eq!(gpu.wrong(), 0);

    let server = gpu.server(gpu.builder(&registry).owning(services));
    let ops = ops();
    launch!(gpu, server, "functions", (2, 64), &ops, &mut gpu.wrong).unwrap();
    assert_eq!(gpu.wrong(), 0);
    assert_eq!(printed[0].contents(), b"lane\n".repeat(128));
    assert_eq!(printed[1].contents().len(), 64 * (4 + 5));

    let status = 23i32;
    let served = launch!(gpu, server, "ends", (1, 32), &status).unwrap();
    assert_eq!(served.exit.map(|exit| (exit.status, exit.aborted)), Some((23, false)));
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn streams_of_all_lengths_come_back() {
    for (abi, prefix) in WIRES {
        let (mut gpu, (registry, _)) = (Gpu::speaking(abi, KERNELS), registry());
        let server = gpu.server(gpu.builder(&registry));
        let stride = (1u64 << 20) + 64;
        let mut there: CudaSlice<u8> = gpu.stream.alloc_zeros(32 * stride as usize).unwrap();
        let mut back: CudaSlice<u8> = gpu.stream.alloc_zeros(32 * stride as usize).unwrap();
        for size in [0u64, 1, 55, 56, 57, 119, 120, 121, 251, 1 << 20] {
            for lanes in [1, 32] {
                let served = launch!(
                    gpu,
                    server,
                    "stream",
                    (1, lanes),
                    &ECHO.0,
                    &size,
                    &stride,
                    &mut there,
                    &mut back,
                    &mut gpu.wrong
                );
                assert_ended(&served.unwrap());
                assert_eq!(gpu.wrong(), 0, "{size} bytes from {lanes} lanes");
            }
        }
        let ops = ops();
        drop((there, back, server, gpu));

        // Each lane a length and an alignment of its own.
        let mut gpu = Gpu::speaking(abi, HEADER_KERNELS);
        let server = gpu.server(gpu.builder(&registry).ports(256));
        let (blocks, threads, rounds) = (64, 96, 9u32);
        let bytes = blocks as usize * threads as usize * 512;
        let mut there: CudaSlice<u8> = gpu.stream.alloc_zeros(bytes).unwrap();
        let mut back: CudaSlice<u8> = gpu.stream.alloc_zeros(bytes).unwrap();
        let mut notified: CudaSlice<u32> = gpu.stream.alloc_zeros(1).unwrap();
        launch!(
            gpu,
            server,
            &format!("{prefix}_echo"),
            (blocks, threads),
            &ops,
            &rounds,
            &mut there,
            &mut back,
            &mut gpu.wrong,
            &mut notified
        )
        .unwrap();
        assert_eq!(gpu.wrong(), 0);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn notifications_that_a_kernel_sends_before_its_end_arrive() {
    for (abi, _) in WIRES {
        let (gpu, registry) = (Gpu::speaking(abi, KERNELS), Registry::new());
        let told = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let noted = told.clone();
        registry
            .notification(COUNT, move |_, number: u64| {
                noted[0].fetch_add(1, Ordering::Relaxed);
                noted[1].fetch_add(number, Ordering::Relaxed);
            })
            .unwrap();
        let mut kernels = 0;
        for ports in [256, 4096] {
            let server = gpu.server(gpu.builder(&registry).ports(ports));
            for _ in 0..10 {
                let served = launch!(gpu, server, "notify", (WARPS / 8, 256), &COUNT.0).unwrap();
                kernels += 1;
                let threads = u64::from(WARPS) * 32;
                assert_eq!(told[0].load(Ordering::Relaxed), kernels * threads);
                assert_eq!(
                    told[1].load(Ordering::Relaxed),
                    kernels * (threads * (threads - 1) / 2)
                );
                assert_ended(&served);
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn lines_of_all_threads_are_whole() {
    for (abi, _) in WIRES {
        let (registry, printed) = (Registry::new(), Captured::new());
        let services =
            Services::builder().standard(Standard::null().stdout(printed.clone())).build();
        services.register(&registry).unwrap();
        let mut gpu = Gpu::speaking(abi, KERNELS);
        let server = gpu.server(gpu.builder(&registry).ports(1024).owning(services));
        launch!(gpu, server, "print", (WARPS / 8, 256), &mut gpu.wrong).unwrap();
        assert_eq!(gpu.wrong(), 0);
        let text = String::from_utf8(printed.contents()).unwrap();
        let numbers: BTreeSet<u32> = text
            .lines()
            .map(|line| {
                let (number, rest) = line.strip_prefix("thread ").unwrap().split_at(7);
                assert_eq!(
                    rest,
                    " of the grid says that this line is longer than one packet of 64 bytes"
                );
                number.parse().unwrap()
            })
            .collect();
        assert_eq!(text.lines().count(), WARPS as usize * 32);
        assert!(numbers.into_iter().eq(0..WARPS * 32), "each once");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn an_unknown_opcode_releases_the_kernel() {
    for (abi, prefix) in WIRES {
        let (mut gpu, (registry, _)) = (Gpu::speaking(abi, HEADER_KERNELS), registry());
        let server = gpu.server(gpu.builder(&registry));
        let ops = ops();
        let mut notified: CudaSlice<u32> = gpu.stream.alloc_zeros(1).unwrap();
        let rounds = 3u32;
        let served = launch!(
            gpu,
            server,
            &format!("{prefix}_refused"),
            (8, 64),
            &ops,
            &rounds,
            &mut gpu.wrong,
            &mut notified
        );
        assert_ended(&served.unwrap());
        assert_eq!(gpu.wrong(), 0, "replies are zeros, the status says why");
        assert!(server.stats().unknown_opcodes >= 8 * 2 * 3);
        assert!(matches!(server.first_error().unwrap().cause, Cause::UnknownOpcode));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn two_servers_on_one_device_do_not_mix() {
    let mut gpu = Gpu::new(KERNELS);
    let other_module = module(&gpu.context, gpu.abi, KERNELS);
    let other_stream = gpu.context.new_stream().unwrap();
    let registries = [Registry::new(), Registry::new()];
    registries[0].unary(INCREMENT, |_, number: u64| number + 1).unwrap();
    registries[1].unary(INCREMENT, |_, number: u64| number + 2).unwrap();
    let server = gpu.server(gpu.builder(&registries[0]));
    let other = Arc::new(gpu.builder(&registries[1]).build().unwrap());
    cuda::publish(&other_module, &other_stream, &other).unwrap();
    let mut other_wrong: CudaSlice<u32> = other_stream.alloc_zeros(1).unwrap();
    let (rounds, one, two) = (500u32, 1u32, 2u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let kernel = other_module.load_function("increment").unwrap();
            let mut launch = other_stream.launch_builder(&kernel);
            launch.arg(&INCREMENT.0).arg(&rounds).arg(&two).arg(&mut other_wrong);
            // SAFETY: the arguments are those that the kernel declares.
            let served =
                launcher(&other).launch(&other_stream, || unsafe { launch.launch(shape(64, 64)) });
            assert_ended(&served.unwrap());
        });
        launch!(gpu, server, "increment", (64, 64), &INCREMENT.0, &rounds, &one, &mut gpu.wrong)
            .unwrap();
    });
    assert_eq!(gpu.wrong(), 0);
    let wrong = other_stream.clone_dtoh(&other_wrong).unwrap();
    other_stream.synchronize().unwrap();
    assert_eq!(wrong, [0]);
    assert_eq!((server.stats().failed(), other.stats().failed()), (0, 0));
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn every_device_has_a_server_of_its_own() {
    let first = Gpu::new(KERNELS);
    let count = cuda::device_count().unwrap();
    let (registry, _) = registry();
    let mut gpus = vec![first];
    gpus.extend((1..count).map(|device| Gpu::on(device, Abi::Llvm20, KERNELS)));
    let check = |mut gpu: Gpu| {
        let server = gpu.server(gpu.builder(&registry));
        let (rounds, by) = (100u32, 1u32);
        launch!(gpu, server, "increment", (8, 64), &INCREMENT.0, &rounds, &by, &mut gpu.wrong)
            .unwrap();
        assert_eq!(gpu.wrong(), 0);
    };
    gpus.into_iter().for_each(check);
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn a_worker_that_runs_all_the_time_serves_launch_after_launch() {
    let (mut gpu, (registry, count)) = (Gpu::new(KERNELS), registry());
    let worker = Worker::start(gpu.server(gpu.builder(&registry).ports(256))).unwrap();
    let (increment, notify) = (gpu.kernel("increment"), gpu.kernel("notify"));
    let (rounds, by) = (5u32, 1u32);
    for round in 1..=20 {
        let mut launch = gpu.stream.launch_builder(&increment);
        launch.arg(&INCREMENT.0).arg(&rounds).arg(&by).arg(&mut gpu.wrong);
        // SAFETY: the arguments are those that the kernel declares.
        unsafe { launch.launch(shape(132, 64)) }.unwrap();
        let mut launch = gpu.stream.launch_builder(&notify);
        launch.arg(&COUNT.0);
        // SAFETY: as above.
        unsafe { launch.launch(shape(132, 64)) }.unwrap();
        assert_ended(&cuda::wait(&worker, &gpu.stream).unwrap());
        assert_eq!(count.load(Ordering::Relaxed), round * 132 * 64, "drained");
    }
    assert_eq!(gpu.wrong(), 0);
    worker.stop().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn a_fault_ends_the_wait_with_the_error() {
    // In a process of its own: after a fault, the driver serves this one no more.
    let name = "a_fault_in_a_process_of_its_own";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", name, "--nocapture"])
        .env("HOSTCALL_FAULT", "1")
        .output()
        .unwrap();
    let (code, stdout, stderr) = texts(child);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}");
}

#[test]
#[ignore = "run by a_fault_ends_the_wait_with_the_error"]
fn a_fault_in_a_process_of_its_own() {
    if std::env::var_os("HOSTCALL_FAULT").is_none() {
        return;
    }
    let (registry, _) = registry();
    let printed = Captured::new();
    let services = Services::builder().standard(Standard::null().stdout(printed.clone())).build();
    services.register(&registry).unwrap();
    let gpu = Gpu::new(KERNELS);
    let builder = gpu.builder(&registry).drain_limit(Duration::from_secs(1));
    let server = gpu.server(builder.owning(services));
    let error = launch!(gpu, server, "fault", (2, 1), &NEVER.0).unwrap_err();
    assert!(error.to_string().starts_with("the kernel failed, in a conversation with"), "{error}");
    let LaunchError::Failed { source, dropped } = error else { panic!("{error:?}") };
    assert!(source.breaks_context(), "{source:?}");
    assert_eq!(dropped.iter().map(|call| call.opcode).collect::<Vec<_>>(), [NEVER]);
    assert_eq!(printed.contents(), b"before the fault\n", "sent before, so served");
    assert_eq!(server.stats().in_flight(), 0);
    assert!(server.stats().shut_down >= 1);

    // All that belongs to the context is broken, and a new one of this process as well.
    drop((server, gpu));
    assert!(CudaContext::new(0).and_then(|context| context.new_stream()).is_err());
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn a_kernel_over_its_time_is_told_and_reported() {
    let (gpu, (registry, _)) = (Gpu::new(KERNELS), registry());
    let server = gpu.server(gpu.builder(&registry));
    let mut reply: CudaSlice<u64> = gpu.stream.alloc_zeros(1).unwrap();
    let kernel = gpu.kernel("wait");
    let mut launch = gpu.stream.launch_builder(&kernel);
    launch.arg(&NEVER.0).arg(&mut reply);
    let limit = Duration::from_millis(200);
    // SAFETY: the arguments are those that the kernel declares.
    let error = Launcher::new(&server)
        .timeout(limit)
        .launch(&gpu.stream, || unsafe { launch.launch(shape(1, 1)) })
        .unwrap_err();
    let LaunchError::TimedOut { after, kernel, conversations } = error else { panic!("{error}") };
    assert_eq!((after, kernel), (limit, KernelState::Ended), "released by the shutdown");
    assert_eq!(conversations.iter().map(|call| call.opcode).collect::<Vec<_>>(), [NEVER]);
    let reply = gpu.stream.clone_dtoh(&reply).unwrap();
    gpu.stream.synchronize().unwrap();
    assert_eq!(reply, [0]);
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn a_program_that_exits_need_not_be_waited_for() {
    let gpu = Gpu::new(KERNELS);
    let registry = Registry::new();
    let services = Services::builder().build();
    services.register(&registry).unwrap();
    let server = gpu.server(gpu.builder(&registry).owning(services));
    // Else cudarc lets the copy below wait for the kernel that waits for it.
    // SAFETY: the one slice made from here on is synchronised by this test.
    unsafe { gpu.context.disable_event_tracking() };
    let mut stop: CudaSlice<u32> = gpu.stream.alloc_zeros(1).unwrap();
    let kernel = gpu.kernel("exit_and_stay");
    let status = 9i32;
    let mut launch = gpu.stream.launch_builder(&kernel);
    launch.arg(&status).arg(&mut stop);
    // SAFETY: the arguments are those that the kernel declares.
    let served = launcher(&server)
        .exit_grace(Duration::from_millis(50))
        .launch(&gpu.stream, || unsafe { launch.launch(shape(2, 1)) })
        .unwrap();
    assert_eq!(served.kernel, KernelState::StillRuns);
    assert_eq!(served.exit.map(|exit| exit.status), Some(9));
    // Let it end, or dropping the server waits for ever.
    let other = gpu.context.new_stream().unwrap();
    other.memcpy_htod(&[1u32], &mut stop).unwrap();
    gpu.stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn a_server_of_another_interface_is_not_published() {
    let (gpu, (registry, _)) = (Gpu::new(KERNELS), registry());
    let client = DeviceClient::find(&gpu.module, &gpu.stream).unwrap();
    assert_eq!((client.symbol(), client.abi()), ("__hostcall_client", Ok(Abi::Llvm20)));
    let server = gpu.builder(&registry).abi(Abi::LlvmMain).build().unwrap();
    let error = client.publish(&server).unwrap_err();
    assert!(error.to_string().ends_with("build it with .abi(Abi::Llvm20)"), "{error}");

    let none = module(&gpu.context, gpu.abi, "extern \"C\" __global__ void nothing() {}");
    let error = DeviceClient::find(&none, &gpu.stream).unwrap_err();
    assert_eq!(error, PublishError::NoClient);

    let strange = "extern \"C\" __device__ char __llvm_rpc_client[100];
                   extern \"C\" __global__ void f() { __llvm_rpc_client[threadIdx.x] = 1; }";
    let strange = module(&gpu.context, gpu.abi, strange);
    let error = cuda::publish(&strange, &gpu.stream, &server).unwrap_err();
    assert!(error.to_string().contains("100 bytes: known are 552"), "{error}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_client_of_old_releases_is_found_through_its_pointer() {
    let (gpu, (registry, _)) = (Gpu::new(KERNELS), registry());
    let source = "extern \"C\" __device__ unsigned long long object[69];
                  extern \"C\" __device__ void *__llvm_libc_rpc_client = object;
                  extern \"C\" __global__ void copy(unsigned long long *to) {
                      for (int i = 0; i < 69; ++i) to[i] = object[i];
                  }";
    let module = module(&gpu.context, gpu.abi, source);
    let client = DeviceClient::find(&module, &gpu.stream).unwrap();
    assert!(
        matches!(client.abi(), Err(PublishError::UnknownSize { .. })),
        "a pointer does not tell"
    );
    let server = gpu.builder(&registry).abi(Abi::Llvm19).build().unwrap();
    client.publish(&server).unwrap();
    let mut words: CudaSlice<u64> = gpu.stream.alloc_zeros(69).unwrap();
    let kernel = module.load_function("copy").unwrap();
    let mut launch = gpu.stream.launch_builder(&kernel);
    launch.arg(&mut words);
    // SAFETY: the argument is the one that the kernel declares.
    unsafe { launch.launch(shape(1, 1)) }.unwrap();
    let words = gpu.stream.clone_dtoh(&words).unwrap();
    gpu.stream.synchronize().unwrap();
    assert_eq!(bytemuck::cast_slice::<u64, u8>(&words), server.client_image().as_bytes());

    let null = source.replace("= object;", "= nullptr;");
    let null = self::module(&gpu.context, gpu.abi, &null);
    let error = cuda::publish(&null, &gpu.stream, &server).unwrap_err();
    assert!(matches!(error, PublishError::BadPointer { .. }), "{error}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn sixty_four_mebibytes_go_through_files_and_come_back() {
    for (abi, _) in WIRES {
        let folder = std::env::temp_dir().join(format!("hostcall-cuda-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let registry = Registry::new();
        let policy = FilePolicy::everything(Access::ReadWrite);
        let services = Services::builder().files(policy).build();
        services.register(&registry).unwrap();
        let mut gpu = Gpu::speaking(abi, KERNELS);
        let server = gpu.server(gpu.builder(&registry).owning(services));
        let path = folder.join("lane-00\0").to_str().unwrap().as_bytes().to_vec();
        let (path_size, chunk, rounds) = (path.len() as u64, 256u64 << 10, 8u32);
        assert!(path_size < 256);
        let path = gpu.stream.clone_htod(&path).unwrap();
        let mut memory: CudaSlice<u8> = gpu.stream.alloc_zeros(32 * chunk as usize).unwrap();
        let served = launch!(
            gpu,
            server,
            "files",
            (1, 32),
            &path,
            &path_size,
            &chunk,
            &rounds,
            &mut memory,
            &mut gpu.wrong
        );
        let sizes: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_ended(&served.unwrap());
        assert_eq!(gpu.wrong(), 0);
        assert_eq!(sizes, [2 << 20; 32]);
    }
}

/// The loader on the GPU.
struct Loader {
    image: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Loader {
    fn new() -> Self {
        let turn = turn();
        if let Some(folder) = std::env::var_os("HOSTCALL_GPU_PROGRAMS") {
            return Loader { image: PathBuf::from(folder).join("program.ptx"), _turn: turn };
        }
        let start = include_str!("gpu/start.cpp")
            .replace("#include \"start.h\"", include_str!("gpu/start.h"));
        let program = include_str!("gpu/program.c")
            .replace("#include \"start.h\"", "")
            .replace("int main", "int program_main");
        let source = format!("{start}\nextern \"C\" {{\n{program}\n}}\n");
        let architecture = cuda::architecture(&CudaContext::new(0).unwrap()).unwrap();
        let ptx = compiled(&architecture, &source, &["-default-device"]);
        let name = format!("hostcall-program-{}.ptx", std::process::id());
        let image = std::env::temp_dir().join(name);
        std::fs::write(&image, ptx).unwrap();
        Loader { image, _turn: turn }
    }

    /// The same program as machine code, where somebody has made it.
    fn with_cubin() -> Option<Self> {
        let image = PathBuf::from(std::env::var_os("HOSTCALL_GPU_PROGRAMS")?).join("program.cubin");
        image.exists().then(|| Loader { image, _turn: turn() })
    }

    fn command(&self, options: &[&str], arguments: &[&str]) -> Command {
        let loader = std::env::var_os("HOSTCALL_LOADER")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_hostcall-loader").into());
        let mut command = Command::new(loader);
        command.env("HOSTCALL_TEST", "a value").stdin(Stdio::null());
        command.args(["--timeout", "60"]).args(options).arg(&self.image).args(arguments);
        command
    }

    /// Status, standard output and error.
    fn run(&self, options: &[&str], arguments: &[&str]) -> (Option<i32>, String, String) {
        texts(self.command(options, arguments).output().expect("the loader is there"))
    }
}

fn texts(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_loader_ends_with_the_programs_status() {
    let loader = Loader::new();
    for status in ["0", "7", "255"] {
        let (code, stdout, stderr) = loader.run(&[], &["return", status]);
        assert_eq!(code.map(|code| code.to_string()).as_deref(), Some(status), "{stderr}");
        assert_eq!((stdout.as_str(), stderr.as_str()), ("destroyed\n", ""));
    }
    let (code, stdout, stderr) = loader.run(&[], &["exit", "9"]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(9), "before the end\n", ""));
    assert_eq!(loader.run(&[], &["abort"]).0, Some(134));
    assert_eq!(loader.run(&[], &["constructed"]).0, Some(12));
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_loader_runs_machine_code() {
    let Some(loader) = Loader::with_cubin() else {
        println!("skipped: no program.cubin in HOSTCALL_GPU_PROGRAMS");
        return;
    };
    let (code, stdout, stderr) = loader.run(&["--threads", "32"], &["threads", "31"]);
    assert_eq!((code, stderr.as_str()), (Some(17), ""));
    assert_eq!(stdout, "a thread\n".repeat(32) + "destroyed\n");
    assert_eq!(loader.run(&[], &["constructed"]).0, Some(12));
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_loader_passes_arguments_environment_and_streams() {
    let loader = Loader::new();
    let (code, stdout, stderr) = loader.run(&[], &["arguments", "", "two words", "--threads"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, "arguments\n\ntwo words\n--threads\ndestroyed\n");

    let piped = |command: &mut Command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = piped(&mut loader.command(&[], &["copy"]));
    child.stdin.take().unwrap().write_all(b"one\n\nlast").unwrap();
    let (code, stdout, stderr) = texts(child.wait_with_output().unwrap());
    assert_eq!((code, stdout.as_str()), (Some(0), "one\n\nlastdestroyed\n"), "{stderr}");
    assert_eq!(stderr, "copied\n");
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_loader_starts_as_many_threads_as_it_is_told() {
    let loader = Loader::new();
    let (code, stdout, stderr) =
        loader.run(&["--threads", "64", "--blocks", "5"], &["threads", "319"]);
    assert_eq!((code, stderr.as_str()), (Some(17), ""), "the results of all threads, or-ed");
    assert_eq!(stdout, "a thread\n".repeat(320) + "destroyed\n");
    let (code, _, stderr) = loader.run(&["--threads", "100000"], &["threads", "0"]);
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("hostcall-loader: _start: the kernel was not launched"), "{stderr}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_loader_serves_malloc_from_its_pool() {
    let loader = Loader::new();
    let (code, _, stderr) = loader.run(&["--pool", "8M"], &["malloc"]);
    assert_eq!((code, stderr.as_str()), (Some(8), ""));
    assert_eq!(loader.run(&["--pool", "0"], &["malloc"]).0, Some(255));
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_loader_reports_faults_and_the_end_of_the_time() {
    let loader = Loader::new();
    let (code, stdout, stderr) = loader.run(&[], &["fault"]);
    assert_eq!((code, stdout.as_str()), (Some(1), "before the fault\n"), "{stderr}");
    assert!(stderr.starts_with("hostcall-loader: _start: the kernel failed: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1);

    let (code, stdout, stderr) = loader.run(&["--timeout", "1"], &["hang"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("_start: the kernel has run for more than 1s"), "{stderr}");

    let (code, _, stderr) = loader.run(&[], &["unknown"]);
    assert_eq!(code, Some(5));
    assert!(stderr.contains("opcode 'z'+99 (0x7a000063)"), "{stderr}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: cargo test --features cuda,loader --test cuda -- --ignored"]
fn the_loader_says_what_the_driver_does_not_load() {
    let loader = Loader::new();
    let text = std::fs::read_to_string(&loader.image).unwrap();
    let path = std::env::temp_dir().join(format!("hostcall-bad-{}.ptx", std::process::id()));
    for (text, part) in [
        (text.replace(".visible .entry _start", ".visible .entry _stop"), "has no kernel _start"),
        (text.replace("ret;", "return;"), "does not load"),
    ] {
        std::fs::write(&path, text).unwrap();
        let broken = Command::new(
            std::env::var_os("HOSTCALL_LOADER")
                .unwrap_or_else(|| env!("CARGO_BIN_EXE_hostcall-loader").into()),
        )
        .arg(&path)
        .output()
        .unwrap();
        let (code, stdout, stderr) = texts(broken);
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(stderr.contains(part), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    std::fs::remove_file(&path).unwrap();
}
