//! The device's half of the C library, as far as tests need it: each function makes the exchange of
//! PROTOCOL.md §4.2 for all lanes of a warp at once.

use hostcall::backend::host::HostAllocator;
use hostcall::libc::opcode;
use hostcall::{Client, ClientPort, LaneBytes, LaneMask, Opcode, Server};

/// Tags of the standard streams (PROTOCOL.md §4.5), with upper bits that mean nothing.
pub(crate) const STDIN: u64 = 0x7000_0000 | 1;
pub(crate) const STDOUT: u64 = 0x7000_0010 | 2;
pub(crate) const STDERR: u64 = 0x7000_0020 | 3;

/// Widths and masks that every opcode is tried with: one lane, and holes in wider warps.
pub(crate) const SHAPES: [(u32, u64); 4] =
    [(1, 1), (32, 0xffff_ffff), (32, 0x8421_0f02), (64, 0x8000_0000_a5a5_0001)];

/// A value for each lane.
pub(crate) type Lanes = [u64; 64];

/// A warp that uses the C library.
#[derive(Clone, Copy)]
pub(crate) struct Warp<'c> {
    pub(crate) client: Client<'c>,
    pub(crate) mask: LaneMask,
}

impl<'c> Warp<'c> {
    pub(crate) fn new(server: &'c Server<HostAllocator>, mask: u64) -> Self {
        Warp { client: server.client(), mask: LaneMask(mask) }
    }

    /// The values of the active lanes.
    pub(crate) fn active(&self, values: &Lanes) -> Vec<u64> {
        self.mask.iter().map(|lane| values[lane as usize]).collect()
    }

    /// One packet there, one back: the first words.
    pub(crate) fn call(&self, opcode: Opcode, words: impl Fn(u32) -> [u64; 3]) -> Lanes {
        let mut reply = [0; 64];
        self.client
            .call(opcode, self.mask, words, |lane, value: u64| reply[lane as usize] = value)
            .unwrap();
        reply
    }

    pub(crate) fn write(&self, opcode: Opcode, bytes: impl Fn(u32) -> Vec<u8>) -> Lanes {
        let bytes = LaneBytes::from_fn(self.mask, bytes);
        let port = self.client.open(opcode, self.mask).unwrap();
        last_word(port.send_stream(|lane| bytes.get(lane).unwrap()).unwrap())
    }

    pub(crate) fn write_to(
        &self,
        opcode: Opcode,
        file: impl Fn(u32) -> u64,
        bytes: impl Fn(u32) -> Vec<u8>,
    ) -> Lanes {
        let bytes = LaneBytes::from_fn(self.mask, bytes);
        let port = self.client.open(opcode, self.mask).unwrap();
        let mut port = port.send(|lane| lane.set_word(0, file(lane.index())));
        port.send_stream(|lane| bytes.get(lane).unwrap()).unwrap();
        last_word(port)
    }

    pub(crate) fn fwrite(
        &self,
        file: impl Fn(u32) -> u64,
        bytes: impl Fn(u32) -> Vec<u8>,
    ) -> Lanes {
        self.write_to(opcode::WRITE_TO_STREAM, file, bytes)
    }

    pub(crate) fn fopen(&self, path: impl Fn(u32) -> Vec<u8>, mode: &str) -> Lanes {
        let paths = LaneBytes::from_fn(self.mask, |lane| with_nul(path(lane)));
        let mode = with_nul(mode.as_bytes().to_vec());
        let port = self.client.open(opcode::OPEN_FILE, self.mask).unwrap();
        let mut port = port.send_stream(|lane| paths.get(lane).unwrap()).unwrap();
        port.send(|lane| lane.set_bytes(&mode)).unwrap();
        last_word(port)
    }

    pub(crate) fn fclose(&self, file: impl Fn(u32) -> u64) -> Lanes {
        self.call(opcode::CLOSE_FILE, |lane| [file(lane), 0, 0])
    }

    pub(crate) fn fread(
        &self,
        file: impl Fn(u32) -> u64,
        count: impl Fn(u32) -> u64,
    ) -> (LaneBytes, Lanes) {
        let port = self.client.open(opcode::READ_FROM_STREAM, self.mask).unwrap();
        let mut port = port.send(|lane| {
            lane.set_word(0, count(lane.index()));
            lane.set_word(1, file(lane.index()));
        });
        let bytes = receive(&mut port);
        (bytes, last_word(port))
    }

    pub(crate) fn fgets(&self, file: impl Fn(u32) -> u64, count: impl Fn(u32) -> u64) -> LaneBytes {
        let port = self.client.open(opcode::READ_FGETS, self.mask).unwrap();
        let mut port = port.send(|lane| {
            lane.set_word(0, count(lane.index()));
            lane.set_word(1, file(lane.index()));
        });
        receive(&mut port)
    }

    pub(crate) fn fseek(&self, file: impl Fn(u32) -> u64, offset: i64, whence: u64) -> Lanes {
        self.call(opcode::FSEEK, |lane| [file(lane), offset as u64, whence])
    }

    /// An opcode that takes a stream only.
    pub(crate) fn on_stream(&self, opcode: Opcode, file: impl Fn(u32) -> u64) -> Lanes {
        self.call(opcode, |lane| [file(lane), 0, 0])
    }

    pub(crate) fn ungetc(&self, character: u64, file: impl Fn(u32) -> u64) -> Lanes {
        self.call(opcode::UNGETC, |lane| [character, file(lane), 0])
    }

    pub(crate) fn remove(&self, path: impl Fn(u32) -> Vec<u8>) -> Lanes {
        self.write(opcode::REMOVE, |lane| with_nul(path(lane)))
    }

    pub(crate) fn rename(
        &self,
        from: impl Fn(u32) -> Vec<u8>,
        to: impl Fn(u32) -> Vec<u8>,
    ) -> Lanes {
        let from = LaneBytes::from_fn(self.mask, |lane| with_nul(from(lane)));
        let to = LaneBytes::from_fn(self.mask, |lane| with_nul(to(lane)));
        let port = self.client.open(opcode::RENAME, self.mask).unwrap();
        let mut port = port.send_stream(|lane| from.get(lane).unwrap()).unwrap();
        port.send_stream(|lane| to.get(lane).unwrap()).unwrap();
        last_word(port)
    }

    pub(crate) fn host_call(
        &self,
        function: impl Fn(u32) -> u64,
        bytes: impl Fn(u32) -> Vec<u8>,
    ) -> Lanes {
        let bytes = LaneBytes::from_fn(self.mask, bytes);
        let port = self.client.open(opcode::HOST_CALL, self.mask).unwrap();
        let mut port = port.send_stream(|lane| bytes.get(lane).unwrap()).unwrap();
        port.send(|lane| lane.set_word(0, function(lane.index()))).unwrap();
        last_word(port)
    }

    /// `printf`: the format and argument block as the device would send them, and what its string
    /// pointers mean. Returns the result of each lane.
    pub(crate) fn printf(
        &self,
        opcode: Opcode,
        file: Option<u64>,
        format: impl Fn(u32) -> Vec<u8>,
        arguments: impl Fn(u32) -> Vec<u8>,
        string: impl Fn(u32, u64) -> Vec<u8>,
    ) -> Vec<i32> {
        let formats = LaneBytes::from_fn(self.mask, format);
        let port = self.client.open(opcode, self.mask).unwrap();
        let mut port = match file {
            Some(file) => {
                let mut port = port.send(|lane| lane.set_word(0, file));
                port.send_stream(|lane| formats.get(lane).unwrap()).unwrap();
                port
            }
            None => port.send_stream(|lane| formats.get(lane).unwrap()).unwrap(),
        };
        let mut sizes = [0; 64];
        port.recv(|lane| sizes[lane.index() as usize] = lane.word(0)).unwrap();
        // The device sends as many bytes as it is asked for, from what it has.
        let blocks = LaneBytes::from_fn(self.mask, |lane| {
            let mut block = arguments(lane);
            block.resize(sizes[lane as usize] as usize, 0);
            block
        });
        port.send_stream(|lane| blocks.get(lane).unwrap()).unwrap();
        loop {
            let (mut results, mut wanted) = ([0; 64], [0; 64]);
            port.recv(|lane| {
                results[lane.index() as usize] = lane.word(0);
                wanted[lane.index() as usize] = lane.word(1);
            })
            .unwrap();
            if wanted.iter().all(|&pointer| pointer == 0) {
                return self.mask.iter().map(|lane| results[lane as usize] as i32).collect();
            }
            let strings = LaneBytes::from_fn(self.mask, |lane| match wanted[lane as usize] {
                0 => Vec::new(),
                pointer => with_nul(string(lane, pointer)),
            });
            port.send_stream(|lane| strings.get(lane).unwrap()).unwrap();
        }
    }

    /// `exit` and `abort`: the handshake, then the status.
    pub(crate) fn end(&self, opcode: Opcode, status: impl Fn(u32) -> u64) {
        let mut port = self.client.open(opcode, self.mask).unwrap().send(|_| ());
        port.recv(|_| ()).unwrap();
        port.send(|lane| lane.set_word(0, status(lane.index()))).unwrap();
    }
}

fn last_word(mut port: ClientPort<'_>) -> Lanes {
    let mut reply = [0; 64];
    port.recv(|lane| reply[lane.index() as usize] = lane.word(0)).unwrap();
    reply
}

fn receive(port: &mut ClientPort<'_>) -> LaneBytes {
    let mut parts: Vec<(u32, Vec<u8>)> = Vec::new();
    port.recv_stream(|lane, _, part| match parts.iter_mut().find(|(owner, _)| *owner == lane) {
        Some((_, bytes)) => bytes.extend_from_slice(part),
        None => parts.push((lane, part.to_vec())),
    })
    .unwrap();
    let lanes: Vec<_> = parts.iter().map(|(lane, _)| *lane).collect();
    LaneBytes::from_fn(lanes, |lane| {
        parts.iter().find(|(owner, _)| *owner == lane).map(|(_, bytes)| bytes.clone()).unwrap()
    })
}

pub(crate) fn with_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.push(0);
    bytes
}
