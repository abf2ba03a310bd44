//! What the integration tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod memory;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use hostcall::backend::host::HostAllocator;
use hostcall::libc::Services;
use hostcall::libc::files::{Captured, Standard};
use hostcall::{
    Builder, CallError, ClientError, ClientPort, ConversationError, Opcode, Registry, Server,
    SharedAllocator, Stats,
};
use parking_lot::{Condvar, Mutex};

/// Opcodes that every interface has a number for.
pub(crate) const A: Opcode = Opcode(0x9001);
pub(crate) const B: Opcode = Opcode(0x9002);
pub(crate) const C: Opcode = Opcode(0x9003);

/// When to call it a hang. No test takes a fraction of this.
const HANG: Duration = Duration::from_secs(20);

/// A server in memory of this process.
pub(crate) fn server(registry: &Registry) -> Builder<HostAllocator> {
    Server::builder(HostAllocator).registry(registry)
}

/// Polls until nothing is ready.
pub(crate) fn settle<A: SharedAllocator + 'static>(server: &Server<A>) {
    while server.poll().unwrap() > 0 {}
}

/// Polls until something has become true.
pub(crate) fn poll_until<A: SharedAllocator + 'static>(
    server: &Server<A>,
    mut done: impl FnMut() -> bool,
) {
    let began = Instant::now();
    while !done() {
        if server.poll().unwrap() == 0 {
            thread::yield_now();
        }
        assert!(began.elapsed() < HANG, "hangs with {:?}", server.conversations());
    }
}

/// Runs the device's code and its server on this thread, by turns.
pub(crate) fn play<A: SharedAllocator + 'static, T>(
    server: &Server<A>,
    device: impl Future<Output = T>,
) -> T {
    let mut device = pin!(device);
    let mut context = Context::from_waker(Waker::noop());
    let mut output = None;
    poll_until(server, || match device.as_mut().poll(&mut context) {
        Poll::Ready(value) => {
            output = Some(value);
            true
        }
        Poll::Pending => false,
    });
    output.unwrap()
}

/// Runs the device's code on this thread while another one polls the server.
pub(crate) fn served<A: SharedAllocator + 'static, T>(
    server: &Server<A>,
    device: impl FnOnce() -> T,
) -> T {
    let (end, ended) = mpsc::channel::<()>();
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                if server.poll().unwrap() == 0 {
                    thread::yield_now();
                }
                if began.elapsed() > HANG {
                    server.shutdown();
                    panic!("hangs with {:?}", server.conversations());
                }
            }
        });
        let output = device();
        drop(end);
        output
    })
}

/// Fails where `work` would hang.
pub(crate) fn in_finite_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, received) = mpsc::channel();
    let thread = thread::spawn(move || send.send(work()));
    match received.recv_timeout(HANG) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
    }
}

/// Every conversation is either in flight, completed or failed; none is now.
pub(crate) fn assert_nothing_in_flight<A: SharedAllocator + 'static>(server: &Server<A>) -> Stats {
    let stats = server.stats();
    assert_eq!(stats.accepted, stats.completed + stats.failed());
    assert_eq!(stats.in_flight(), 0);
    assert_eq!(server.conversations(), []);
    stats
}

/// Every port can be opened, all of them at a time.
pub(crate) fn assert_all_ports_free<A: SharedAllocator + 'static>(server: &Server<A>) {
    let ports = server.layout().ports().get();
    let client = server.client();
    let open = |_| client.try_open(A, hostcall::LaneMask(1)).unwrap();
    let opened: Vec<_> = (0..=ports).map_while(open).collect();
    assert_eq!(opened.len(), ports as usize, "ports that could be opened");
    opened.into_iter().for_each(hostcall::ClientOpen::close);
}

/// Something of a handler that must not outlive its conversation.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<AtomicUsize>);

pub(crate) struct Holding(Arc<AtomicUsize>);

impl Held {
    pub(crate) fn hold(&self) -> Holding {
        self.0.fetch_add(1, Ordering::AcqRel);
        Holding(self.0.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Closed at first; both threads and futures can wait until somebody opens it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<GateState>);

#[derive(Default)]
struct GateState {
    open: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        let wakers = {
            let mut wakers = self.0.wakers.lock();
            self.0.open.store(true, Ordering::Release);
            std::mem::take(&mut *wakers)
        };
        self.0.opened.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    pub(crate) async fn passed(&self) {
        std::future::poll_fn(|context| {
            let mut wakers = self.0.wakers.lock();
            if self.is_open() {
                return Poll::Ready(());
            }
            wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn pass_blocking(&self) {
        let mut wakers = self.0.wakers.lock();
        while !self.is_open() {
            let waited = self.0.opened.wait_for(&mut wakers, HANG);
            assert!(!waited.timed_out(), "nobody opens the gate");
        }
    }
}

/// What was noted, in order.
#[derive(Debug)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Log<T> {
    fn default() -> Self {
        Log(Arc::default())
    }
}

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Log(self.0.clone())
    }
}

impl<T: Clone> Log<T> {
    pub(crate) fn note(&self, entry: T) {
        self.0.lock().push(entry);
    }

    pub(crate) fn entries(&self) -> Vec<T> {
        self.0.lock().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Log<String> {
    /// A hook for [`Builder::on_error`].
    pub(crate) fn hook(&self) -> impl Fn(&ConversationError) + Send + Sync + use<> {
        let log = self.clone();
        move |error| log.note(error.to_string())
    }
}

/// The C library's services in a registry, and what they print to standard error.
pub(crate) fn printing(registry: &Registry) -> (Services, Captured) {
    let printed = Captured::new();
    let services = Services::builder().standard(Standard::null().stderr(printed.clone())).build();
    services.register(registry).unwrap();
    (services, printed)
}

/// Whether a call's operation found its conversation ended.
pub(crate) fn is_ended<T>(result: &Result<T, CallError>) -> bool {
    matches!(result, Err(CallError::Ended))
}

/// Waits for the next packet; the first word of the last lane.
pub(crate) fn received(port: &mut ClientPort<'_>) -> Result<u64, ClientError> {
    let mut word = 0;
    port.recv(|lane| word = lane.word(0))?;
    Ok(word)
}

/// Bytes that tell lanes and positions apart.
pub(crate) fn pattern(lane: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(31).wrapping_add(lane * 7 + 1) as u8).collect()
}
