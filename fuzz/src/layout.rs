//! Sizes, images and opcodes of any numbers: no panic, no overlap, nothing out of bounds.

use hostcall::protocol::ClientPointers;
use hostcall::{Abi, ClientImage, LaneWidth, Layout, Opcode, PortCount};

use crate::input::Input;

/// Builds a layout of arbitrary numbers and checks what it says of one port and lane.
pub fn layout(data: &[u8]) {
    let mut input = Input(data);
    let abi = input.abi();
    let raw = input.u32();
    if let Some(opcode) = abi.opcode_from_wire(raw) {
        let again = abi.opcode_to_wire(opcode).expect("what was heard can be said");
        assert_eq!(abi.opcode_from_wire(again), Some(opcode));
    }
    if let Some(said) = abi.opcode_to_wire(Opcode(raw)) {
        assert_eq!(abi.opcode_from_wire(said), Some(Opcode(raw)));
    }
    let _ = (Opcode(raw).to_string(), Abi::from_symbol_size(input.number()));

    let (ports, lanes) = (input.number() as u32, input.number() as u32);
    let (Ok(ports), Ok(lanes)) = (PortCount::new(ports), LaneWidth::new(lanes)) else { return };
    let Ok(layout) = Layout::new(abi, ports, lanes) else {
        return assert!(ports.get() > abi.max_ports());
    };
    let (port, lane) = (input.u32() % ports.get(), input.u32() % lanes.get());
    let (header, packet) = (layout.header_offset(port), layout.packet_offset(port, lane));
    assert!(layout.secondary_offset() + layout.mailboxes_size() <= layout.packets_offset());
    assert!(header >= layout.packets_offset() && header + 16 <= layout.size());
    assert!(packet >= layout.packets_offset() && packet + 64 <= layout.size());
    assert!(header + 16 <= packet, "a header stands before its packets in every interface");
    let last = layout.packet_offset(ports.get() - 1, lanes.get() - 1) + 64;
    assert!(last <= layout.size());

    let mut address = || input.u64();
    let pointers = ClientPointers {
        doorbell: address(),
        inbox: address(),
        outbox: address(),
        headers: address(),
        packets: address(),
    };
    let image = ClientImage::new(&layout, &pointers);
    assert_eq!(image.as_bytes().len(), abi.client_size());
    let at = if abi == Abi::Hostcall { 4 } else { 0 };
    assert_eq!(image.as_bytes()[at..at + 4], ports.get().to_le_bytes());
}
