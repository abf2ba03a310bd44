//! Properties of the wire, checked on random cases against PROTOCOL.md's tables and formulas.
//!
//! Expected values are written down here, not taken from the code under test.

use std::collections::VecDeque;
use std::task::Poll;

use hostcall::backend::host::HostAllocator;
use hostcall::protocol::atomic::{AtomicU32, AtomicU64, Ordering};
use hostcall::protocol::{
    Channel, ClientPointers, Device, FixedReceiver, FixedSender, Host, Incoming, Locks, OpenedPort,
    Port, Role, StreamReceiver, StreamSender,
};
use hostcall::{
    Abi, ClientImage, LaneMask, LaneWidth, Layout, LayoutError, Opcode, PortCount, Server,
    StreamError,
};
use proptest::prelude::*;
use proptest::sample::select;

fn layout(abi: Abi, ports: u32, lanes: u32) -> Layout {
    Layout::new(abi, PortCount::new(ports).unwrap(), LaneWidth::new(lanes).unwrap()).unwrap()
}

fn any_abi() -> impl Strategy<Value = Abi> {
    select(Abi::ALL.to_vec())
}

/// Every interface with a number of ports that it has, small ones and the largest more often.
fn any_layout() -> impl Strategy<Value = Layout> {
    any_abi().prop_flat_map(|abi| {
        let max = abi.max_ports();
        let ports = prop_oneof![1..=64u32, 1..=max, Just(max)];
        (Just(abi), ports, 1..=64u32).prop_map(|(abi, ports, lanes)| layout(abi, ports, lanes))
    })
}

/// PROTOCOL.md §1.2, last row of the table; for the crate's own wire mailboxes, requests of a line and
/// a cell for each lane, replies of a cell for each lane, packets.
fn size(abi: Abi, n: usize, l: usize) -> usize {
    match abi {
        Abi::Llvm17 | Abi::Llvm18 => (8 * n).div_ceil(64) * 64 + n * 64 * (l + 1),
        Abi::Llvm19 | Abi::Llvm20 => 24 * n + 64 * n * l,
        Abi::Hostcall => {
            let to_line = |bytes: usize| bytes.next_multiple_of(64);
            to_line(4 * n) + to_line(to_line(n * (64 + 16 * l)) + 16 * n * l) + 64 * n * l
        }
        _ => 64 + 24 * n + 64 * n * l,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_parts_of_a_layout_fill_it_without_overlap(layout in any_layout()) {
        let (n, l) = (layout.ports().get(), layout.lanes().get());
        let own = layout.abi() == Abi::Hostcall;
        let mut parts = vec![
            (layout.primary_offset(), layout.primary_size(), 4),
            (layout.secondary_offset(), 4 * n as usize, 4),
        ];
        prop_assert_eq!(layout.primary_size(), if own { 0 } else { 4 * n as usize });
        let header = if own { 64 + 16 * l as usize } else { 16 };
        parts.extend(layout.doorbell_offset().map(|offset| (offset, 64, 64)));
        for port in 0..n {
            parts.push((layout.header_offset(port), header, 8));
            parts.push((layout.packet_offset(port, 0), 64 * l as usize, 8));
        }
        parts.sort_unstable();
        let mut end = 0;
        for (offset, length, align) in parts {
            prop_assert!(offset >= end, "the part at {offset} begins before {end}");
            prop_assert_eq!(offset % align, 0);
            end = offset + length;
        }
        prop_assert!(end <= layout.size());
        prop_assert_eq!(layout.packets_offset() + layout.packets_size(), layout.size());
    }

    #[test]
    fn lanes_stand_a_packet_apart_or_a_word_on_our_own_wire(layout in any_layout(), port: u32, lane: u32) {
        let port = port % layout.ports().get();
        let lane = lane % layout.lanes().get();
        let first = layout.packet_offset(port, 0);
        let apart = if layout.abi() == Abi::Hostcall { 8 } else { 64 };
        prop_assert_eq!(layout.packet_offset(port, lane), first + apart * lane as usize);
    }

    #[test]
    fn sizes_follow_the_published_formulas(layout in any_layout()) {
        let (n, l) = (layout.ports().get() as usize, layout.lanes().get() as usize);
        prop_assert_eq!(layout.size(), size(layout.abi(), n, l));
    }

    #[test]
    fn numbers_out_of_range_are_refused(abi in any_abi(), ports: u32, lanes: u32) {
        let counted = PortCount::new(ports);
        prop_assert_eq!(counted.is_ok(), (1..=16384).contains(&ports));
        prop_assert_eq!(LaneWidth::new(lanes).is_ok(), (1..=64).contains(&lanes));
        if let Ok(counted) = counted {
            let built = Layout::new(abi, counted, LaneWidth::new(1).unwrap());
            let expected = if ports > abi.max_ports() {
                Err(LayoutError::TooManyPorts { ports, abi })
            } else {
                Ok(())
            };
            prop_assert_eq!(built.map(drop), expected);
        }
    }
}

/// PROTOCOL.md §1.4: total size and offsets of port count, doorbell, inbox, outbox, headers and
/// packets; locks follow the last pointer.
type ClientRow = (Abi, usize, Option<usize>, usize, usize, Option<usize>, usize);

const CLIENTS: [ClientRow; 6] = [
    (Abi::Llvm17, 96, None, 8, 16, None, 24),
    (Abi::Llvm18, 544, None, 8, 16, None, 24),
    (Abi::Llvm19, 552, None, 8, 16, Some(24), 32),
    (Abi::Llvm20, 552, None, 8, 16, Some(24), 32),
    (Abi::LlvmMain4096, 560, Some(8), 16, 24, Some(32), 40),
    (Abi::LlvmMain, 2096, Some(8), 16, 24, Some(32), 40),
];

fn expected_image(row: usize, ports: u32, pointers: &ClientPointers) -> Vec<u8> {
    let (_, size, doorbell, inbox, outbox, headers, packets) = CLIENTS[row];
    let mut bytes = vec![0; size];
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, u64::from(ports));
    put(inbox, pointers.inbox);
    put(outbox, pointers.outbox);
    put(packets, pointers.packets);
    if let Some(at) = doorbell {
        put(at, pointers.doorbell);
    }
    if let Some(at) = headers {
        put(at, pointers.headers);
    }
    bytes
}

proptest! {
    #[test]
    fn an_image_has_its_fields_where_the_device_looks(
        row in 0..CLIENTS.len(), ports: u32, addresses: [u64; 5],
    ) {
        let abi = CLIENTS[row].0;
        let ports = 1 + ports % abi.max_ports();
        let [doorbell, inbox, outbox, headers, packets] = addresses;
        let pointers = ClientPointers { doorbell, inbox, outbox, headers, packets };
        let image = ClientImage::new(&layout(abi, ports, 32), &pointers);
        prop_assert_eq!(image.as_bytes(), expected_image(row, ports, &pointers));
    }
}

const GOLDEN_PORTS: [u32; 6] = [1, 3, 31, 32, 33, 4096];
const GOLDEN_LANES: [u32; 3] = [1, 32, 64];

/// One allocation at this address, as LLVM's own servers place it (PROTOCOL.md §1.2).
const BASE: u64 = 0x7f12_3456_7000;

#[test]
fn golden_images_of_one_allocation() {
    for (row, (abi, size, doorbell, .., headers, _)) in CLIENTS.iter().enumerate() {
        for ports in GOLDEN_PORTS.into_iter().filter(|ports| *ports <= abi.max_ports()) {
            for lanes in GOLDEN_LANES {
                let n = u64::from(ports);
                let begin = if doorbell.is_some() { BASE + 64 } else { BASE };
                let expected = ClientPointers {
                    doorbell: BASE,
                    inbox: begin,
                    outbox: begin + 4 * n,
                    headers: begin + 8 * n,
                    packets: match headers {
                        Some(_) => begin + 24 * n,
                        None => BASE + (8 * n).div_ceil(64) * 64,
                    },
                };
                let layout = layout(*abi, ports, lanes);
                let at = |offset: usize| BASE + offset as u64;
                let pointers = ClientPointers {
                    doorbell: layout.doorbell_offset().map_or(0, at),
                    inbox: at(layout.primary_offset()),
                    outbox: at(layout.secondary_offset()),
                    headers: at(layout.header_offset(0)),
                    packets: match headers {
                        Some(_) => at(layout.packet_offset(0, 0)),
                        None => at(layout.packets_offset()),
                    },
                };
                let image = ClientImage::new(&layout, &pointers);
                assert_eq!(image.as_bytes().len(), *size);
                let expected = expected_image(row, ports, &expected);
                assert_eq!(image.as_bytes(), expected, "{abi}, {ports} ports, {lanes} lanes");
            }
        }
    }
}

/// Byte for byte, written out by hand: 33 ports of 32 lanes.
#[test]
fn a_golden_image_in_full() {
    let pointers = ClientPointers {
        doorbell: 0x0102_0304_0506_0708,
        inbox: 0x1112_1314_1516_1718,
        outbox: 0x2122_2324_2526_2728,
        headers: 0x3132_3334_3536_3738,
        packets: 0x4142_4344_4546_4748,
    };
    let ports_field = [33, 0, 0, 0, 0, 0, 0, 0];
    let doorbell = [8, 7, 6, 5, 4, 3, 2, 1];
    let [inbox, outbox, headers, packets] =
        [0x10u8, 0x20, 0x30, 0x40].map(|tens| [8, 7, 6, 5, 4, 3, 2, 1].map(|one| tens + one));
    let old = [ports_field, inbox, outbox, packets].concat();
    let classic = [ports_field, inbox, outbox, headers, packets].concat();
    let main = [ports_field, doorbell, inbox, outbox, headers, packets].concat();
    for (abi, front, locks) in [
        (Abi::Llvm17, &old, 64),
        (Abi::Llvm18, &old, 512),
        (Abi::Llvm19, &classic, 512),
        (Abi::Llvm20, &classic, 512),
        (Abi::LlvmMain4096, &main, 512),
        (Abi::LlvmMain, &main, 2048),
    ] {
        let expected = [&front[..], &vec![0; locks]].concat();
        let image = ClientImage::new(&layout(abi, 33, 32), &pointers);
        assert_eq!(image.as_bytes(), expected, "{abi}");
    }
    let numbers = [1, 33, 32, 0].map(|number| [number, 0, 0, 0]).concat();
    let expected =
        [&numbers[..], &outbox, &headers, &inbox, &packets, &vec![0; 16 + 4 * 4096]].concat();
    let image = ClientImage::new(&layout(Abi::Hostcall, 33, 32), &pointers);
    assert_eq!(image.as_bytes(), expected);
}

#[test]
fn a_servers_image_points_into_its_memory() {
    for (row, (abi, ..)) in CLIENTS.iter().enumerate() {
        for ports in GOLDEN_PORTS.into_iter().filter(|ports| *ports <= abi.max_ports()) {
            for lanes in GOLDEN_LANES {
                let server = Server::builder(HostAllocator).abi(*abi).ports(ports).lanes(lanes);
                let server = server.build().unwrap();
                let image = server.client_image();
                let word = |at: usize| {
                    u64::from_le_bytes(image.as_bytes()[at..at + 8].try_into().unwrap())
                };
                let pointers = ClientPointers {
                    doorbell: CLIENTS[row].2.map_or(0, word),
                    inbox: server.outbox().0,
                    outbox: server.inbox().0,
                    // Headers stand in front of the packets wherever there is a pointer to them.
                    headers: server.buffer().0 - 16 * u64::from(ports),
                    packets: server.buffer().0,
                };
                assert_eq!(image.as_bytes(), expected_image(row, ports, &pointers));
                assert_eq!(CLIENTS[row].2.is_some(), pointers.doorbell != 0);
            }
        }
    }
}

/// One port of memory in this process.
struct Memory {
    layout: Layout,
    primary: Vec<AtomicU32>,
    secondary: Vec<AtomicU32>,
    packets: Vec<AtomicU64>,
    locks: Vec<AtomicU32>,
}

impl Memory {
    fn new(abi: Abi, lanes: u32) -> Self {
        let layout = layout(abi, 1, lanes);
        // Not zero: what lanes have not written is stale, and must not be taken for a message.
        let first = match abi {
            // Its requests and replies have to be zero.
            Abi::Hostcall => (layout.packet_offset(0, 0) - layout.packets_offset()) / 8,
            _ => 0,
        };
        let stale = |index| if index < first { 0 } else { 0xdead_beef };
        let packets = (0..layout.packets_size() / 8).map(|index| AtomicU64::new(stale(index)));
        let flags = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let (primary, secondary, locks) = (flags(1), flags(1), flags(1));
        Memory { layout, primary, secondary, packets: packets.collect(), locks }
    }

    fn channel(&self) -> Channel<'_> {
        Channel::new(self.layout, &self.primary, &self.secondary, &self.packets).unwrap()
    }

    fn open(&self, mask: u64) -> OpenedPort<'_> {
        let locks = Locks::new(&self.locks);
        OpenedPort::try_open(self.channel(), locks, 0, 7, LaneMask(mask)).unwrap()
    }

    fn accept(&self, out: u32) -> Port<'_, Host> {
        match Incoming::try_accept(self.channel(), 0, out) {
            Some(Incoming::New(_, port)) => port,
            other => panic!("no request: {other:?}"),
        }
    }

    /// Both flags; of counters the lowest bits, which are the flags of LLVM's wire.
    fn mailboxes(&self) -> (u32, u32) {
        let primary = match self.layout.primary_size() {
            4 => self.primary[0].load(Ordering::Relaxed),
            _ => {
                let reply = (self.layout.reply_offset(0) - self.layout.packets_offset()) / 8;
                (self.packets[reply].load(Ordering::Relaxed) >> 8) as u32 & 1
            }
        };
        (primary, self.secondary[0].load(Ordering::Relaxed) & 1)
    }
}

/// Random choices first, then strictly in turn, so that everything comes to an end.
struct Turns(VecDeque<bool>, bool);

impl Turns {
    fn next(&mut self) -> bool {
        self.1 = self.0.pop_front().unwrap_or(!self.1);
        self.1
    }
}

/// Lengths around the ends of packets, and some long ones.
fn any_length() -> impl Strategy<Value = usize> {
    prop_oneof![
        select(vec![0, 1, 7, 8, 55, 56, 57, 63, 64, 65, 119, 120, 121, 184, 185, 251]),
        0..700usize
    ]
}

fn any_messages() -> impl Strategy<Value = (u32, u64, Vec<Vec<u8>>)> {
    (1..=64u32).prop_flat_map(|lanes| {
        let message = any_length().prop_flat_map(|n| prop::collection::vec(any::<u8>(), n));
        (Just(lanes), any::<u64>(), prop::collection::vec(message, lanes as usize))
    })
}

/// Packets of a stream, PROTOCOL.md §3.1.
fn stream_packets(longest: usize) -> usize {
    1 + longest.saturating_sub(56).div_ceil(64)
}

/// Moves a stream from one port to the other, one random step at a time. Returns what arrived and
/// how often the sender inverted its mailbox, the first packet of an opened port included.
fn transfer<S: Role, R: Role>(
    turns: &mut Turns,
    (sender, sending): (&mut StreamSender, &mut Port<'_, S>),
    receiving: &mut Port<'_, R>,
    messages: &[Vec<u8>],
) -> (Vec<Option<Vec<u8>>>, usize) {
    let mut receiver = StreamReceiver::new(u64::MAX);
    let mut arrived: Vec<Option<Vec<u8>>> = vec![None; messages.len()];
    let (mut sent, mut received, mut flips) = (false, false, 0);
    while !(sent && received) {
        if turns.next() {
            let out = sending.state().out();
            sent |= sender.poll(sending, |lane| &messages[lane as usize]).is_ready();
            flips += usize::from(sending.state().out() != out);
        } else if !received {
            let polled = receiver.poll(receiving, |lane, remaining, part: &[u8]| {
                let message = arrived[lane as usize].get_or_insert_default();
                let whole = messages[lane as usize].len();
                assert_eq!(remaining as usize, whole - message.len(), "with this part");
                message.extend_from_slice(part);
            });
            received = match polled {
                Poll::Ready(result) => result.is_ok(),
                Poll::Pending => false,
            };
        }
    }
    (arrived, flips)
}

fn expected(messages: &[Vec<u8>], mask: LaneMask) -> (Vec<Option<Vec<u8>>>, usize) {
    let arrived = |lane: u32| mask.contains(lane).then(|| messages[lane as usize].clone());
    let longest = mask.iter().map(|lane| messages[lane as usize].len()).max().unwrap_or(0);
    ((0..messages.len() as u32).map(arrived).collect(), stream_packets(longest))
}

proptest! {
    #[test]
    fn a_stream_to_the_host_arrives_whole(
        abi in any_abi(),
        (lanes, mask, messages) in any_messages(),
        turns in prop::collection::vec(any::<bool>(), 0..60),
    ) {
        let memory = Memory::new(abi, lanes);
        let mut turns = Turns(turns.into(), false);
        let opened = memory.open(mask);
        let mask = opened.mask();
        let mut sender = StreamSender::new(mask, |lane| messages[lane as usize].len());
        let mut client = sender.open(opened, |lane| &messages[lane as usize]);
        let mut server = memory.accept(0);
        let (arrived, flips) = transfer(&mut turns, (&mut sender, &mut client), &mut server, &messages);
        prop_assert_eq!((arrived, flips + 1), expected(&messages, mask));
        client.close();
        server.close();
        prop_assert_eq!(memory.mailboxes().0, memory.mailboxes().1);
    }

    #[test]
    fn a_stream_to_the_device_arrives_whole(
        abi in any_abi(),
        (lanes, mask, messages) in any_messages(),
        turns in prop::collection::vec(any::<bool>(), 0..60),
    ) {
        let memory = Memory::new(abi, lanes);
        let mut turns = Turns(turns.into(), false);
        let mut client = memory.open(mask).send(|_| ());
        let mut server = memory.accept(0);
        let mask = client.mask();
        prop_assert!(server.try_recv(|_| ()).is_ready());
        let mut sender = StreamSender::new(mask, |lane| messages[lane as usize].len());
        let (arrived, flips) = transfer(&mut turns, (&mut sender, &mut server), &mut client, &messages);
        prop_assert_eq!((arrived, flips), expected(&messages, mask));
        client.close();
        server.close();
        prop_assert_eq!(memory.mailboxes().0, memory.mailboxes().1);
    }

    #[test]
    fn a_fixed_message_arrives_whole(
        lanes in 1..=64u32,
        mask: u64,
        size in any_length(),
        seed: u8,
        turns in prop::collection::vec(any::<bool>(), 0..30),
    ) {
        let memory = Memory::new(Abi::LlvmMain, lanes);
        let mut turns = Turns(turns.into(), false);
        let message = |lane: u32| -> Vec<u8> {
            (0..size).map(|index| seed ^ lane as u8 ^ index as u8).collect()
        };
        let messages: Vec<_> = (0..lanes).map(message).collect();
        let mut sender = FixedSender::new(size);
        let mut client = sender.open(memory.open(mask), |lane| &messages[lane as usize]);
        let mut server = memory.accept(0);
        let mut receiver = FixedReceiver::new(size);
        let mut arrived = vec![Vec::new(); lanes as usize];
        let (mut flips, mut received) = (1, false);
        while !received {
            if turns.next() {
                let out = client.state().out();
                let _ = sender.poll(&mut client, |lane| &messages[lane as usize]);
                flips += usize::from(client.state().out() != out);
            } else {
                let sink = |lane: u32, part: &[u8]| arrived[lane as usize].extend_from_slice(part);
                received = receiver.poll(&mut server, sink).is_ready();
            }
        }
        prop_assert_eq!(flips, size.div_ceil(64).max(1));
        for lane in 0..lanes {
            let expected: &[u8] =
                if client.mask().contains(lane) { &messages[lane as usize] } else { &[] };
            prop_assert_eq!(&arrived[lane as usize][..], expected);
        }
    }

    #[test]
    fn a_stream_over_the_limit_is_refused_before_anything_is_taken_in(
        lanes in 1..=64u32,
        mask: u64,
        lengths in prop::collection::vec(prop_oneof![0..100u64, any::<u64>()], 64),
        limit in prop_oneof![0..5000u64, any::<u64>()],
    ) {
        let memory = Memory::new(Abi::Llvm20, lanes);
        let client = memory.open(mask).send(|lane| lane.set_word(0, lengths[lane.index() as usize]));
        let mut server = memory.accept(0);
        let total: u128 = client.mask().iter().map(|lane| u128::from(lengths[lane as usize])).sum();
        let mut taken = 0;
        let result = StreamReceiver::new(limit).poll(&mut server, |_, _, _| taken += 1);
        let refused = matches!(result, Poll::Ready(Err(StreamError::TooLong { .. })));
        prop_assert_eq!(refused, total > u128::from(limit));
        prop_assert_eq!(taken > 0, !refused && !client.mask().is_empty());
    }
}

/// One side's notes, PROTOCOL.md §2.2 and the table of §2.3, in the words of that table.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    owns: bool,
    receive: bool,
}

/// The reference: primary and secondary mailbox of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mailboxes {
    s: u32,
    k: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Send,
    Recv,
}

impl Operation {
    fn mirrored(self) -> Self {
        match self {
            Operation::Send => Operation::Recv,
            Operation::Recv => Operation::Send,
        }
    }
}

impl Side {
    /// Whether the operation finishes now.
    fn step(
        &mut self,
        operation: Operation,
        mailboxes: &mut Mailboxes,
        turn: fn(&Mailboxes) -> bool,
        flip: fn(&mut Mailboxes),
    ) -> bool {
        if operation == Operation::Recv && self.receive {
            flip(mailboxes);
            *self = Side { owns: false, receive: false };
        }
        if !self.owns && !turn(mailboxes) {
            return false;
        }
        match operation {
            Operation::Send => {
                flip(mailboxes);
                *self = Side { owns: false, receive: false };
            }
            Operation::Recv => *self = Side { owns: true, receive: true },
        }
        true
    }
}

/// Does one step of a script on a port: sends the packet's number, or checks the one it got.
fn step<R: Role>(port: &mut Port<'_, R>, operation: Operation, number: u64) -> bool {
    let polled = match operation {
        Operation::Send => {
            port.try_send(|lane| lane.set_word(0, number << 8 | lane.index() as u64))
        }
        Operation::Recv => port.try_recv(|lane| {
            assert_eq!(lane.word(0), number << 8 | lane.index() as u64, "packet {number}");
        }),
    };
    polled.is_ready()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Several conversations on one port, each any sequence of operations with a server that
    /// mirrors it, in any order of steps: the mailboxes and who has to wait are as the tables say.
    #[test]
    fn conversations_follow_the_tables(
        abi in any_abi(),
        scripts in prop::collection::vec(
            prop::collection::vec(select(vec![Operation::Send, Operation::Recv]), 0..8), 1..4),
        turns in prop::collection::vec(any::<bool>(), 0..120),
    ) {
        let memory = Memory::new(abi, 2);
        let mut turns = Turns(turns.into(), false);
        let mut reference = Mailboxes::default();
        let mut out = 0;
        for mut script in scripts {
            script.insert(0, Operation::Send);
            prop_assert_eq!(reference.s, reference.k, "the client owns a free port");
            let (mut client, mut server) = (Side { owns: true, receive: false }, Side::default());
            let mut client_port = memory.open(3).send(|lane| lane.set_word(0, lane.index() as u64));
            prop_assert!(client.step(Operation::Send, &mut reference, |m| m.s == m.k, |m| m.k ^= 1));
            let mut server_port: Option<Port<'_, Host>> = None;
            let (mut done_client, mut done_server) = (1, 0);
            while done_client < script.len() || done_server < script.len() {
                if turns.next() {
                    let Some(&operation) = script.get(done_client) else { continue };
                    let real = step::<Device>(&mut client_port, operation, done_client as u64);
                    let model = client.step(operation, &mut reference, |m| m.s == m.k, |m| m.k ^= 1);
                    prop_assert_eq!(real, model, "client {:?}", operation);
                    done_client += usize::from(real);
                } else {
                    let Some(operation) = script.get(done_server) else { continue };
                    let operation = operation.mirrored();
                    let port = match &mut server_port {
                        Some(port) => port,
                        None => {
                            // §2.3, try_open: S != K seen.
                            prop_assert!(reference.s != reference.k);
                            server.owns = true;
                            server_port.insert(memory.accept(out))
                        }
                    };
                    let real = step::<Host>(port, operation, done_server as u64);
                    let model = server.step(operation, &mut reference, |m| m.s != m.k, |m| m.s ^= 1);
                    prop_assert_eq!(real, model, "server {:?}", operation);
                    done_server += usize::from(real);
                }
                prop_assert_eq!(memory.mailboxes(), (reference.s, reference.k));
            }
            client_port.close();
            prop_assert_eq!(memory.mailboxes(), (reference.s, reference.k), "close says nothing");
            if server.owns {
                reference.s ^= 1;
            }
            out = server_port.expect("the server has read the first packet").close();
            prop_assert_eq!(memory.mailboxes(), (reference.s, reference.k));
            prop_assert_eq!(out & 1, reference.s);
        }
    }
}

fn any_raw() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        0..40u32,
        990..1010u32,
        0x7ff0..0x8010u32,
        0xfff0..=0x1_0010u32,
        0x6300_0000..0x6300_0040u32,
        0x6300_7ff0..0x6300_8010u32,
        Just(u32::MAX),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn an_opcode_read_from_the_wire_can_be_said_again(abi in any_abi(), raw in any_raw()) {
        if let Some(opcode) = abi.opcode_from_wire(raw) {
            let again = abi.opcode_to_wire(opcode);
            prop_assert!(again.is_some(), "{} cannot say {}", abi, opcode);
            prop_assert_eq!(again.and_then(|raw| abi.opcode_from_wire(raw)), Some(opcode));
        }
    }

    #[test]
    fn an_opcode_said_is_the_opcode_heard(abi in any_abi(), number in any_raw()) {
        let opcode = Opcode(number);
        if let Some(raw) = abi.opcode_to_wire(opcode) {
            prop_assert_eq!(abi.opcode_from_wire(raw), Some(opcode));
        }
    }

    #[test]
    fn interfaces_of_32_bits_take_opcodes_as_they_are(number in any_raw()) {
        for abi in [Abi::Llvm20, Abi::LlvmMain4096, Abi::LlvmMain] {
            let expected = (number != u32::MAX).then_some(number);
            prop_assert_eq!(abi.opcode_to_wire(Opcode(number)), expected);
            prop_assert_eq!(abi.opcode_from_wire(number).map(|opcode| opcode.0), expected);
        }
    }

    /// Clients of LLVM 17 to 19 write 16 bits; what stands above them is not theirs.
    #[test]
    fn interfaces_of_16_bits_ignore_what_stands_above(low: u16, high: u16) {
        for abi in [Abi::Llvm17, Abi::Llvm18, Abi::Llvm19] {
            let raw = u32::from(high) << 16 | u32::from(low);
            prop_assert_eq!(abi.opcode_from_wire(raw), abi.opcode_from_wire(u32::from(low)));
        }
    }
}
