// baseline.h: the device client as LLVM 20 to 22 publish it, for comparison only (PROTOCOL.md 2).
//
// It looks for a port from number 0 on, reads both mailboxes at every open, uses relaxed mailbox accesses and
// separate fences of system scope, lets every lane read and write the mailbox, and copies streams by bytes. Same
// interface as hostcall::Port. Its client object is `__hostcall_baseline_client`, so that its lock bits and the
// state of hostcall.h do not meet; publish the server's image to the one that is about to run.
#ifndef HOSTCALL_BENCH_BASELINE_H
#define HOSTCALL_BENCH_BASELINE_H

#include "../hostcall.h"

extern "C" {
HOSTCALL_DECLARE HOSTCALL_OBJECT hostcall::Client __hostcall_baseline_client;
}

namespace hostcall {
namespace baseline {

namespace detail {
using namespace hostcall::detail;

#if defined(HOSTCALL_NVPTX)
// What clang makes of both a system and a device fence.
HOSTCALL_PRIMITIVE void fence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }
HOSTCALL_PRIMITIVE u32 or_relaxed(u32 *at, u32 bits) {
  u32 old;
  asm volatile("atom.relaxed.gpu.or.b32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(bits) : "memory");
  return old;
}
HOSTCALL_PRIMITIVE void and_relaxed(u32 *at, u32 bits) {
  asm volatile("red.relaxed.gpu.and.b32 [%0], %1;" : : "l"(at), "r"(bits) : "memory");
}
#elif defined(HOSTCALL_AMDGPU)
HOSTCALL_PRIMITIVE void fence() { __scoped_atomic_thread_fence(__ATOMIC_ACQ_REL, __MEMORY_SCOPE_SYSTEM); }
HOSTCALL_PRIMITIVE u32 or_relaxed(u32 *at, u32 bits) {
  return __scoped_atomic_fetch_or(at, bits, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
HOSTCALL_PRIMITIVE void and_relaxed(u32 *at, u32 bits) {
  __scoped_atomic_fetch_and(at, bits, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
#else
HOSTCALL_PRIMITIVE void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
HOSTCALL_PRIMITIVE u32 or_relaxed(u32 *at, u32 bits) { return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE void and_relaxed(u32 *at, u32 bits) { __atomic_fetch_and(at, bits, __ATOMIC_RELAXED); }
#endif

} // namespace detail

// A lane's slot, by plain accesses.
class Packet {
public:
  HOSTCALL_PRIMITIVE explicit Packet(u64 *slot) : slot_(slot) {}
  HOSTCALL_PRIMITIVE u64 word(u32 index) const { return slot_[index]; }
  HOSTCALL_PRIMITIVE void set_word(u32 index, u64 value) { slot_[index] = value; }
  HOSTCALL_PRIMITIVE u8 *bytes() const { return (u8 *)slot_; }

private:
  u64 *slot_;
};

class Port {
public:
  using Outgoing = Packet;
  using Incoming = Packet;

  HOSTCALL_FN explicit Port(u32 opcode) {
    Client &client = __hostcall_baseline_client;
    u32 rounds = 0;
    for (index_ = 0;; ++index_) {
      if (index_ >= client.port_count) {
        index_ = 0;
        pause(++rounds);
      }
      mask_ = detail::lane_mask();
      if (!try_lock(client))
        continue;
      inbox_ = detail::load_relaxed_sys(client.inbox + index_);
      outbox_ = detail::load_relaxed_sys(client.outbox + index_);
      if (inbox_ == outbox_)
        break;
      unlock(client);
    }
    if (detail::lane_id() == detail::first_lane(mask_)) {
      client.headers[index_].mask = mask_;
      client.headers[index_].opcode = opcode;
    }
    detail::lanes_sync(mask_);
  }
  Port(const Port &) = delete;
  Port &operator=(const Port &) = delete;
  HOSTCALL_FN ~Port() { unlock(__hostcall_baseline_client); }

  HOSTCALL_PRIMITIVE detail::Mask mask() const { return mask_; }

  template <class Fill> HOSTCALL_PRIMITIVE void send(Fill fill) {
    wait();
    Packet packet(slot());
    fill(packet);
    flip();
    owned_ = false;
    received_ = false;
  }

  template <class Read> HOSTCALL_PRIMITIVE void recv(Read read) {
    if (received_) {
      flip();
      owned_ = false;
    }
    wait();
    Packet packet(slot());
    read(packet);
    received_ = true;
  }

  HOSTCALL_FN void send_stream(const void *data, u64 size) {
    const u8 *next = (const u8 *)data;
    u64 left = size;
    send([&](Packet &packet) {
      packet.set_word(0, size);
      copy(packet.bytes() + 8, next, left, 56);
    });
    while (detail::lanes_any(mask_, left > 0))
      send([&](Packet &packet) { copy(packet.bytes(), next, left, 64); });
  }

  HOSTCALL_FN u64 recv_stream(void *data, u64) {
    u8 *next = (u8 *)data;
    u64 size = 0, left = 0;
    recv([&](Packet &packet) {
      size = left = packet.word(0);
      take(next, packet.bytes() + 8, left, 56);
    });
    while (detail::lanes_any(mask_, left > 0))
      recv([&](Packet &packet) { take(next, packet.bytes(), left, 64); });
    return size;
  }

private:
  // Spins without rest, except on a CPU, where the threads may be more than the processors.
  HOSTCALL_PRIMITIVE static void pause(u32 tries) {
#if defined(HOSTCALL_CPU)
    detail::doze(tries);
#else
    (void)tries;
#endif
  }
  // Every lane sets the same bit; one of them finds it clear, or none.
  HOSTCALL_PRIMITIVE bool try_lock(Client &client) {
    u32 bit = 1u << (index_ % 32);
    bool free = !(detail::or_relaxed(&client.locks[index_ / 32], bit) & bit);
    if (!detail::lanes_any(mask_, free))
      return false;
    detail::fence();
    return true;
  }
  // One lane: of several, a late one would free the lock that another warp has taken meanwhile.
  HOSTCALL_PRIMITIVE void unlock(Client &client) {
    detail::lanes_sync(mask_);
    detail::fence();
    if (detail::lane_id() == detail::first_lane(mask_))
      detail::and_relaxed(&client.locks[index_ / 32], ~(1u << (index_ % 32)));
    detail::lanes_sync(mask_);
  }
  HOSTCALL_PRIMITIVE u64 *slot() const {
    return __hostcall_baseline_client.slots + ((u64)index_ * detail::lane_width() + detail::lane_id()) * 8;
  }
  HOSTCALL_PRIMITIVE void wait() {
    for (u32 tries = 0; !owned_; ++tries) {
      owned_ = detail::load_relaxed_sys(__hostcall_baseline_client.inbox + index_) == outbox_;
      pause(tries);
    }
    owned_ = true;
    detail::fence();
  }
  HOSTCALL_PRIMITIVE void flip() {
    detail::lanes_sync(mask_);
    outbox_ ^= 1;
    detail::fence();
    detail::store_relaxed_sys(__hostcall_baseline_client.outbox + index_, outbox_);
  }
  HOSTCALL_PRIMITIVE static void copy(u8 *to, const u8 *&next, u64 &left, u64 room) {
    u64 some = left < room ? left : room;
    for (u64 i = 0; i < some; ++i)
      to[i] = next[i];
    next += some;
    left -= some;
  }
  HOSTCALL_PRIMITIVE static void take(u8 *&next, const u8 *from, u64 &left, u64 room) {
    u64 some = left < room ? left : room;
    for (u64 i = 0; i < some; ++i)
      next[i] = from[i];
    next += some;
    left -= some;
  }

  detail::Mask mask_ = 0;
  u32 index_ = 0;
  u32 inbox_ = 0;
  u32 outbox_ = 0;
  bool owned_ = true;
  bool received_ = false;
};

} // namespace baseline
} // namespace hostcall

#endif // HOSTCALL_BENCH_BASELINE_H
