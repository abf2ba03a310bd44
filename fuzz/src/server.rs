//! A device that may do anything, against a server with handlers of every kind: `poll` returns and
//! does not panic, every conversation is accounted for, and shutting down ends all of them.

use std::future::pending;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use hostcall::backend::host::HostAllocator;
use hostcall::libc::files::{Captured, Standard};
use hostcall::libc::{self, Heap, Services};
use hostcall::{
    Abi, Call, HandlerError, Handling, LaneMask, Layout, ManualClock, Opcode, Registry, Request,
    Server,
};

use crate::input::Input;

const CLASS: u8 = b'z';
const KINDS: u32 = 16;
const LIMIT: u64 = 1 << 16;
const PLANNED: &str = "a planned panic";

/// Lets a hostile device do what the bytes say.
pub fn server(data: &[u8]) {
    expect_planned_panics();
    let mut input = Input(data);
    let clock = Arc::new(ManualClock::default());
    let abi = input.abi();
    let registry = registry(input.byte() & 1 == 0);
    let services = services();
    services.register(&registry).expect("nobody else has the class of the C library");
    let server = Server::builder(HostAllocator)
        .abi(abi)
        .ports(1 + input.below(40))
        .lanes(1 + input.below(64))
        .shards(1 + input.below(3))
        .registry(&registry)
        .owning(services)
        .stream_limit(LIMIT)
        .device_deadline(Duration::from_secs(1))
        .handler_deadline(Duration::from_secs(5))
        .clock(clock.clone())
        .build()
        .expect("host memory");
    let device = Device::new(&server);
    let ports = server.layout().ports().get();
    while !input.is_empty() {
        let port = input.below(ports);
        match input.below(12) {
            0 => device.hand_over(port),
            1 => device.mailbox(port).store(input.u32(), Ordering::Release),
            // On the crate's own wire these are notes in private memory, which no device reaches.
            2 if !device.is_tagged() => server.client().channel().primary()[port as usize]
                .store(input.u32() & 3, Ordering::Release),
            3 => device.write_header(port, input.u64(), input.u64()),
            4 => device.write_packet(port, &mut input),
            5 | 6 => {
                // What a client would do, if it were the client's turn.
                let mask = if input.byte() & 1 == 0 { u64::MAX } else { input.u64() };
                let opcode = abi.opcode_to_wire(opcode(&mut input)).unwrap_or(u32::MAX);
                device.write_header(port, mask, u64::from(opcode));
                device.write_packet(port, &mut input);
                device.hand_over(port);
            }
            7 => {
                let client = server.client().starting_at(port);
                let mask = LaneMask(input.number());
                if let Ok(Some(opened)) = client.try_open(opcode(&mut input), mask) {
                    drop(opened.send(|lane| lane.set_word(0, input.number())));
                }
            }
            8 => clock.advance(Duration::from_millis(input.number() & 0xfff)),
            _ => check_poll(&server),
        }
    }
    check_poll(&server);
    server.shutdown();
    let stats = server.stats();
    assert_eq!(server.conversations(), []);
    assert_eq!(stats.accepted, stats.completed + stats.failed());
}

fn check_poll(server: &Server<HostAllocator>) {
    let served = server.poll().expect("the policy is to go on");
    let ports = server.layout().ports().get() as usize;
    // A port may end what it was about, begin anew, and be woken once more.
    assert!(served <= 4 * ports, "{served} steps in one pass over {ports} ports");
    let stats = server.stats();
    let in_flight = server.conversations().len() as u64;
    assert_eq!(stats.accepted, stats.completed + stats.failed() + in_flight);
    assert!(in_flight <= ports as u64, "one conversation a port");
}

fn opcode(input: &mut Input<'_>) -> Opcode {
    match input.below(KINDS + 12) {
        kind @ 0..KINDS => Opcode(0x5000 + kind),
        _ if input.byte() & 3 != 0 => libc::opcode::ALL[input.below(33) as usize].0,
        KINDS => Opcode::new(CLASS, input.u32() & 0xff),
        _ => Opcode(input.u32()),
    }
}

/// The C library with everything that a device may do without touching this machine.
fn services() -> Services {
    Services::builder()
        .standard(Standard::null().stdout(Captured::bounded(1 << 16)))
        .heap(Heap::growing(HostAllocator, 1 << 20))
        .host_function(1, |bytes| bytes.len() as u64)
        .build()
}

/// Handlers of every kind. The numbers are below 16 bits, so that every interface can say them.
fn registry(with_fallback: bool) -> Registry {
    let registry = Registry::new();
    let kind = |kind: u32| Opcode(0x5000 + kind);
    let results = [
        registry.unary(kind(0), |_, n: u64| n.wrapping_mul(n)),
        registry.unary(kind(1), |_, n: [u8; 64]| n),
        registry.notification(kind(2), |_, _: [u64; 8]| {}),
        registry.bytes(kind(3), |_, bytes| bytes),
        registry.conversation(kind(4), over_reader),
        registry.conversation(kind(5), |_| async { Ok(()) }),
        registry.conversation(kind(6), |mut call| async move {
            call.recv(|_| ()).await?;
            panic!("{PLANNED}")
        }),
        registry.register(kind(7), |_: Request<'_>| Err(HandlerError::new("no").at_lane(3))),
        registry.register(kind(8), |request: Request<'_>| {
            drop(request.detach());
            Ok(Handling::Done)
        }),
        registry.conversation(kind(9), |mut call| async move {
            let mut sum = 0;
            call.recv_fixed(|_, value: [u64; 24]| sum ^= value[23]).await?;
            call.send_fixed(|_| [sum; 17]).await?;
            Ok(())
        }),
        registry.blocking(kind(10), |mut call| {
            let messages = call.recv_stream()?;
            call.send_stream(|lane| messages.get(lane).unwrap_or_default())?;
            Ok(())
        }),
        registry.conversation(kind(11), |call| async move {
            call.run_blocking(|| ()).await;
            Ok(())
        }),
        registry.conversation(kind(12), |_call| pending()),
        registry.register(kind(13), |_: Request<'_>| panic!("{PLANNED}")),
        registry.conversation(kind(14), |mut call| async move {
            let first = call.mask().first().unwrap_or_default();
            call.request_exit(first, 1);
            for n in 0..3 {
                call.send(|lane| lane.set_word(7, n)).await?;
            }
            Ok(())
        }),
        registry.register(kind(15), |request: Request<'_>| {
            // A call that outlives its conversation.
            let call = request.detach();
            let kept: Box<dyn Future<Output = _> + Send> = Box::new(over_reader(call));
            drop(kept);
            Ok(Handling::Done)
        }),
    ];
    assert!(results.into_iter().all(|result| result.is_ok()));
    registry.register_class(CLASS, |_: Request<'_>| Ok(Handling::Done)).expect("once");
    if with_fallback {
        registry.set_fallback(|_: Request<'_>| Ok(Handling::Done));
    }
    registry
}

async fn over_reader(mut call: Call) -> Result<(), HandlerError> {
    for _ in 0..100 {
        call.recv(|_| ()).await?;
    }
    Ok(())
}

/// The device's view of the shared memory: addresses out of the client image, no rules.
struct Device {
    layout: Layout,
    mailboxes: u64,
    /// Where the block of headers and packets begins.
    block: u64,
}

impl Device {
    fn new(server: &Server<HostAllocator>) -> Self {
        let layout = server.layout();
        let inside = matches!(layout.abi(), Abi::Llvm17 | Abi::Llvm18);
        let before = if inside { 0 } else { layout.packet_offset(0, 0) - layout.packets_offset() };
        let block = server.buffer().0 - before as u64;
        Device { layout, mailboxes: server.inbox().0, block }
    }

    fn is_tagged(&self) -> bool {
        self.layout.abi() == Abi::Hostcall
    }

    fn mailbox(&self, port: u32) -> &AtomicU32 {
        // SAFETY: the server's memory lives as long as the server, which outlives this, has a
        // mailbox of four bytes for each port, and is accessed by atomics only.
        unsafe { AtomicU32::from_ptr((self.mailboxes + 4 * u64::from(port)) as *mut u32) }
    }

    /// The word that stands this many bytes into the shared memory of the layout.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset >= self.layout.packets_offset() && offset + 8 <= self.layout.size());
        let address = self.block + (offset - self.layout.packets_offset()) as u64;
        // SAFETY: as above; just checked to be inside of the block.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }
    }

    /// What the next message of the port counts: an inverted flag, or one more.
    fn next(&self, port: u32) -> u32 {
        let now = self.mailbox(port).load(Ordering::Relaxed);
        if self.is_tagged() { now.wrapping_add(1) & 0xff_ffff } else { now ^ 1 }
    }

    fn hand_over(&self, port: u32) {
        self.mailbox(port).store(self.next(port), Ordering::Release);
    }

    fn write_header(&self, port: u32, mask: u64, opcode: u64) {
        let header = self.layout.header_offset(port);
        let words = if self.is_tagged() {
            let tagged = |data: u64| data << 32 | u64::from(self.next(port)) << 8;
            [(2, tagged(opcode)), (3, tagged(mask)), (4, tagged(mask >> 32))].to_vec()
        } else {
            [(0, mask), (1, opcode)].to_vec()
        };
        for (at, value) in words {
            self.word(header + 8 * at).store(value, Ordering::Relaxed);
        }
    }

    /// Some words of some lanes; on the crate's own wire cells of the next message, most of them
    /// with a count and a kind that are right.
    fn write_packet(&self, port: u32, input: &mut Input<'_>) {
        let lanes = self.layout.lanes().get();
        for _ in 0..input.below(6) {
            let lane = input.below(lanes) as usize;
            let in_first = input.byte() & 1 == 0;
            let row = if in_first { 0 } else { input.below(8) as usize };
            let value = input.number();
            let first = self.layout.packet_offset(port, 0);
            if !self.is_tagged() {
                let offset = self.layout.packet_offset(port, lane as u32) + 8 * row;
                self.word(offset).store(value, Ordering::Relaxed);
            } else if in_first {
                self.write_cell(port, lane, value, input);
            } else {
                let offset = first + 8 * (row * lanes as usize + lane);
                self.word(offset).store(value, Ordering::Relaxed);
            }
        }
    }

    fn write_cell(&self, port: u32, rank: usize, value: u64, input: &mut Input<'_>) {
        let choice = input.byte();
        let count = if choice & 7 == 7 { input.u32() } else { self.next(port) };
        let (mut low, mut high) = (0, 0);
        if rank == 0 {
            // A kind, OPENING, ORDERED; and how many rows there are.
            low = [0x80, 0xc0, 0x00, 0x40][usize::from(choice >> 3 & 3)] | input.below(4);
            high = input.below(16);
        }
        let at = if rank == 0 { 0 } else { 8 + 2 * rank };
        let cell = self.layout.header_offset(port) + 8 * at;
        for (offset, data, meta) in [(0, value << 32, low), (8, value >> 32 << 32, high)] {
            let tag = count.wrapping_shl(8) | meta;
            self.word(cell + offset).store(data | u64::from(tag), Ordering::Relaxed);
        }
    }
}

/// The fuzzer ends the process at any panic. Those of handlers belong to the test.
fn expect_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let message = panic.payload().downcast_ref::<&str>().copied();
            let message =
                message.or_else(|| panic.payload().downcast_ref::<String>().map(String::as_str));
            if message != Some(PLANNED) {
                hook(panic);
            }
        }));
    });
}
