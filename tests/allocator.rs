//! Shared memory: what a server takes, it gives back, through its allocator, whatever happens.
#![cfg(all(feature = "host", unix, not(hostcall_loom)))]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::memory::{AWAY, Ledger, LedgerAllocator, NoMemory, TestDoorbell};
use common::{A, Gate, play, poll_until, settle};
use hostcall::{
    Abi, BuildError, Builder, DeviceAddress, Doorbell, LaneMask, LayoutError, Purpose, Registry,
    Server, Worker,
};

fn builder(ledger: &Ledger, abi: Abi) -> Builder<LedgerAllocator> {
    Server::builder(ledger.allocator()).abi(abi).ports(40).lanes(32)
}

fn requests(abi: Abi) -> usize {
    purposes(abi).len()
}

fn purposes(abi: Abi) -> Vec<Purpose> {
    let mut purposes = vec![Purpose::DevicePolledFlags, Purpose::HostPolledFlags, Purpose::Packets];
    if abi == Abi::Hostcall {
        // Replies are their own flags.
        purposes.remove(0);
    }
    purposes.extend(abi.has_doorbell().then_some(Purpose::Doorbell));
    purposes
}

#[test]
fn a_server_asks_for_each_kind_of_memory_by_name() {
    for abi in Abi::ALL {
        let ledger = Ledger::default();
        let server = builder(&ledger, abi).build().unwrap();
        assert_eq!(ledger.purposes(), purposes(abi), "{abi}");
        assert_eq!(ledger.live(), requests(abi), "{abi}");
        drop(server);
        assert_eq!((ledger.live(), ledger.returned()), (0, (requests(abi), 0)), "{abi}");
    }
}

#[test]
fn a_construction_that_fails_gives_back_exactly_what_it_took() {
    for abi in Abi::ALL {
        for n in 0..requests(abi) {
            let ledger = Ledger::failing_at(n);
            let error = builder(&ledger, abi).build().unwrap_err();
            assert!(matches!(error, BuildError::Allocator(NoMemory::Planned(at)) if at == n));
            assert_eq!(ledger.purposes().len(), n + 1, "{abi}: nothing is asked for after that");
            assert_eq!((ledger.live(), ledger.returned()), (0, (n, 0)), "{abi}, request {n}");
        }
    }
}

#[test]
fn the_allocators_reason_is_the_source_of_the_error() {
    let error = builder(&Ledger::failing_at(1), Abi::Llvm20).build().unwrap_err();
    assert_eq!(error.to_string(), "cannot allocate shared memory");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "request 1 was to fail");
}

#[test]
fn impossible_sizes_are_refused_before_memory_is_taken() {
    let ledger = Ledger::default();
    let refused = |builder: Builder<_>| match builder.build() {
        Err(BuildError::Layout(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(builder(&ledger, Abi::Llvm20).ports(0)), LayoutError::PortCount(0));
    assert_eq!(refused(builder(&ledger, Abi::Llvm20).lanes(65)), LayoutError::LaneWidth(65));
    assert_eq!(
        refused(builder(&ledger, Abi::Llvm17).ports(513)),
        LayoutError::TooManyPorts { ports: 513, abi: Abi::Llvm17 }
    );
    assert_eq!(ledger.purposes(), []);
}

/// The eight-byte fields of a client image from byte 8 on.
fn fields(server: &Server<LedgerAllocator>, count: usize) -> Vec<u64> {
    let image = server.client_image();
    let fields = image.as_bytes()[8..].chunks_exact(8).take(count);
    fields.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn addresses_for_the_device_are_the_allocators() {
    for abi in Abi::ALL.into_iter().filter(|abi| *abi != Abi::Hostcall) {
        let ledger = Ledger::default();
        let server = builder(&ledger, abi).build().unwrap();
        let [device_polls, host_polls, packets] =
            [Purpose::DevicePolledFlags, Purpose::HostPolledFlags, Purpose::Packets]
                .map(|purpose| ledger.address(purpose));
        assert!(device_polls > AWAY && host_polls > AWAY && packets > AWAY);
        assert_eq!(server.outbox(), DeviceAddress(device_polls), "{abi}");
        assert_eq!(server.inbox(), DeviceAddress(host_polls), "{abi}");
        let expected = match abi {
            Abi::Llvm17 | Abi::Llvm18 => vec![device_polls, host_polls, packets],
            Abi::Llvm19 | Abi::Llvm20 => {
                vec![device_polls, host_polls, packets, packets + 16 * 40]
            }
            _ => {
                let doorbell = ledger.address(Purpose::Doorbell);
                vec![doorbell, device_polls, host_polls, packets, packets + 16 * 40]
            }
        };
        assert_eq!(fields(&server, expected.len()), expected, "{abi}");
        assert_eq!(server.buffer().0, *expected.last().unwrap(), "{abi}");
    }
}

#[test]
fn addresses_of_the_own_wire_are_the_allocators() {
    let ledger = Ledger::default();
    let server = builder(&ledger, Abi::Hostcall).build().unwrap();
    let [mailboxes, block] =
        [Purpose::HostPolledFlags, Purpose::Packets].map(|purpose| ledger.address(purpose));
    let layout = server.layout();
    let at = |offset: usize| block + (offset - layout.packets_offset()) as u64;
    let (replies, packets) = (at(layout.reply_offset(0)), at(layout.packet_offset(0, 0)));
    assert_eq!(server.inbox(), DeviceAddress(mailboxes));
    assert_eq!(server.outbox(), DeviceAddress(replies));
    assert_eq!(server.buffer(), DeviceAddress(packets));
    assert_eq!(fields(&server, 5)[1..], [mailboxes, block, replies, packets]);
}

/// The words of the doorbell block: the counter's address, the mailbox's, the event's number.
fn doorbell_words(ledger: &Ledger) -> [u64; 3] {
    [0, 1, 2].map(|index| ledger.word(Purpose::Doorbell, index))
}

#[test]
fn clients_are_told_where_the_allocators_doorbell_is() {
    for abi in [Abi::LlvmMain4096, Abi::LlvmMain] {
        let doorbell = Arc::new(TestDoorbell::default());
        let ledger = Ledger::with_doorbell(doorbell.clone());
        let server = builder(&ledger, abi).build().unwrap();
        let pointers = doorbell.pointers();
        assert_eq!(doorbell_words(&ledger), [pointers.counter, pointers.mailbox, 7]);
        assert_eq!(Arc::strong_count(&doorbell), 3, "the server has it");
        drop(server);
        assert_eq!(Arc::strong_count(&doorbell), 2);
    }
}

#[test]
fn clients_are_told_that_there_is_no_doorbell() {
    let silent = Ledger::default();
    let _server = builder(&silent, Abi::LlvmMain).build().unwrap();
    assert_eq!(doorbell_words(&silent), [0; 3], "the allocator has none");
    let unwanted = Ledger::with_doorbell(Arc::default());
    let _server = builder(&unwanted, Abi::LlvmMain).doorbell(false).build().unwrap();
    assert_eq!(doorbell_words(&unwanted), [0; 3], "the server has to do without");
}

#[test]
fn a_doorbell_that_cannot_be_had_fails_the_construction() {
    let ledger = Ledger::failing_at_its_doorbell();
    let error = builder(&ledger, Abi::LlvmMain).build().unwrap_err();
    assert!(matches!(error, BuildError::Allocator(NoMemory::Doorbell)));
    assert_eq!((ledger.live(), ledger.returned()), (0, (4, 0)));
    // Interfaces that have no doorbell do not ask for one.
    builder(&ledger, Abi::Llvm20).build().unwrap();
}

#[test]
fn the_doorbell_is_silent_after_every_kind_of_end() {
    let registry = Registry::new();
    registry.unary(A, |_, n: u64| n).unwrap();
    let doorbell = Arc::new(TestDoorbell::default());
    let rung = || doorbell.counter().load(Ordering::Acquire);
    let ledger = Ledger::with_doorbell(doorbell.clone());
    let server = builder(&ledger, Abi::LlvmMain).registry(&registry).build().unwrap();
    let client = server.client();
    client.try_open(A, LaneMask(1)).unwrap().unwrap().close();
    assert_eq!(rung(), 0, "opened and closed");
    drop(client.try_open(A, LaneMask(1)).unwrap());
    assert_eq!(rung(), 0, "opened and dropped");
    client.notify(A, LaneMask(1), |_| 1u64).unwrap();
    assert_eq!(rung(), 1, "one conversation");
    client.notify(A, LaneMask(1), |_| 1u64).unwrap();
    assert_eq!(rung(), 2, "two");
    settle(&server);
    assert_eq!(rung(), 0, "served");
    client.notify(common::B, LaneMask(1), |_| 1u64).unwrap();
    settle(&server);
    assert_eq!(rung(), 0, "unknown");
    let streamed = play(&server, async {
        let messages = [7; 1000];
        let opened = client.open_async(common::B, LaneMask(1)).await?;
        opened.send_stream_async(|_| &messages).await?.recv_async(|_| ()).await
    });
    assert!(streamed.is_err());
    assert_eq!(rung(), 0, "refused with strays");
}

#[test]
fn a_device_that_does_not_ring_is_served_and_nothing_wraps() {
    let doorbell = Arc::new(TestDoorbell::default());
    let server = builder(&Ledger::with_doorbell(doorbell.clone()), Abi::LlvmMain);
    let server = server.registry(&served_registry()).build().unwrap();
    for _ in 0..3 {
        server.client().notify(A, LaneMask(1), |_| 1u64).unwrap();
        doorbell.counter().store(0, Ordering::Release);
        settle(&server);
        assert_eq!(doorbell.counter().load(Ordering::Acquire), 0);
    }
    assert_eq!(server.stats().completed + server.stats().failed(), 3);
}

fn served_registry() -> Registry {
    let registry = Registry::new();
    registry.unary(A, |_, n: u64| n + 1).unwrap();
    registry
}

#[test]
fn server_and_worker_in_every_order_leave_nothing_live() {
    for abi in [Abi::Llvm17, Abi::Llvm20, Abi::LlvmMain] {
        let registry = served_registry();
        let start = |ledger: &Ledger| {
            let server = builder(ledger, abi).registry(&registry).build().unwrap();
            let server = Arc::new(server);
            let worker = Worker::start(server.clone()).unwrap();
            server.client().call(A, LaneMask(1), |_| 1u64, |_, _: u64| ()).unwrap();
            (server, worker)
        };

        let ledger = Ledger::default();
        let (server, worker) = start(&ledger);
        drop(server);
        assert_eq!(ledger.live(), requests(abi), "the worker has it");
        drop(worker);
        assert_eq!(ledger.live(), 0, "{abi}: worker last");

        let (server, worker) = start(&ledger);
        drop(worker);
        assert_eq!(ledger.live(), requests(abi), "this test has it");
        drop(server);
        assert_eq!(ledger.live(), 0, "{abi}: server last");

        let (server, worker) = start(&ledger);
        worker.stop().unwrap();
        drop(server);
        assert_eq!(ledger.live(), 0, "{abi}: after a stop");
        assert_eq!(ledger.returned(), (3 * requests(abi), 0));
    }
}

#[test]
fn a_server_dropped_with_conversations_in_flight_leaves_nothing_live() {
    let registry = Registry::new();
    registry
        .conversation(A, async |mut call| {
            call.recv(|_| ()).await?;
            Ok(call.recv(|_| ()).await?)
        })
        .unwrap();
    let ledger = Ledger::default();
    let server = builder(&ledger, Abi::Llvm20).registry(&registry).build().unwrap();
    for _ in 0..10 {
        server.client().notify(A, LaneMask(1), |_| 0u64).unwrap();
    }
    settle(&server);
    assert_eq!(server.stats().in_flight(), 10);
    drop(server);
    assert_eq!((ledger.live(), ledger.returned()), (0, (3, 0)));
}

#[test]
fn a_server_dropped_under_blocking_handlers_leaves_nothing_live() {
    for _ in 0..100 {
        let registry = Registry::new();
        let begun = Gate::default();
        let notify = begun.clone();
        registry
            .blocking(A, move |mut call| {
                call.recv(|_| ())?;
                notify.open();
                Ok(call.recv(|_| ())?)
            })
            .unwrap();
        let ledger = Ledger::default();
        let server = builder(&ledger, Abi::Llvm20).registry(&registry).build().unwrap();
        server.client().notify(A, LaneMask(1), |_| 0u64).unwrap();
        poll_until(&server, || begun.is_open());
        drop(server);
        assert_eq!(ledger.live(), 0, "not a moment longer");
    }
}

#[test]
fn serving_neither_takes_nor_frees_shared_memory() {
    let registry = served_registry();
    registry.bytes(common::B, |_, bytes| bytes).unwrap();
    let ledger = Ledger::default();
    let server = builder(&ledger, Abi::Llvm20).registry(&registry).build().unwrap();
    play(&server, async {
        let client = server.client();
        client.call_async(A, LaneMask(3), |_| 1u64, |_, _: u64| ()).await.unwrap();
        let message = [1; 10_000];
        let opened = client.open_async(common::B, LaneMask(3)).await.unwrap();
        let mut port = opened.send_stream_async(|_| &message).await.unwrap();
        port.recv_stream_async(|_, _, _| ()).await.unwrap();
    });
    server.shutdown();
    assert_eq!((ledger.purposes().len(), ledger.returned()), (3, (0, 0)));
}
