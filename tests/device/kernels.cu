// Device tests: kernels that count what went wrong. Compiled by compile.sh for every target; run on a GPU by a host
// program that serves these opcodes (all lanes of a packet alike):
//   INCREMENT  one word, reply word + 1
//   COUNT      a notification
//   ECHO       a stream there, the same back
// Kernels P_name, P = ours, fast: (Ops, rounds, [there, back,] u32 *wrong, u32 *notified). They add to *wrong for each lane and fault, and to *notified
// for each word that the server has to have seen in COUNT.
#define HOSTCALL_DEFINE_CLIENT
#if !defined(HOSTCALL_FAST)
#define HOSTCALL_FAST 1
#endif
#include "../../device/hostcall.h"

using hostcall::Packet;
using hostcall::u32;
using hostcall::u64;
using hostcall::u8;
namespace target = hostcall::detail;

#define KERNEL HOSTCALL_KERNEL

struct Ops {
  u32 increment, count, echo, unknown;
};

struct Tally {
  u32 wrong = 0;
  u32 notified = 0;
  HOSTCALL_FN void expect(bool right) { wrong += right ? 0 : 1; }
  HOSTCALL_FN void write(u32 *all_wrong, u32 *all_notified) const {
    if (wrong)
      target::add_relaxed_gpu(all_wrong, wrong);
    if (notified)
      target::add_relaxed_gpu(all_notified, notified);
  }
};

HOSTCALL_FN u64 lane_number() { return (u64)target::group_number() * target::lane_width() + target::lane_id(); }

template <class P> HOSTCALL_FN u64 increment(u32 opcode, u64 value) {
  u64 reply = 0;
  P port(opcode);
  port.send([&](typename P::Outgoing &packet) { packet.set_word(0, value); });
  port.recv([&](typename P::Incoming &packet) { reply = packet.word(0); });
  return reply;
}

template <class P> HOSTCALL_FN void notify(u32 opcode, u64 value) {
  P port(opcode);
  port.send([&](typename P::Outgoing &packet) { packet.set_word(0, value); });
}

// All lanes, then odd ones call while even ones notify, then every third has gone home.
template <class P> HOSTCALL_FN void diverge(Ops ops, u32 rounds, Tally &tally) {
  const u64 base = lane_number() << 32;
  const u32 lane = target::lane_id();
  for (u32 i = 0; i < rounds; ++i)
    tally.expect(increment<P>(ops.increment, base + i) == base + i + 1);
  for (u32 i = 0; i < rounds; ++i) {
    if (lane % 2 == 1) {
      tally.expect(increment<P>(ops.increment, base + i) == base + i + 1);
    } else {
      notify<P>(ops.count, 1);
      ++tally.notified;
    }
  }
  if (lane % 3 == 0)
    return;
  // Every lane as often as its number says: the group shrinks from round to round.
  for (u32 i = 0; i < lane % 8; ++i)
    tally.expect(increment<P>(ops.increment, base + i) == base + i + 1);
}

// Groups of one warp hold ports at the same time: the outer port stays open while a part of its lanes uses another.
template <class P> HOSTCALL_FN void nest(Ops ops, u32 rounds, Tally &tally) {
  const u64 base = lane_number() << 32;
  for (u32 i = 0; i < rounds; ++i) {
    P outer(ops.increment);
    outer.send([&](typename P::Outgoing &packet) { packet.set_word(0, base + i); });
    if (target::lane_id() % 4 < 2)
      tally.expect(increment<P>(ops.increment, base + 77) == base + 78);
    outer.recv([&](typename P::Incoming &packet) { tally.expect(packet.word(0) == base + i + 1); });
  }
}

// Each lane a stream of a length of its own, empty ones among them, from addresses of every alignment. `there` and
// `back` have 512 bytes for each lane.
template <class P> HOSTCALL_FN void echo(Ops ops, u32 rounds, u8 *there, u8 *back, Tally &tally) {
  const u32 lane = target::lane_id();
  for (u32 i = 0; i < rounds; ++i) {
    u8 *sent = there + lane_number() * 512 + (lane + i) % 9, *got = back + lane_number() * 512 + (lane / 3 + i) % 9;
    const u32 lengths[8] = {0, 1, 55, 56, 57, 120, 121, 251};
    const u32 size = lengths[(lane + i) % 8], room = i % 3 == 2 ? size / 2 : size;
    for (u32 k = 0; k < size; ++k)
      sent[k] = (u8)(k * 7 + lane + i);
    for (u32 k = 0; k <= room; ++k)
      got[k] = 0xee;
    u64 length = 0;
    {
      P port(ops.echo);
      port.send_stream(sent, size);
      length = port.recv_stream(got, room);
    }
    bool right = length == size && got[room] == 0xee;
    for (u32 k = 0; k < room; ++k)
      right = right && got[k] == sent[k];
    tally.expect(right);
  }
}

// One port for one conversation after another; the last one is a notification.
template <class P> HOSTCALL_FN void reopen(Ops ops, u32 rounds, Tally &tally) {
  const u64 base = lane_number() << 32;
  P port(ops.increment);
  for (u32 i = 0; i < rounds; ++i) {
    if (i > 0)
      port.reopen(ops.increment);
    port.send([&](typename P::Outgoing &packet) { packet.set_word(0, base + i); });
    port.recv([&](typename P::Incoming &packet) { tally.expect(packet.word(0) == base + i + 1); });
  }
  port.reopen(ops.count);
  port.send([&](typename P::Outgoing &packet) { packet.set_word(0, 1); });
  ++tally.notified;
}

// For servers that say why they refuse.
template <class P> HOSTCALL_FN void refused(Ops ops, u32 rounds, Tally &tally) {
  for (u32 i = 0; i < rounds; ++i) {
    P port(ops.unknown);
    port.send([&](typename P::Outgoing &packet) { packet.set_word(0, 42); });
    port.recv([&](typename P::Incoming &packet) { tally.expect(packet.word(0) == 0); });
    tally.expect(port.status() == hostcall::Status::UnknownOpcode);
  }
}

#define HOSTCALL_TEST_KERNELS(name, P)                                                                            \
  KERNEL name##_diverge(Ops ops, u32 rounds, u32 *wrong, u32 *notified) {                                         \
    Tally tally;                                                                                                  \
    diverge<P>(ops, rounds, tally);                                                                               \
    tally.write(wrong, notified);                                                                                 \
  }                                                                                                               \
  KERNEL name##_nest(Ops ops, u32 rounds, u32 *wrong, u32 *notified) {                                            \
    Tally tally;                                                                                                  \
    nest<P>(ops, rounds, tally);                                                                                  \
    tally.write(wrong, notified);                                                                                 \
  }                                                                                                               \
  KERNEL name##_echo(Ops ops, u32 rounds, u8 *there, u8 *back, u32 *wrong, u32 *notified) {                       \
    Tally tally;                                                                                                  \
    echo<P>(ops, rounds, there, back, tally);                                                                     \
    tally.write(wrong, notified);                                                                                 \
  }                                                                                                               \
  KERNEL name##_reopen(Ops ops, u32 rounds, u32 *wrong, u32 *notified) {                                          \
    Tally tally;                                                                                                  \
    reopen<P>(ops, rounds, tally);                                                                                \
    tally.write(wrong, notified);                                                                                 \
  }                                                                                                               \
  KERNEL name##_refused(Ops ops, u32 rounds, u32 *wrong, u32 *notified) {                                         \
    Tally tally;                                                                                                  \
    refused<P>(ops, rounds, tally);                                                                               \
    tally.write(wrong, notified);                                                                                 \
  }

HOSTCALL_TEST_KERNELS(ours, hostcall::Port)
#if HOSTCALL_FAST
HOSTCALL_TEST_KERNELS(fast, hostcall::fast::Port)
#endif

// The free functions, each once.
struct Pair {
  u64 a;
  u32 b;
};

KERNEL functions(Ops ops, u32 *wrong) {
  Tally tally;
  const u64 n = lane_number();
  tally.expect(hostcall::call<u64>(ops.increment, n) == n + 1);
  tally.expect(hostcall::call<Pair>(ops.increment, Pair{n, 5}).a == n + 1);
  u64 reply = 0;
  tally.expect(hostcall::try_call(ops.increment, n, reply) == hostcall::Status::Ok && reply == n + 1);
  auto port = hostcall::open<0x78000001>();
  tally.expect(bool(port));
  port.close();
  hostcall::notify(ops.count, 1ull);
  tally.expect(hostcall::print("lane\n") == 5);
  tally.expect(hostcall::eprint(target::lane_id() % 2 ? "odd\n" : "even\n") == (target::lane_id() % 2 ? 4 : 5));
#if HOSTCALL_FAST
  tally.expect(hostcall::fast::call<u64>(ops.increment, n) == n + 1);
  tally.expect(hostcall::fast::call<u64>(ops.increment, n, hostcall::fast::Order::Alone) == n + 1);
  hostcall::fast::notify(ops.count, 1ull);
#endif
  tally.write(wrong, wrong);
}

KERNEL ends(int status) {
  if (status < 0)
    hostcall::abort();
  hostcall::exit(status);
}

// Before anything was published.
KERNEL unpublished(u32 *wrong) {
  Tally tally;
  hostcall::Port port(1);
  tally.expect(!port && port.status() == hostcall::Status::NoServer);
  tally.expect(hostcall::print("nobody listens") == 0 && hostcall::call<u64>(1, 2) == 0);
  tally.write(wrong, wrong);
}
