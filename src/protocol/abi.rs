//! What differs between LLVM releases: packet arrangement, opcode numbers, client object. And the
//! crate's own wire beside them.
//!
//! The device never computes an offset by itself; it uses the pointers of a *client
//! object* that the host copied into a device global (PROTOCOL.md §0, §1.4). So the
//! bytes of that object are the binary interface, and an [`Abi`] names one of them.

use core::fmt;

use super::channel::Channel;
use super::layout::Layout;
use super::wire::Opcode;

/// One binary interface of device code: LLVM's, or the crate's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abi {
    /// LLVM 17: packets as structures, 16-bit opcodes in an early order, 512 ports.
    Llvm17,
    /// LLVM 18: packets as structures, 16-bit opcodes, 4096 ports.
    Llvm18,
    /// LLVM 19: headers apart from packets, 16-bit opcodes.
    Llvm19,
    /// LLVM 20, 21 and 22: 32-bit opcodes with a class byte.
    Llvm20,
    /// LLVM's main branch for a few days of March 2026: a doorbell, still 4096 ports.
    LlvmMain4096,
    /// LLVM's main branch since then (23 and later): a doorbell, 16384 ports.
    LlvmMain,
    /// This crate's own wire, version 1: `hostcall::fast` of [`device::HEADER`](crate::device::HEADER).
    /// Short messages carry their own flag, so that a call takes fewer steps over the bus.
    Hostcall,
}

/// What the device symbol of an [`Abi`] holds, which decides how the host publishes a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolKind {
    /// The client object itself: copy the image to the symbol's address.
    Object,
    /// The client object's address: read eight bytes there, then copy the image to what they say.
    Pointer,
}

/// Why the size of a device symbol does not tell the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownSymbol {
    /// The symbol is a pointer, as in LLVM 17, 18 and 19, whose objects differ.
    #[error(
        "an 8-byte client symbol is a pointer to the client object, as LLVM 17 to 19 have it: \
         choose Abi::Llvm17, Abi::Llvm18 or Abi::Llvm19 by the compiler's release"
    )]
    Pointer,
    /// No known client object has this size.
    #[error(
        "no known client object has {0} bytes: known are 552 (LLVM 20 to 22), 560 (main, March \
         2026), 2096 (main), 16448 (hostcall's own), and 8 for a pointer to one (LLVM 17 to 19)"
    )]
    Size(u64),
}

impl Abi {
    /// Every interface, oldest first.
    pub const ALL: [Abi; 7] = [
        Abi::Llvm17,
        Abi::Llvm18,
        Abi::Llvm19,
        Abi::Llvm20,
        Abi::LlvmMain4096,
        Abi::LlvmMain,
        Abi::Hostcall,
    ];

    /// The interface whose client object has this size (PROTOCOL.md §0.2).
    ///
    /// # Errors
    /// [`UnknownSymbol`] says why the size does not tell.
    pub const fn from_symbol_size(size: u64) -> Result<Self, UnknownSymbol> {
        match size {
            552 => Ok(Abi::Llvm20),
            560 => Ok(Abi::LlvmMain4096),
            2096 => Ok(Abi::LlvmMain),
            16448 => Ok(Abi::Hostcall),
            8 => Err(UnknownSymbol::Pointer),
            other => Err(UnknownSymbol::Size(other)),
        }
    }

    /// The name of the device global that the host fills in.
    pub const fn symbol(self) -> &'static str {
        match (self, self.symbol_kind()) {
            (Abi::Hostcall, _) => crate::device::FAST_CLIENT_SYMBOL,
            (_, SymbolKind::Pointer) => "__llvm_libc_rpc_client",
            (_, SymbolKind::Object) => "__llvm_rpc_client",
        }
    }

    /// Whether that global is the client object or points to it.
    pub const fn symbol_kind(self) -> SymbolKind {
        match self {
            Abi::Llvm17 | Abi::Llvm18 | Abi::Llvm19 => SymbolKind::Pointer,
            Abi::Llvm20 | Abi::LlvmMain4096 | Abi::LlvmMain | Abi::Hostcall => SymbolKind::Object,
        }
    }

    /// The most ports that the client object has locks for.
    pub const fn max_ports(self) -> u32 {
        match self {
            Abi::Llvm17 => 512,
            Abi::LlvmMain => 16384,
            _ => 4096,
        }
    }

    /// Bytes of the client object.
    pub const fn client_size(self) -> usize {
        match self {
            Abi::Hostcall => TAGGED_PORTS + 4 * self.max_ports() as usize,
            _ => self.locks_offset() + self.max_ports() as usize / 8,
        }
    }

    /// Whether the client object points to a doorbell block.
    pub const fn has_doorbell(self) -> bool {
        matches!(self, Abi::LlvmMain4096 | Abi::LlvmMain)
    }

    /// Whether each port's header stands in front of its packets.
    pub(crate) const fn headers_inside_packets(self) -> bool {
        matches!(self, Abi::Llvm17 | Abi::Llvm18)
    }

    /// Whether this is the crate's own wire (see [`tagged`](super::tagged)).
    pub(crate) const fn is_tagged(self) -> bool {
        matches!(self, Abi::Hostcall)
    }

    /// Bits of the header's opcode that clients write.
    const fn opcode_mask(self) -> u32 {
        match self {
            Abi::Llvm17 | Abi::Llvm18 | Abi::Llvm19 => 0xffff,
            _ => u32::MAX,
        }
    }

    const fn locks_offset(self) -> usize {
        let pointers = 3 + !self.headers_inside_packets() as usize + self.has_doorbell() as usize;
        8 + 8 * pointers
    }

    /// The opcode that a header's number means; `None` for the number that stands for none.
    ///
    /// LLVM 17 to 19 numbered the C library's opcodes from zero; handlers see the
    /// numbers of LLVM 20. Numbers that those releases left to others stay as they are.
    pub const fn opcode_from_wire(self, raw: u32) -> Option<Opcode> {
        let raw = raw & self.opcode_mask();
        if raw == self.opcode_mask() {
            return None;
        }
        let number = match self {
            Abi::Llvm17 => match raw {
                0..=4 => raw,
                5 => 8,
                6 => 9,
                7 => 10,
                8 => 11,
                1000..=1002 => TEST + raw - 1000,
                _ => return Some(Opcode(raw)),
            },
            Abi::Llvm18 | Abi::Llvm19 => match raw {
                0..=29 => raw,
                0x8000 => 0,
                0x8001..=0x8003 => TEST + raw - 0x8001,
                _ => return Some(Opcode(raw)),
            },
            _ => return Some(Opcode(raw)),
        };
        Some(Opcode::new(b'c', number))
    }

    /// The header's number for an opcode; `None` where this interface cannot say it.
    pub fn opcode_to_wire(self, opcode: Opcode) -> Option<u32> {
        if self.opcode_mask() == u32::MAX {
            return (opcode.0 != u32::MAX).then_some(opcode.0);
        }
        let raw = if opcode.class() == b'c' {
            let candidates = (0..=29).chain(1000..=1002).chain(0x8001..=0x8003);
            let mut matching = candidates.filter(|&raw| self.opcode_from_wire(raw) == Some(opcode));
            matching.next()?
        } else {
            opcode.0
        };
        (raw < self.opcode_mask() && self.opcode_from_wire(raw) == Some(opcode)).then_some(raw)
    }
}

/// Where the words of the ports begin in the client object of the crate's own wire.
const TAGGED_PORTS: usize = 64;

/// Number of the C library's first test opcode. Its value in LLVM 22's merged list is
/// unverified (PROTOCOL.md §4.1).
const TEST: u32 = 0x8000;

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Abi::Llvm17 => "LLVM 17",
            Abi::Llvm18 => "LLVM 18",
            Abi::Llvm19 => "LLVM 19",
            Abi::Llvm20 => "LLVM 20 to 22",
            Abi::LlvmMain4096 => "LLVM main of March 2026",
            Abi::LlvmMain => "LLVM main",
            Abi::Hostcall => "hostcall's own wire",
        })
    }
}

/// The addresses, valid on the device, that a client object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPointers {
    /// The doorbell block; only where [`Abi::has_doorbell`].
    pub doorbell: u64,
    /// The mailboxes that the server writes: the client's inbox. The replies of the crate's own wire.
    pub inbox: u64,
    /// The mailboxes that the client writes: its outbox.
    pub outbox: u64,
    /// The headers; not used where they stand inside the packets. The requests of the crate's own
    /// wire.
    pub headers: u64,
    /// The packets.
    pub packets: u64,
}

/// The bytes to copy into the device's client object (PROTOCOL.md §1.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ClientImage {
    abi: Abi,
    bytes: [u8; Abi::Hostcall.client_size()],
}

impl ClientImage {
    /// The client object for a layout and its addresses, all locks free, for ports that have not been
    /// used yet.
    #[expect(clippy::large_stack_arrays, reason = "there may be no allocator")]
    pub fn new(layout: &Layout, pointers: &ClientPointers) -> Self {
        let abi = layout.abi();
        let mut image = ClientImage { abi, bytes: [0; Abi::Hostcall.client_size()] };
        let ports = layout.ports().get();
        if abi.is_tagged() {
            // Version, ports, lanes, reserved, then addresses.
            let numbers = [1, ports, layout.lanes().get(), 0].map(u32::to_le_bytes);
            image.bytes[..16].copy_from_slice(numbers.as_flattened());
            let ClientPointers { inbox, outbox, headers, packets, .. } = *pointers;
            let addresses = [outbox, headers, inbox, packets].map(u64::to_le_bytes);
            image.bytes[16..48].copy_from_slice(addresses.as_flattened());
            return image;
        }
        image.bytes[..4].copy_from_slice(&ports.to_le_bytes());
        let fields = [
            abi.has_doorbell().then_some(pointers.doorbell),
            Some(pointers.inbox),
            Some(pointers.outbox),
            (!abi.headers_inside_packets()).then_some(pointers.headers),
            Some(pointers.packets),
        ];
        for (field, bytes) in fields.iter().flatten().zip(image.bytes[8..].chunks_exact_mut(8)) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        image
    }

    /// As [`new`](Self::new), for ports that have been used: clients of the crate's own wire keep
    /// their mailboxes' values in the object. No client may use the channel meanwhile.
    pub fn of(channel: &Channel<'_>, pointers: &ClientPointers) -> Self {
        let layout = channel.layout();
        let mut image = Self::new(layout, pointers);
        if layout.abi().is_tagged() {
            for port in 0..layout.ports().get() {
                let at = TAGGED_PORTS + 4 * port as usize;
                let word = channel.tagged_port_word(port);
                image.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        image
    }

    /// The interface whose object this is.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// The bytes, as many as [`Abi::client_size`] says.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.abi.client_size()]
    }
}

impl fmt::Debug for ClientImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientImage")
            .field("abi", &self.abi)
            .field("size", &self.as_bytes().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_sizes_are_those_of_the_releases() {
        let sizes: Vec<_> = Abi::ALL.iter().map(|abi| abi.client_size()).collect();
        assert_eq!(sizes, [96, 544, 552, 552, 560, 2096, 16448]);
    }

    #[test]
    fn a_symbol_size_names_the_interface_or_says_why_not() {
        assert_eq!(Abi::from_symbol_size(552), Ok(Abi::Llvm20));
        assert_eq!(Abi::from_symbol_size(2096), Ok(Abi::LlvmMain));
        assert_eq!(Abi::from_symbol_size(560), Ok(Abi::LlvmMain4096));
        assert_eq!(Abi::from_symbol_size(8), Err(UnknownSymbol::Pointer));
        let message = Abi::from_symbol_size(96).unwrap_err().to_string();
        assert!(message.contains("96") && message.contains("552"), "{message}");
    }

    #[test]
    fn old_numbers_mean_todays_opcodes() {
        let libc = |n| Some(Opcode::new(b'c', n));
        assert_eq!(Abi::Llvm17.opcode_from_wire(5), libc(8), "open");
        assert_eq!(Abi::Llvm17.opcode_from_wire(8), libc(11), "free");
        assert_eq!(Abi::Llvm17.opcode_from_wire(1000), libc(0x8000), "increment");
        assert_eq!(Abi::Llvm18.opcode_from_wire(20), libc(20), "ungetc");
        assert_eq!(Abi::Llvm19.opcode_from_wire(0x8000), libc(0), "noop");
        assert_eq!(Abi::Llvm19.opcode_from_wire(0x9000), Some(Opcode(0x9000)), "a user's");
        assert_eq!(Abi::Llvm19.opcode_from_wire(0xffff_ffff), None);
        assert_eq!(Abi::Llvm20.opcode_from_wire(5), Some(Opcode(5)));
        assert_eq!(Abi::Llvm20.opcode_from_wire(u32::MAX), None);
    }

    #[test]
    fn opcodes_return_from_the_wire_as_they_went() {
        for abi in Abi::ALL {
            for opcode in (0..30).map(|n| Opcode::new(b'c', n)).chain([Opcode(0x9123)]) {
                if let Some(raw) = abi.opcode_to_wire(opcode) {
                    assert_eq!(abi.opcode_from_wire(raw), Some(opcode), "{abi} {opcode}");
                } else {
                    assert_eq!(abi, Abi::Llvm17, "{opcode}");
                }
            }
        }
        assert_eq!(Abi::Llvm19.opcode_to_wire(Opcode::new(b'x', 1)), None);
        assert_eq!(Abi::Llvm19.opcode_to_wire(Opcode(3)), None, "means stderr there");
    }
}
