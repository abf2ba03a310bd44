// Kernels to measure clients with. NVRTC (-rdc=true, so that symbols can be looked up) or clang -x cuda; also
// plain clang for nvptx64 and amdgcn. The host program serves, launches and prints.
//
// Client objects: `__hostcall_client`, `__hostcall_baseline_client`, `__hostcall_fast_client`. Publish one.
//
// Kernels of calls, for P in ours, baseline, fast; and P_calls alone for ours_sticky, fast_sticky (a warp keeps its
// port), fast_alone (the request orders nothing else):
//   P_calls (opcode, n, lanes, Result *)   n calls of a word per warp; the reply must be the request + 1
//   P_notify(opcode, n, lanes, Result *)   n notifications of a word per warp
//   P_stream(opcode, n, lanes, data, size, Result *)         n streams of `size` bytes per lane (at
//                                          data + lane number * size), then one word back: the size
//   P_echo  (opcode, n, lanes, data, size, back, Result *)   a stream there and the same back, compared
// `lanes` lanes of each warp take part. Results are counted over all warps of the grid.
//
// Flag ping-pong, one thread: wait for nothing, write i to `there`, wait for i in `back`, i = 1 to n.
//   ping_relaxed, ping_ordered (there, back, n, Result *)
//   ping_payload(there, back, n, Result *)  word at there + 2 before the flag; answer's at back + 2: word + 1
//   ping_tagged (there, back, n, Result *)  16-byte cells of fast-wire tagged words; answer: data + 1
#define HOSTCALL_DEFINE_CLIENT
#define HOSTCALL_FAST 1
#include "baseline.h"

using hostcall::u32;
using hostcall::u64;
using hostcall::u8;
namespace target = hostcall::detail;

#define KERNEL HOSTCALL_KERNEL

// What a kernel reports, in device memory, zeroed by the host.
struct Result {
  u32 wrong;       // replies that were not what they had to be, all lanes
  u32 done;        // warps that ended
  u32 slowest;     // warp 0's longest call, in ticks
  u32 zero;
  u64 ticks;       // warp 0's time for all its calls, in nanoseconds on NVIDIA (%globaltimer)
  u64 cycles;      // the same in processor cycles, 0 elsewhere
  u32 *samples;    // null or room for n: warp 0's cycles for each call
};

#if defined(HOSTCALL_NVPTX)
HOSTCALL_FN u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
  return now;
}
HOSTCALL_FN u64 cycles() {
  u64 now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now) : : "memory");
  return now;
}
#elif defined(HOSTCALL_AMDGPU)
HOSTCALL_FN u64 nanoseconds() { return __builtin_readcyclecounter(); }
HOSTCALL_FN u64 cycles() { return __builtin_readcyclecounter(); }
#else
HOSTCALL_FN u64 nanoseconds() { return 0; }
HOSTCALL_FN u64 cycles() { return 0; }
#endif

// Runs `step` n times on the first `lanes` lanes of every warp. A step returns whether the lane's reply was wrong.
template <class Step> HOSTCALL_FN void measure(u32 n, u32 lanes, Result *result, Step step) {
  if (target::lane_id() >= lanes)
    return;
  const bool clocked = target::group_number() == 0 && target::lane_id() == 0;
  const target::Mask group = target::lane_mask();
  u32 wrong = 0;
  u64 slowest = 0;
  const u64 began = nanoseconds(), first = cycles();
  u64 before = first;
  for (u32 i = 0; i < n; ++i) {
    wrong += step(i) ? 1 : 0;
    if (clocked) {
      const u64 now = cycles();
      slowest = now - before > slowest ? now - before : slowest;
      if (result->samples)
        result->samples[i] = (u32)(now - before);
      before = now;
    }
    target::lanes_sync(group);
  }
  if (clocked) {
    result->ticks = nanoseconds() - began;
    result->cycles = cycles() - first;
    result->slowest = (u32)slowest;
  }
  if (wrong)
    target::add_relaxed_gpu(&result->wrong, wrong);
  if (target::lane_id() == 0)
    target::add_relaxed_gpu(&result->done, 1);
}

// A word that no other call of the run sends.
HOSTCALL_FN u64 request_of(u32 call) {
  return (u64)(target::group_number() * target::lane_width() + target::lane_id()) << 32 | call;
}

template <class P> HOSTCALL_FN bool one_call(P &port, u64 request) {
  u64 reply = 0;
  port.send([&](typename P::Outgoing &packet) { packet.set_word(0, request); });
  port.recv([&](typename P::Incoming &packet) { reply = packet.word(0); });
  return reply != request + 1;
}

template <class P> HOSTCALL_FN void calls(u32 opcode, u32 n, u32 lanes, Result *result) {
  measure(n, lanes, result, [&](u32 i) {
    P port(opcode);
    return one_call(port, request_of(i));
  });
}

template <class P> HOSTCALL_FN void notifications(u32 opcode, u32 n, u32 lanes, Result *result) {
  measure(n, lanes, result, [&](u32 i) {
    P port(opcode);
    port.send([&](typename P::Outgoing &packet) { packet.set_word(0, request_of(i)); });
    return false;
  });
}

HOSTCALL_FN u64 own_place(u64 size) {
  return ((u64)target::group_number() * target::lane_width() + target::lane_id()) * size;
}

template <class P>
HOSTCALL_FN void streams(u32 opcode, u32 n, u32 lanes, const u8 *data, u64 size, Result *result) {
  measure(n, lanes, result, [&](u32) {
    u64 reply = 0;
    P port(opcode);
    port.send_stream(data + own_place(size), size);
    port.recv([&](typename P::Incoming &packet) { reply = packet.word(0); });
    return reply != size;
  });
}

template <class P>
HOSTCALL_FN void echoes(u32 opcode, u32 n, u32 lanes, const u8 *data, u64 size, u8 *back, Result *result) {
  measure(n, lanes, result, [&](u32) {
    const u8 *sent = data + own_place(size);
    u8 *got = back + own_place(size);
    P port(opcode);
    port.send_stream(sent, size);
    bool wrong = port.recv_stream(got, size) != size;
    for (u64 i = 0; i < size; ++i)
      wrong |= got[i] != sent[i];
    return wrong;
  });
}

#define HOSTCALL_BENCH_CLIENT(name, P)                                                                            \
  KERNEL name##_calls(u32 opcode, u32 n, u32 lanes, Result *result) { calls<P>(opcode, n, lanes, result); }       \
  KERNEL name##_notify(u32 opcode, u32 n, u32 lanes, Result *result) { notifications<P>(opcode, n, lanes, result); } \
  KERNEL name##_stream(u32 opcode, u32 n, u32 lanes, const u8 *data, u64 size, Result *result) {                  \
    streams<P>(opcode, n, lanes, data, size, result);                                                             \
  }                                                                                                               \
  KERNEL name##_echo(u32 opcode, u32 n, u32 lanes, const u8 *data, u64 size, u8 *back, Result *result) {          \
    echoes<P>(opcode, n, lanes, data, size, back, result);                                                        \
  }

HOSTCALL_BENCH_CLIENT(ours, hostcall::Port)
HOSTCALL_BENCH_CLIENT(baseline, hostcall::baseline::Port)
HOSTCALL_BENCH_CLIENT(fast, hostcall::fast::Port)

// One port for all calls of a warp.
KERNEL ours_sticky_calls(u32 opcode, u32 n, u32 lanes, Result *result) {
  if (target::lane_id() >= lanes)
    return;
  hostcall::Port port(opcode);
  measure(n, lanes, result, [&](u32 i) {
    if (i > 0)
      port.reopen(opcode);
    return one_call(port, request_of(i));
  });
}

KERNEL fast_sticky_calls(u32 opcode, u32 n, u32 lanes, Result *result) {
  if (target::lane_id() >= lanes)
    return;
  hostcall::fast::Port port(opcode);
  measure(n, lanes, result, [&](u32 i) {
    if (i > 0)
      port.reopen(opcode);
    return one_call(port, request_of(i));
  });
}

KERNEL fast_alone_calls(u32 opcode, u32 n, u32 lanes, Result *result) {
  measure(n, lanes, result, [&](u32 i) {
    const u64 request = request_of(i);
    return hostcall::fast::call<u64>(opcode, request, hostcall::fast::Order::Alone) != request + 1;
  });
}

// ---- Floors ----------------------------------------------------------------------------------------------

KERNEL ping_relaxed(u32 *there, u32 *back, u32 n, Result *result) {
  measure(n, 1, result, [&](u32 i) {
    target::store_relaxed_sys(there, i + 1);
    while (target::load_relaxed_sys(back) != i + 1) {
    }
    return false;
  });
}

KERNEL ping_ordered(u32 *there, u32 *back, u32 n, Result *result) {
  measure(n, 1, result, [&](u32 i) {
    target::store_release_sys(there, i + 1);
    while (target::load_acquire_sys(back) != i + 1) {
    }
    return false;
  });
}

KERNEL ping_payload(u32 *there, u32 *back, u32 n, Result *result) {
  measure(n, 1, result, [&](u32 i) {
    const u64 word = (u64)i * 0x9e3779b97f4a7c15ull;
    target::store_word((u64 *)(there + 2), word);
    target::store_release_sys(there, i + 1);
    while (target::load_acquire_sys(back) != i + 1) {
    }
    return target::load_word((const u64 *)(back + 2)) != word + 1;
  });
}

KERNEL ping_tagged(u64 *there, u64 *back, u32 n, Result *result) {
  using namespace hostcall::fast::detail;
  measure(n, 1, result, [&](u32 i) {
    const u32 count = (i + 1) & kCountMask;
    const u64 word = (u64)i * 0x9e3779b97f4a7c15ull;
    u64 low, high;
    store_pair(there, tagged((u32)word, count, 0), tagged((u32)(word >> 32), count, 0));
    do
      load_pair(back, low, high);
    while (!is_of(low, count) || !is_of(high, count));
    return ((u64)data_of(high) << 32 | data_of(low)) != word + 1;
  });
}
