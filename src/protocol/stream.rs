//! Messages longer than a packet: length-prefixed and fixed framing (PROTOCOL.md §3).
//!
//! A *stream* carries a message of its own length for each lane. The first packet
//! begins with the length and has room for 56 bytes; each further one carries 64. All
//! lanes take part until the longest message has ended. A *fixed* message has the same
//! size on every lane and no length word.
//!
//! Senders and receivers are state machines that move one packet at a time over a
//! port of either role, so they serve blocking, async and simulated code alike.

use core::task::Poll;

use super::channel::Lane;
use super::port::{Device, OpenedPort, Port, Role};
use super::wire::{LaneMask, PACKET_SIZE};

/// Bytes of the message that the first packet of a stream has room for.
pub const FIRST_PACKET: usize = PACKET_SIZE - 8;

/// How many packets a stream needs whose longest message has `longest` bytes.
///
/// ```
/// use hostcall::protocol::stream::packets;
/// assert_eq!([0, 56, 57, 120, 121, 251].map(packets), [1, 1, 2, 2, 3, 5]);
/// ```
pub const fn packets(longest: u64) -> u64 {
    1 + longest.saturating_sub(FIRST_PACKET as u64).div_ceil(PACKET_SIZE as u64)
}

/// A message that is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The lengths that the peer announced add up to more than the limit.
    #[error(
        "lane {lane} announced {length} bytes, which takes the stream over its limit of {limit} bytes"
    )]
    TooLong {
        /// The lane whose length went over the limit.
        lane: u32,
        /// The length that it announced.
        length: u64,
        /// The most bytes that all lanes of one stream may have together.
        limit: u64,
    },
}

/// The part of a message that packet number `packet` carries.
fn part(message: &[u8], packet: u64, first: usize) -> &[u8] {
    let range = match packet {
        0 => 0..first,
        n => {
            let start = first + (n as usize - 1) * PACKET_SIZE;
            start..start + PACKET_SIZE
        }
    };
    let end = range.end.min(message.len());
    message.get(range.start..end).unwrap_or_default()
}

/// Sends a stream, one packet a step.
#[derive(Clone, Debug)]
pub struct StreamSender {
    next: u64,
    packets: u64,
}

impl StreamSender {
    /// A sender for messages of these lengths; `length` is asked once for each active lane.
    pub fn new(mask: LaneMask, length: impl FnMut(u32) -> usize) -> Self {
        let longest = mask.iter().map(length).max().unwrap_or(0);
        StreamSender { next: 0, packets: packets(longest as u64) }
    }

    /// Sends the first packet of a conversation. Never waits.
    pub fn open<'c, 'd>(
        &mut self,
        port: OpenedPort<'c>,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Port<'c, Device> {
        let packet = self.next;
        self.next += 1;
        port.send(|lane| Self::fill(packet, lane, message(lane.index())))
    }

    /// Sends packets while it is this side's turn; ready when the last has been sent.
    ///
    /// `message` gives each lane's whole message, the same at every call.
    pub fn poll<'d, R: Role>(
        &mut self,
        port: &mut Port<'_, R>,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Poll<()> {
        while self.next < self.packets {
            let packet = self.next;
            let sent = port.try_send(|lane| Self::fill(packet, lane, message(lane.index())));
            if sent.is_pending() {
                return Poll::Pending;
            }
            self.next += 1;
        }
        Poll::Ready(())
    }

    fn fill(packet: u64, lane: Lane<'_>, message: &[u8]) {
        let data = part(message, packet, FIRST_PACKET);
        if packet == 0 {
            lane.set_word(0, message.len() as u64);
            lane.set_bytes_from(1, data);
        } else {
            lane.set_bytes_from(0, data);
        }
    }
}

/// Receives a stream, one packet a step.
#[derive(Clone, Debug)]
pub struct StreamReceiver {
    limit: u64,
    next: u64,
    packets: u64,
    remaining: [u64; 64],
}

impl StreamReceiver {
    /// A receiver that takes in at most `limit` bytes of all lanes together.
    pub fn new(limit: u64) -> Self {
        StreamReceiver { limit, next: 0, packets: 1, remaining: [0; 64] }
    }

    /// Receives packets while it is this side's turn; ready when the last has been read.
    ///
    /// `sink` gets the lane, what of its message is still to come (with this part) and the
    /// part. It is called at least once for each active lane, at first with the whole
    /// length, also when that is zero. Nothing is given to it before the limit was checked.
    ///
    /// # Errors
    /// [`StreamError::TooLong`]; the conversation stands at the first packet then.
    pub fn poll<R: Role>(
        &mut self,
        port: &mut Port<'_, R>,
        mut sink: impl FnMut(u32, u64, &[u8]),
    ) -> Poll<Result<(), StreamError>> {
        while !self.is_done() {
            match self.poll_packet(port, &mut sink) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the last packet has been read.
    pub(crate) fn is_done(&self) -> bool {
        self.next == self.packets
    }

    /// Receives one packet.
    pub(crate) fn poll_packet<R: Role>(
        &mut self,
        port: &mut Port<'_, R>,
        mut sink: impl FnMut(u32, u64, &[u8]),
    ) -> Poll<Result<(), StreamError>> {
        let remaining = &mut self.remaining;
        if self.next == 0 {
            let lengths = port.try_recv(|lane| remaining[lane.index() as usize] = lane.word(0));
            if lengths.is_pending() {
                return Poll::Pending;
            }
            self.packets = packets(longest(port.mask(), remaining, self.limit)?);
            port.lanes().for_each(|lane| Self::take(remaining, lane, 8, &mut sink));
        } else if port.try_recv(|lane| Self::take(remaining, lane, 0, &mut sink)).is_pending() {
            return Poll::Pending;
        }
        self.next += 1;
        Poll::Ready(Ok(()))
    }

    /// Gives the sink what of the lane's message stands in its packet behind byte `from`.
    fn take(
        remaining: &mut [u64; 64],
        lane: Lane<'_>,
        from: usize,
        sink: &mut impl FnMut(u32, u64, &[u8]),
    ) {
        let remaining = &mut remaining[lane.index() as usize];
        let length = (PACKET_SIZE - from).min(usize::try_from(*remaining).unwrap_or(usize::MAX));
        if length > 0 || from > 0 {
            sink(lane.index(), *remaining, &lane.load().bytes()[from..from + length]);
            *remaining -= length as u64;
        }
    }
}

/// The longest of the announced lengths, if all together keep to the limit.
fn longest(mask: LaneMask, lengths: &[u64; 64], limit: u64) -> Result<u64, StreamError> {
    let (mut total, mut longest) = (0u64, 0);
    for lane in mask {
        let length = lengths[lane as usize];
        total = total.saturating_add(length);
        if total > limit {
            return Err(StreamError::TooLong { lane, length, limit });
        }
        longest = longest.max(length);
    }
    Ok(longest)
}

/// Sends a message of fixed size, one packet a step.
#[derive(Clone, Debug)]
pub struct FixedSender {
    next: u64,
    packets: u64,
}

/// How many packets a message of `size` bytes needs; an empty one still takes a turn.
const fn fixed_packets(size: usize) -> u64 {
    let packets = size.div_ceil(PACKET_SIZE);
    if packets == 0 { 1 } else { packets as u64 }
}

impl FixedSender {
    /// A sender for messages of `size` bytes on every lane.
    pub fn new(size: usize) -> Self {
        FixedSender { next: 0, packets: fixed_packets(size) }
    }

    /// Sends the first packet of a conversation. Never waits.
    pub fn open<'c, 'd>(
        &mut self,
        port: OpenedPort<'c>,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Port<'c, Device> {
        self.next = 1;
        port.send(|lane| lane.set_bytes(part(message(lane.index()), 0, PACKET_SIZE)))
    }

    /// Sends packets while it is this side's turn; ready when the last has been sent.
    pub fn poll<'d, R: Role>(
        &mut self,
        port: &mut Port<'_, R>,
        mut message: impl FnMut(u32) -> &'d [u8],
    ) -> Poll<()> {
        while self.next < self.packets {
            let packet = self.next;
            let sent = port
                .try_send(|lane| lane.set_bytes(part(message(lane.index()), packet, PACKET_SIZE)));
            if sent.is_pending() {
                return Poll::Pending;
            }
            self.next += 1;
        }
        Poll::Ready(())
    }
}

/// Receives a message of fixed size, one packet a step.
#[derive(Clone, Debug)]
pub struct FixedReceiver {
    size: usize,
    next: u64,
}

impl FixedReceiver {
    /// A receiver for messages of `size` bytes on every lane.
    pub fn new(size: usize) -> Self {
        FixedReceiver { size, next: 0 }
    }

    /// Receives packets while it is this side's turn; ready when the last has been read.
    /// `sink` gets each lane's next part.
    pub fn poll<R: Role>(
        &mut self,
        port: &mut Port<'_, R>,
        mut sink: impl FnMut(u32, &[u8]),
    ) -> Poll<()> {
        while self.next < fixed_packets(self.size) {
            let length = (self.size - self.next as usize * PACKET_SIZE).min(PACKET_SIZE);
            let received = port.try_recv(|lane| sink(lane.index(), &lane.load().bytes()[..length]));
            if received.is_pending() {
                return Poll::Pending;
            }
            self.next += 1;
        }
        Poll::Ready(())
    }
}
