// Kernels of tests/cuda.rs, besides those of tests/device/kernels.cu. With HOSTCALL_FAST=1 on the crate's own wire.
#define HOSTCALL_DEFINE_CLIENT
#include "hostcall.h"

#if HOSTCALL_FAST
namespace wire = hostcall::fast;
#else
namespace wire = hostcall;
#endif
using Outgoing = wire::Port::Outgoing;
using Incoming = wire::Port::Incoming;
using hostcall::u32;
using hostcall::u64;
using hostcall::u8;

#define KERNEL HOSTCALL_KERNEL

__device__ u64 thread_number() {
  return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

// Every thread: `rounds` calls, each reply one more than what was sent.
KERNEL increment(u32 opcode, u32 rounds, u32 by, u32 *wrong) {
  const u64 base = thread_number() << 20;
  for (u32 i = 0; i < rounds; ++i)
    if (wire::call<u64>(opcode, base + i) != base + i + by)
      atomicAdd(wrong, 1);
}

// Only some lanes, chosen by the bits of `lanes`.
KERNEL increment_lanes(u32 opcode, u32 lanes, u32 *wrong) {
  if (!(lanes >> threadIdx.x % 32 & 1))
    return;
  const u64 sent = thread_number() + 77;
  if (wire::call<u64>(opcode, sent) != sent + 1)
    atomicAdd(wrong, 1);
}

// A stream of `size` bytes from each lane of one warp, and the same back.
KERNEL stream(u32 opcode, u64 size, u64 stride, u8 *there, u8 *back, u32 *wrong) {
  const u32 lane = threadIdx.x;
  u8 *sent = there + lane * stride, *got = back + lane * stride;
  for (u64 i = 0; i < size; ++i)
    sent[i] = (u8)(i * 31 + lane * 7 + i / 251);
  got[size] = 0xee;
  u64 length;
  {
    wire::Port port(opcode);
    port.send_stream(sent, size);
    length = port.recv_stream(got, size);
  }
  bool right = length == size && got[size] == 0xee;
  for (u64 i = 0; i < size; ++i)
    right = right && got[i] == sent[i];
  if (!right)
    atomicAdd(wrong, 1);
}

// One notification from every thread, and the end.
KERNEL notify(u32 opcode) { wire::notify(opcode, thread_number()); }

// One line from every thread, longer than a packet.
KERNEL print(u32 *wrong) {
  char line[] = "thread 0000000 of the grid says that this line is longer than one packet of 64 bytes\n";
  u64 number = thread_number();
  for (u32 at = 13; at > 6; --at, number /= 10)
    line[at] = (char)('0' + number % 10);
  if (wire::print(line) != sizeof(line) - 1)
    atomicAdd(wrong, 1);
}

// Block 0 waits for an answer that does not come; block 1 says something, then faults.
KERNEL fault(u32 never) {
  if (blockIdx.x == 0) {
    wire::call<u64>(never, 0ull);
    return;
  }
  wire::print("before the fault\n");
  for (u32 i = 0; i < 200; ++i)
    __nanosleep(100000);
  __trap();
}

// Waits for an answer that does not come.
KERNEL wait(u32 never, u64 *reply) { *reply = wire::call<u64>(never, 5ull); }

// Asks for the end of the program, then goes on until it is told to stop.
KERNEL exit_and_stay(int status, volatile u32 *stop) {
  if (blockIdx.x == 0)
    wire::exit(status);
  while (!*stop)
    __nanosleep(1000);
}

// Each lane of a warp writes a file of its own and reads it back: `rounds` chunks of `chunk` bytes. The path's last
// two characters before the NUL become the lane.
KERNEL files(const char *path, u64 path_size, u64 chunk, u32 rounds, u8 *memory, u32 *wrong) {
  const u32 lane = threadIdx.x;
  char name[256];
  for (u64 i = 0; i < path_size; ++i)
    name[i] = path[i];
  name[path_size - 3] = (char)('0' + lane / 10);
  name[path_size - 2] = (char)('0' + lane % 10);
  u64 handle = 0, done = 0;
  auto take = [&](Incoming &packet) { done = packet.word(0); };
  for (u32 pass = 0; pass < 2; ++pass) {
    {
      wire::Port port(0x63000008); // open
      port.send_stream(name, path_size);
      port.send([&](Outgoing &packet) { packet.set_word(0, pass == 0 ? 'w' : 'r'); });
      port.recv([&](Incoming &packet) { handle = packet.word(0); });
    }
    bool right = handle != 0;
    u8 *bytes = memory + lane * chunk;
    for (u32 round = 0; round < rounds; ++round) {
      if (pass == 0) {
        for (u64 i = 0; i < chunk; ++i)
          bytes[i] = (u8)(i * 13 + i / 255 + lane + round);
        wire::Port port(0x63000004); // write
        port.send([&](Outgoing &packet) { packet.set_word(0, handle); });
        port.send_stream(bytes, chunk);
        port.recv(take);
      } else {
        u64 length;
        {
          wire::Port port(0x63000006); // read
          port.send([&](Outgoing &packet) {
            packet.set_word(0, chunk);
            packet.set_word(1, handle);
          });
          length = port.recv_stream(bytes, chunk);
          port.recv(take);
        }
        right = right && length == chunk;
        for (u64 i = 0; i < chunk; ++i)
          right = right && bytes[i] == (u8)(i * 13 + i / 255 + lane + round);
      }
      right = right && done == chunk;
    }
    if (wire::call<u64>(0x63000009, handle) != 0 || !right) // close
      atomicAdd(wrong, 1);
  }
}
