// baseline_server.hpp: the host loop as LLVM 20 to 22 publish it, for comparison and for tests (PROTOCOL.md 2).
//
// A linear scan from a start index, a lock bit for each port, and one conversation served to its end before
// the next is looked at. No deadlines, no limits, trust in the device: a baseline, not something to use.
#ifndef HOSTCALL_BENCH_BASELINE_SERVER_HPP
#define HOSTCALL_BENCH_BASELINE_SERVER_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace hostcall_bench {

// How mailboxes are accessed.
enum class Mailboxes {
  Published, // relaxed, with separate fences
  Ordered    // acquire loads and release stores, which race detectors understand
};

struct ServerHeader {
  uint64_t mask;
  uint32_t opcode;
  uint32_t status;
};

// Addresses of the host's view. `inbox` is what the device writes.
struct ServerMemory {
  uint32_t ports;
  uint32_t lanes;
  uint32_t *inbox;
  uint32_t *outbox;
  ServerHeader *headers;
  uint64_t *slots;
};

template <Mailboxes kind> class BaselineServer {
public:
  explicit BaselineServer(const ServerMemory &memory) : memory_(memory), locks_((memory.ports + 31) / 32, 0) {}

  // A conversation. Callables get (slot, lane) for every active lane, in ascending order.
  class Port {
  public:
    uint32_t index() const { return index_; }
    uint32_t opcode() const { return memory_.headers[index_].opcode; }
    uint64_t mask() const { return memory_.headers[index_].mask; }

    template <class Read> void recv(Read read) {
      if (received_)
        flip();
      wait();
      each(read);
      received_ = true;
    }

    template <class Fill> void send(Fill fill) {
      wait();
      each(fill);
      flip();
      received_ = false;
    }

    template <class Work> void recv_and_send(Work work) {
      recv(work);
      send([](uint64_t *, uint32_t) {});
    }

    // A message for each lane of the mask, by lane.
    std::vector<std::vector<char>> recv_stream() {
      std::vector<std::vector<char>> data(memory_.lanes);
      std::vector<size_t> have(memory_.lanes, 0);
      size_t longest = 0;
      recv([&](uint64_t *slot, uint32_t lane) {
        data[lane].resize(slot[0]);
        longest = data[lane].size() > longest ? data[lane].size() : longest;
        take(data[lane], have[lane], slot + 1, 56);
      });
      for (size_t seen = 56; seen < longest; seen += 64)
        recv([&](uint64_t *slot, uint32_t lane) { take(data[lane], have[lane], slot, 64); });
      return data;
    }

    void send_stream(const std::vector<std::vector<char>> &data) {
      std::vector<size_t> sent(memory_.lanes, 0);
      size_t longest = 0;
      send([&](uint64_t *slot, uint32_t lane) {
        slot[0] = data[lane].size();
        longest = data[lane].size() > longest ? data[lane].size() : longest;
        put(slot + 1, data[lane], sent[lane], 56);
      });
      for (size_t seen = 56; seen < longest; seen += 64)
        send([&](uint64_t *slot, uint32_t lane) { put(slot, data[lane], sent[lane], 64); });
    }

    // As this crate's server: clears the packets and leaves a reason.
    void refuse(uint32_t status) {
      recv([](uint64_t *slot, uint32_t) { std::memset(slot, 0, 64); });
      memory_.headers[index_].status = status;
    }

  private:
    friend class BaselineServer;
    Port(const ServerMemory &memory, uint32_t index, uint32_t out) : memory_(memory), index_(index), out_(out) {}

    void close() {
      if (owned_)
        flip();
    }
    void wait() {
      for (uint32_t tries = 0; !owned_; ++tries) {
        owned_ = load(memory_.inbox + index_) != out_;
        if (kind == Mailboxes::Ordered && tries >= 1024) // the client's thread may need this processor
          std::this_thread::yield();
      }
      if (kind == Mailboxes::Published)
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    }
    void flip() {
      out_ ^= 1;
      store(memory_.outbox + index_, out_);
      owned_ = false;
    }
    template <class Work> void each(Work work) {
      const uint64_t lanes = mask();
      for (uint32_t lane = 0; lane < memory_.lanes; ++lane)
        if (lanes >> lane & 1)
          work(memory_.slots + ((uint64_t)index_ * memory_.lanes + lane) * 8, lane);
    }
    static void take(std::vector<char> &data, size_t &have, const uint64_t *from, size_t room) {
      const size_t left = data.size() - have, some = left < room ? left : room;
      if (some)
        std::memcpy(data.data() + have, from, some);
      have += some;
    }
    static void put(uint64_t *to, const std::vector<char> &data, size_t &sent, size_t room) {
      const size_t left = data.size() - sent, some = left < room ? left : room;
      if (some)
        std::memcpy(to, data.data() + sent, some);
      sent += some;
    }

    const ServerMemory &memory_;
    uint32_t index_;
    uint32_t out_;
    bool owned_ = true;
    bool received_ = false;
  };

  // Serves one conversation at or after `start`, with `handle(Port &)`. Returns its port, or the number of ports
  // where nothing was pending there.
  template <class Handle> uint32_t serve_one(uint32_t start, Handle handle) {
    for (uint32_t index = start; index < memory_.ports; ++index) {
      if (!pending(index) || !lock(index))
        continue;
      if (!pending(index)) {
        unlock(index);
        continue;
      }
      if (kind == Mailboxes::Published)
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
      Port port(memory_, index, load(memory_.outbox + index));
      handle(port);
      port.close();
      unlock(index);
      return index;
    }
    return memory_.ports;
  }

  // The loader's loop: round after round until `stop()` says so.
  template <class Handle, class Stop> void serve_until(Stop stop, Handle handle) {
    uint32_t index = 0;
    while (!stop()) {
      index = serve_one(index, handle);
      index = index >= memory_.ports ? 0 : index + 1;
    }
  }

private:
  bool pending(uint32_t index) const { return load(memory_.inbox + index) != load(memory_.outbox + index); }
  bool lock(uint32_t index) {
    const uint32_t bit = 1u << (index % 32);
    return !(__atomic_fetch_or(&locks_[index / 32], bit, __ATOMIC_ACQUIRE) & bit);
  }
  void unlock(uint32_t index) {
    __atomic_fetch_and(&locks_[index / 32], ~(1u << (index % 32)), __ATOMIC_RELEASE);
  }
  static uint32_t load(const uint32_t *at) {
    return kind == Mailboxes::Published ? __atomic_load_n(at, __ATOMIC_RELAXED) : __atomic_load_n(at, __ATOMIC_ACQUIRE);
  }
  static void store(uint32_t *at, uint32_t value) {
    if (kind == Mailboxes::Published) {
      __atomic_thread_fence(__ATOMIC_RELEASE);
      __atomic_store_n(at, value, __ATOMIC_RELAXED);
    } else {
      __atomic_store_n(at, value, __ATOMIC_RELEASE);
    }
  }

  ServerMemory memory_;
  std::vector<uint32_t> locks_;
};

} // namespace hostcall_bench

#endif // HOSTCALL_BENCH_BASELINE_SERVER_HPP
