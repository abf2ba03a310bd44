//! Receivers against a sender that writes anything: no panic, and no byte over what was announced
//! or over the limit.

use std::task::Poll;

use hostcall::protocol::atomic::{AtomicU32, AtomicU64, Ordering};
use hostcall::protocol::{
    Channel, FixedReceiver, Host, Incoming, Locks, OpenedPort, Port, StreamReceiver, stream,
};
use hostcall::{Abi, LaneMask, LaneWidth, Layout, PortCount};

use crate::input::Input;

/// Lets a receiver read packets of arbitrary words, written also while it reads.
pub fn stream(data: &[u8]) {
    let mut input = Input(data);
    let lanes = LaneWidth::new(1 + input.below(64)).expect("1 to 64");
    let one = PortCount::new(1).expect("1");
    let layout = Layout::new(input.abi(), one, lanes).expect("one port is never too many");
    let flag = || [AtomicU32::new(0)];
    let (primary, secondary, locks) = (flag(), flag(), flag());
    let packets: Vec<_> = (0..layout.packets_size() / 8).map(|_| AtomicU64::new(0)).collect();
    let channel = Channel::new(layout, &primary, &secondary, &packets).expect("it fits");
    let mask = LaneMask(if input.byte() & 1 == 0 { u64::MAX } else { input.u64() });
    let limit = input.number();
    let fixed = input.byte() & 3 == 0;
    let size = input.number() as usize & 0xffff;

    let opened = OpenedPort::try_open(channel, Locks::new(&locks), 0, 7, mask).expect("free");
    let client = opened.send(|lane| lane.set_word(0, input.number()));
    let Some(Incoming::New(_, mut server)) = Incoming::try_accept(channel, 0, 0) else {
        panic!("the request is not there");
    };
    if fixed {
        let (mut receiver, mut taken) = (FixedReceiver::new(size), [0; 64]);
        let done = receive(&mut input, channel, &packets, &mut server, |port| {
            receiver.poll(port, |lane, part| taken[lane as usize] += part.len())
        });
        for lane in 0..64 {
            let expected = if client.mask().contains(lane) { size } else { 0 };
            assert!(taken[lane as usize] <= expected);
            assert!(done.is_none() || taken[lane as usize] == expected);
        }
        return;
    }
    let (mut receiver, mut taken, mut announced) = (StreamReceiver::new(limit), [0; 64], [0; 64]);
    let done = receive(&mut input, channel, &packets, &mut server, |port| {
        receiver.poll(port, |lane, remaining, part| {
            let lane = lane as usize;
            if taken[lane] == 0 {
                announced[lane] = remaining;
            }
            assert_eq!(taken[lane] + remaining, announced[lane]);
            taken[lane] += part.len() as u64;
        })
    });
    // The largest limit stands for none.
    let total: u128 = announced.iter().map(|&length| u128::from(length)).sum();
    assert!(limit == u64::MAX || total <= u128::from(limit));
    match done {
        Some(Ok(())) => assert_eq!(taken, announced),
        Some(Err(_)) => assert_eq!(taken, [0; 64]),
        None => {}
    }
    let longest = announced.iter().max().expect("64 lanes");
    assert!(stream::packets(*longest) <= 1 + longest.div_ceil(56));
}

/// Polls until the receiver is ready or the input has ended, with anything written in between.
fn receive<T>(
    input: &mut Input<'_>,
    channel: Channel<'_>,
    packets: &[AtomicU64],
    server: &mut Port<'_, Host>,
    mut poll: impl FnMut(&mut Port<'_, Host>) -> Poll<T>,
) -> Option<T> {
    loop {
        if let Poll::Ready(value) = poll(server) {
            return Some(value);
        }
        if input.is_empty() {
            return None;
        }
        let layout = channel.layout();
        let tagged = layout.abi() == Abi::Hostcall;
        let lanes = layout.lanes().get();
        for _ in 0..input.below(4) {
            let (lane, word) = (input.below(lanes), input.below(8));
            if tagged {
                // The word of a lane's row; the lanes of the crate's own wire lie side by side.
                let at = layout.packet_offset(0, lane) + 8 * (word * lanes) as usize;
                packets[(at - layout.packets_offset()) / 8]
                    .store(input.number(), Ordering::Relaxed);
            } else {
                channel.lane(0, lane).set_word(word as usize, input.number());
            }
        }
        let mailbox = &channel.secondary()[0];
        let now = mailbox.load(Ordering::Relaxed);
        let next = if tagged { now.wrapping_add(1) & 0xff_ffff } else { now ^ 1 };
        if tagged {
            // Up to 15 rows in the packet, which are there when the mailbox says so.
            packets[0].store(u64::from(next) << 8 | 0x42, Ordering::Relaxed);
            let rows = u64::from(input.below(16));
            packets[1].store(u64::from(next) << 8 | rows, Ordering::Relaxed);
        }
        match input.byte() {
            0..200 => mailbox.store(next, Ordering::Release),
            200..220 => mailbox.store(input.u32(), Ordering::Release),
            _ => {}
        }
    }
}
