//! The HSA backend over the stand-in runtime of `tests/fake-hsa`: every line of it, and each call refused.
//! It says nothing about real devices.

use std::alloc::Layout;
use std::env;
use std::error::Error;
use std::ffi::{CStr, c_char};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hostcall::Client;
use hostcall::backend::hsa::{DeviceMemory, Executable, HsaAllocator, HsaError, Queue, devices};
use hostcall::protocol::{Channel, Locks};
use hostcall::{
    Abi, IdlePolicy, LaneMask, Opcode, Purpose, Registry, Server, SharedAllocator, Worker,
};
use libloading::Library;

use super::library::library;

/// All that the stand-in looks at.
const CODE_OBJECT: &[u8] = b"\x7fELF";
const SOON: Duration = Duration::from_secs(20);

/// The stand-in's own functions.
struct Control(Library);

impl Control {
    /// Finds them in the library that the backend loads, too.
    fn new() -> Self {
        let name =
            env::var_os("HOSTCALL_HSA_RUNTIME").expect("run by the_stand_in_runs_everything");
        // SAFETY: the stand-in has no initialisers that could do harm.
        Control(unsafe { Library::new(name) }.expect("the stand-in"))
    }

    /// Refuses the n-th call from here on, of those that can be.
    fn refuse(&self, n: u64) {
        // SAFETY: the function's signature.
        unsafe { self.0.get::<unsafe extern "C" fn(u64)>(b"fake_hsa_refuse").expect("it")(n) }
    }

    /// Makes the runtime odd, in one of the ways that its source lists.
    fn odd(&self, way: &CStr) {
        // SAFETY: the function's signature; the text is copied.
        unsafe {
            self.0.get::<unsafe extern "C" fn(*const c_char)>(b"fake_hsa_odd").expect("it")(
                way.as_ptr(),
            );
        }
    }

    /// A device's interrupt.
    fn interrupt(&self, event: u64) {
        // SAFETY: the function's signature.
        unsafe {
            self.0.get::<unsafe extern "C" fn(u64)>(b"fake_hsa_interrupt").expect("it")(event);
        }
    }

    fn number(&self, function: &[u8]) -> u64 {
        // SAFETY: the signature of both functions that are asked for.
        unsafe { self.0.get::<unsafe extern "C" fn() -> u64>(function).expect("it")() }
    }

    fn answer(&self, function: &[u8], number: u64) -> u64 {
        // SAFETY: the signature of the function that is asked for.
        unsafe { self.0.get::<unsafe extern "C" fn(u64) -> u64>(function).expect("it")(number) }
    }

    /// Calls since the last `refuse`.
    fn calls(&self) -> u64 {
        self.number(b"fake_hsa_calls")
    }

    /// What was taken and not given back.
    fn outstanding(&self) -> u64 {
        self.number(b"fake_hsa_outstanding")
    }
}

/// Runs the tests below over the stand-in, in a process of its own: which library is the runtime is decided
/// once for a process.
#[test]
fn the_stand_in_runs_everything() {
    let Some(library) = library() else { return };
    let output = Command::new(env::current_exe().expect("this"))
        .args(["--ignored", "--test-threads=1", "stand_in::over_it"])
        .env("HOSTCALL_HSA_RUNTIME", library)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("6 passed"), "{text}{said}");
}

/// From the first call to the last: what a program does that runs a kernel.
fn flow() -> Result<(), Box<dyn Error>> {
    let names: Vec<_> = devices()?.into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["Stand-in Instinct", "gfx1100"]);
    for (device, lanes) in [(0, 64), (1, 32)] {
        let allocator = HsaAllocator::open(device)?;
        let agent = allocator.agent().clone();
        assert_eq!(agent.wavefront_size, lanes);
        assert!(agent.isas[0].starts_with("amdgcn-amd-amdhsa--gfx"), "{agent:?}");

        let heap = DeviceMemory::new(&allocator, 1 << 16)?;
        assert_eq!(heap.len(), 1 << 16);
        let executable = Executable::load(&allocator, CODE_OBJECT)?;
        let (kernel, counter) = (executable.kernel("add.kd")?, executable.variable("counter")?);
        let (kernel, counter) = (kernel.expect("it"), counter.expect("it"));
        assert_eq!((kernel.kernarg_size, kernel.kernarg_align), (16, 16));
        assert_eq!((kernel.group_size, kernel.private_size), (8, 4));
        executable.write(&counter, &5u64.to_le_bytes())?;
        let mut arguments = [counter.address(), 3].map(u64::to_le_bytes).concat();
        arguments.resize(64, 0);

        let queue = Queue::new(&allocator)?;
        // SAFETY: the executable outlives the queue; the kernel writes the variable alone.
        let mut kernel = unsafe { queue.dispatch(&kernel, [2, 1, 1], [4, 1, 1], &arguments, 16) }?;
        assert!(kernel.wait(SOON)?);
        assert!(kernel.wait(Duration::ZERO)?, "it stays ended");
        assert_eq!(executable.read(&counter, 8)?, (5u64 + 3 * 8).to_le_bytes());

        let registry = Registry::new();
        registry.unary(Opcode::new(b'x', 1), |_, number: u64| number + 1)?;
        let builder = Server::builder(allocator.flags_on_device())
            .abi(Abi::LlvmMain)
            .registry(&registry)
            .lanes(lanes);
        let server = builder.ports(agent.max_waves.min(64)).build()?;
        let client = server.client();
        let port = client.try_open(Opcode::new(b'x', 1), LaneMask::lane(3))?.expect("a port");
        let mut port = port.send(|lane| lane.set_word(0, 41));
        server.poll()?;
        let mut reply = 0;
        assert!(port.try_recv(|lane| reply = lane.word(0)).is_ready());
        assert_eq!(reply, 42);
    }
    Ok(())
}

#[test]
#[ignore = "run by the_stand_in_runs_everything"]
fn over_it_each_call_may_fail_and_nothing_is_kept() {
    let control = Control::new();
    control.refuse(0);
    flow().expect("nothing is refused");
    assert_eq!(control.outstanding(), 0);
    let calls = control.calls();
    assert!(calls > 50, "{calls}");
    for n in 1..=calls {
        control.refuse(n);
        let error = flow().expect_err("a call was refused");
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            text = format!("{text}: {next}");
            cause = next.source();
        }
        assert!(
            text.contains("refused by the stand-in") || text.contains("cannot allocate"),
            "call {n}: {text}"
        );
        drop(error);
        assert_eq!(control.outstanding(), 0, "call {n}: {text}");
    }
}

#[test]
#[ignore = "run by the_stand_in_runs_everything"]
fn over_it_misuse_is_an_error() -> Result<(), HsaError> {
    let allocator = HsaAllocator::open(0)?;
    assert_eq!(
        HsaAllocator::open(7).map(|_| ()),
        Err(HsaError::NoSuchDevice { ordinal: 7, devices: 2 })
    );
    let text = Executable::load(&allocator, b"text").map(|_| ());
    assert!(
        matches!(&text, Err(HsaError::Runtime { call, .. }) if call.contains("reader_create")),
        "{text:?}"
    );

    let executable = Executable::load(&allocator, CODE_OBJECT)?;
    let other = Executable::load(&allocator, CODE_OBJECT)?;
    assert_eq!(executable.kernel("sub.kd")?, None);
    assert_eq!(executable.variable("a\0b")?, None);
    let wrong = |name: &str, wanted| HsaError::WrongSymbol { name: name.to_owned(), wanted };
    assert_eq!(executable.kernel("counter"), Err(wrong("counter", "a kernel")));
    assert_eq!(executable.variable("add.kd"), Err(wrong("add.kd", "a variable")));
    let counter = executable.variable("counter")?.expect("it");
    assert_eq!(other.write(&counter, &[1]), Err(HsaError::WrongVariable));
    assert_eq!(executable.read(&counter, 9), Err(HsaError::Bounds { size: 8, bytes: 9 }));
    assert_eq!(executable.write(&counter, &[0; 9]), Err(HsaError::Bounds { size: 8, bytes: 9 }));

    let (add, queue) = (executable.kernel("add.kd")?.expect("it"), Queue::new(&allocator)?);
    let start = |blocks, threads, bytes: usize, group| {
        // SAFETY: none of these starts.
        unsafe { queue.dispatch(&add, blocks, threads, &vec![0; bytes], group) }.map(|_| ())
    };
    for (blocks, threads) in [
        ([0, 1, 1], [1; 3]),
        ([1; 3], [1, 0, 1]),
        ([1; 3], [1, 1, 65536]),
        ([1 << 20, 1, 1], [4096, 1, 1]),
    ] {
        assert_eq!(start(blocks, threads, 16, 0), Err(HsaError::Grid { blocks, threads }));
    }
    assert_eq!(start([1; 3], [1; 3], 8, 0), Err(HsaError::Arguments { given: 8, needed: 16 }));
    let group = HsaError::GroupMemory { kernel: 8, dynamic: u32::MAX };
    assert_eq!(start([1; 3], [1; 3], 16, u32::MAX), Err(group));
    assert!(format!("{queue:?} {allocator:?}").contains("Stand-in"));
    Ok(())
}

#[test]
#[ignore = "run by the_stand_in_runs_everything"]
fn over_it_a_fault_ends_the_wait_and_the_queue() -> Result<(), HsaError> {
    let allocator = HsaAllocator::open(0)?;
    let executable = Executable::load(&allocator, CODE_OBJECT)?;
    let kernel = executable.kernel("fault.kd")?.expect("it");
    let queue = Queue::new(&allocator)?;
    // SAFETY: it has no arguments and writes nothing.
    let start = || unsafe { queue.dispatch(&kernel, [1; 3], [1; 3], &[], 0) };
    let error = start()?.wait(SOON).expect_err("it faults");
    assert!(error.to_string().contains("a planned fault"), "{error}");
    assert_eq!(start().map(|_| ()), Err(error.clone()));
    assert_eq!(queue.error(), Err(error));

    // Memory that is not there: the runtime asks a handler of the process, and aborts without one.
    let (one, other) = (Queue::new(&allocator)?, Queue::new(&allocator)?);
    let elsewhere = Queue::new(&HsaAllocator::open(1)?)?;
    let page = executable.kernel("page.kd")?.expect("it");
    // SAFETY: it has no arguments and writes nothing.
    let error = unsafe { one.dispatch(&page, [1; 3], [1; 3], &[], 0) }?.wait(SOON);
    let error = error.expect_err("it faults");
    assert!(error.to_string().contains("at address 0xdead000 (0x2b)"), "{error}");
    assert_eq!((one.error(), other.error()), (Err(error.clone()), Err(error)));
    assert_eq!(elsewhere.error(), Ok(()), "another device");
    assert!(queue.error().is_err_and(|error| error.to_string().contains("a planned fault")));
    // Whose memory fault, or what else, nobody here knows: the runtime does as it likes.
    let control = Control::new();
    drop(elsewhere);
    assert_ne!(control.answer(b"fake_hsa_memory_fault", 3), 0);
    assert_ne!(control.answer(b"fake_hsa_memory_fault", 0), 0);
    assert_eq!(control.answer(b"fake_hsa_memory_fault", 2), 0);
    Ok(())
}

#[test]
#[ignore = "run by the_stand_in_runs_everything"]
fn over_it_kernels_left_behind_keep_what_they_use() -> Result<(), HsaError> {
    let control = Control::new();
    {
        let allocator = HsaAllocator::open(0)?;
        let executable = Executable::load(&allocator, CODE_OBJECT)?;
        let kernels = (executable.kernel("forever.kd")?, executable.kernel("add.kd")?);
        let (forever, add) = (kernels.0.expect("it"), kernels.1.expect("it"));
        let queue = Queue::new(&allocator)?;
        // SAFETY: it has no arguments and writes nothing.
        let mut first = unsafe { queue.dispatch(&forever, [1; 3], [1; 3], &[], 0) }?;
        assert!(!first.wait(Duration::from_millis(25))?);
        drop(first);
        let before = control.outstanding();
        for _ in 0..3 {
            // SAFETY: it never starts, for the first one does not end.
            drop(unsafe { queue.dispatch(&add, [1; 3], [1; 3], &[0; 16], 0) }?);
        }
        assert_eq!(control.outstanding(), before + 2 * 3, "a signal and the arguments of each");
        // SAFETY: there is no room.
        let full = unsafe { queue.dispatch(&add, [1; 3], [1; 3], &[0; 16], 0) }.map(|_| ());
        assert_eq!(full, Err(HsaError::QueueFull { packets: 4 }));
        assert_eq!(control.outstanding(), before + 2 * 3, "and nothing of the refused one");
    }
    assert_eq!(control.outstanding(), 0);
    Ok(())
}

#[test]
#[ignore = "run by the_stand_in_runs_everything"]
fn over_it_memory_that_cannot_be_had_or_given_back_is_told() -> Result<(), HsaError> {
    let control = Control::new();
    let allocator = HsaAllocator::open(0)?;
    let purpose = Purpose::Packets;
    let before = control.outstanding();
    let huge = Layout::from_size_align(8, 1 << 30).expect("a power of two");
    let refused = allocator.allocate(huge, purpose).map(|_| ());
    assert_eq!(refused, Err(HsaError::Alignment { align: 1 << 30 }));
    assert_eq!(control.outstanding(), before, "given back");

    let block = allocator.allocate(Layout::new::<[u64; 9]>(), purpose)?;
    control.odd(c"keeps-memory");
    // SAFETY: from this allocator, and not used.
    unsafe { allocator.deallocate(block) };
    assert_eq!(allocator.lost_bytes(), 72);

    control.odd(c"no-host-memory");
    let what = "fine-grained host memory";
    assert_eq!(HsaAllocator::open(0).map(|_| ()), Err(HsaError::NoPool { what }));
    control.odd(c"no-text");
    control.refuse(2);
    let error = HsaAllocator::open(0).map(|_| ()).expect_err("refused");
    assert!(error.to_string().contains("no text for it"), "{error}");
    control.refuse(0);
    control.odd(c"");
    Ok(())
}

/// The words of a server's doorbell block: counter, mailbox, event number.
fn doorbell(server: &Server<HsaAllocator>) -> [u64; 3] {
    let image = server.client_image();
    let field = u64::from_ne_bytes(image.as_bytes()[8..16].try_into().expect("eight bytes"));
    // SAFETY: the field points to the doorbell block, which has eight words, is the host's, too, and is
    // written by nobody while the server lives.
    unsafe { *(field as *const [u64; 3]) }
}

/// Opens a port and sends, as a device with LLVM's library does it, and rings the doorbell by hand.
fn call(control: &Control, server: &Server<HsaAllocator>, rings: bool) -> u64 {
    let [counter, mailbox, event] = doorbell(server);
    // SAFETY: both are the signal's, or the server's own, for as long as the server lives.
    let (counter, mailbox) =
        unsafe { (&*(counter as *const AtomicU64), &*(mailbox as *const AtomicU64)) };
    // A channel without a doorbell, over the same memory.
    let image = server.client_image();
    let word = |at: usize| {
        u64::from_ne_bytes(image.as_bytes()[at..at + 8].try_into().expect("eight bytes"))
            as *mut u64
    };
    // SAFETY: the fields of the image are the server's memory, which outlives this function.
    let channel =
        unsafe { Channel::from_raw(server.layout(), word(16).cast(), word(24).cast(), word(32)) };
    let locks = [const { AtomicU32::new(0) }; 64];
    if rings && counter.fetch_add(1, Ordering::Relaxed) == 0 {
        mailbox.store(event, Ordering::Release);
        if event != 0 {
            control.interrupt(event);
        }
    }
    let client = Client::new(channel, Locks::new(&locks));
    let mut reply = 0;
    client
        .call(Opcode::new(b'x', 1), LaneMask(1), |_| 41u64, |_, r: u64| reply = r)
        .expect("a reply");
    reply
}

/// Sleeps at the doorbell at once, and nearly for ever.
const AT_THE_DOORBELL: IdlePolicy = IdlePolicy {
    spin: Duration::ZERO,
    pause: Duration::ZERO,
    max_sleep: Duration::from_millis(1),
    doorbell: Duration::from_secs(3600),
};

fn main_server(shards: u32) -> Result<Arc<Server<HsaAllocator>>, Box<dyn Error>> {
    let registry = Registry::new();
    registry.unary(Opcode::new(b'x', 1), |_, number: u64| number + 1)?;
    let builder = Server::builder(HsaAllocator::open(0)?).abi(Abi::LlvmMain);
    Ok(Arc::new(builder.registry(&registry).ports(64).lanes(64).shards(shards).build()?))
}

#[test]
#[ignore = "run by the_stand_in_runs_everything"]
fn over_it_a_worker_sleeps_at_the_doorbell_until_a_device_rings() -> Result<(), Box<dyn Error>> {
    let control = Control::new();
    let before = control.outstanding();
    for threads in [1, 3] {
        let server = main_server(threads)?;
        let worker = Worker::builder(server.clone()).threads(threads as usize);
        let worker = worker.idle(AT_THE_DOORBELL).start()?;
        assert_ne!(doorbell(&server)[2], 0, "an event");
        for _ in 0..50 {
            assert_eq!(call(&control, &server, true), 42);
            // A client of this process rings by the runtime's function.
            let mut reply = 0;
            let client = server.client();
            client.call(Opcode::new(b'x', 1), LaneMask(1), |_| 1u64, |_, r: u64| reply = r)?;
            assert_eq!(reply, 2);
            std::thread::sleep(Duration::from_millis(1));
        }
        worker.stop()?;
        // SAFETY: the counter lives as long as the server.
        let counter = unsafe { &*(doorbell(&server)[0] as *const AtomicU64) };
        assert_eq!(counter.load(Ordering::Acquire), 0, "nothing is counted twice");
    }
    let server = main_server(1)?;
    let idle = IdlePolicy { doorbell: Duration::from_millis(50), ..AT_THE_DOORBELL };
    let worker = Worker::builder(server.clone()).idle(idle).start()?;
    // A device that never rings is served, a sleep later. A sleep is one wait.
    let waits = control.number(b"fake_hsa_waits");
    for _ in 0..5 {
        assert_eq!(call(&control, &server, false), 42);
    }
    let waits = control.number(b"fake_hsa_waits") - waits;
    assert!((3..20).contains(&waits), "{waits}");
    worker.stop()?;
    // The runtime does not sleep at a signal without an event, and one of another kind has no fields that a
    // device could use: there is no doorbell then.
    for way in [c"no-events", c"unknown-signals"] {
        control.odd(way);
        assert_eq!(doorbell(&*main_server(1)?), [0; 3]);
    }
    control.odd(c"");
    let builder = Server::builder(HsaAllocator::open(0)?).abi(Abi::LlvmMain).doorbell(false);
    assert_eq!(doorbell(&builder.build()?), [0; 3]);
    drop(server);
    assert_eq!(control.outstanding(), before);
    Ok(())
}
