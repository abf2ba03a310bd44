// fast_server.hpp: the host half of the faster wire (hostcall::fast in hostcall.h) in its plainest form, for tests of
// the header under C++ sanitizers. One thread; one conversation served to its end.
#ifndef HOSTCALL_TEST_FAST_SERVER_HPP
#define HOSTCALL_TEST_FAST_SERVER_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace hostcall_bench {

// The first 64 bytes of the client image; 4096 words follow: `server's count << 8` for each idle port.
struct FastImage {
  uint32_t version, ports, lanes, zero;
  uint64_t doorbells, requests, replies, packets; // the device's addresses
  uint64_t reserved[2];
  uint32_t port[4096];
};
static_assert(sizeof(FastImage) == 64 + 4 * 4096, "version 1");

// Words of each part, zeroed by whoever allocates them; requests and replies on 64 bytes.
struct FastLayout {
  uint32_t ports, lanes;
  size_t request_words() const { return 8 + 2 * (size_t)lanes; }
  size_t doorbell_bytes() const { return 4 * (size_t)ports; }
  size_t request_bytes() const { return 8 * request_words() * ports; }
  size_t reply_bytes() const { return 16 * (size_t)lanes * ports; }
  size_t packet_bytes() const { return 64 * (size_t)lanes * ports; }
};

class FastServer {
public:
  // Addresses of the host's view.
  FastServer(FastLayout layout, uint32_t *doorbells, uint64_t *requests, uint64_t *replies, uint64_t *packets)
      : layout_(layout), doorbells_(doorbells), requests_(requests), replies_(replies), packets_(packets),
        ports_(layout.ports) {}

  enum Kind : uint32_t { kNothing = 0, kWord = 1, kPacket = 2 };
  static constexpr uint32_t kOpening = 0x80, kCountMask = 0xffffff, kRefresh = 0x10000;

  // A lane's words, either way.
  struct Message {
    uint64_t words[8];
  };

  class Port {
  public:
    uint32_t index() const { return index_; }
    uint32_t opcode() const { return server_.ports_[index_].opcode; }
    uint64_t mask() const { return server_.ports_[index_].mask; }
    uint32_t lanes() const { return server_.layout_.lanes; }

    // `read(message, lane)` for every active lane.
    template <class Read> void recv(Read read) {
      if (received_)
        flip(kNothing, 0);
      wait();
      uint32_t rank = 0;
      for (uint32_t lane = 0; lane < lanes(); ++lane) {
        if (mask() >> lane & 1) {
          Message message = server_.message(index_, rank++);
          read(message, lane);
        }
      }
      received_ = true;
    }

    // `fill(message, lane)` for every active lane, into zeroed words. `used`: words per lane, 1 to 8.
    template <class Fill> void send(uint32_t used, Fill fill) {
      wait();
      uint32_t rank = 0;
      uint64_t first = 0;
      for (uint32_t lane = 0; lane < lanes(); ++lane) {
        if (!(mask() >> lane & 1))
          continue;
        Message message{};
        fill(message, lane);
        if (used > 1) {
          for (uint32_t k = 0; k < used; ++k)
            store(server_.packet_word(index_, k, rank), message.words[k], __ATOMIC_RELAXED);
        } else if (rank == 0) {
          first = message.words[0];
        } else {
          server_.put_cell(index_, rank, next(), message.words[0], 0, 0);
        }
        ++rank;
      }
      flip(used > 1 ? kPacket : kWord, first, used > 1 ? used : 0);
      received_ = false;
    }

    // Ends the conversation with a reason; the client reads zeros.
    void refuse(uint32_t status) {
      wait();
      flip(kNothing, 0, status);
    }

    std::vector<std::vector<char>> recv_stream() {
      std::vector<std::vector<char>> data(lanes());
      std::vector<size_t> have(lanes(), 0);
      size_t longest = 0;
      auto take = [&](const uint64_t *from, uint32_t lane, size_t room) {
        const size_t left = data[lane].size() - have[lane], some = left < room ? left : room;
        if (some)
          std::memcpy(data[lane].data() + have[lane], from, some);
        have[lane] += some;
      };
      recv([&](Message &message, uint32_t lane) {
        data[lane].resize(message.words[0]);
        longest = data[lane].size() > longest ? data[lane].size() : longest;
        take(message.words + 1, lane, 56);
      });
      for (size_t seen = 56; seen < longest; seen += 64)
        recv([&](Message &message, uint32_t lane) { take(message.words, lane, 64); });
      return data;
    }

    void send_stream(const std::vector<std::vector<char>> &data) {
      std::vector<size_t> sent(lanes(), 0);
      size_t longest = 0;
      for (const auto &message : data)
        longest = message.size() > longest ? message.size() : longest;
      auto put = [&](uint64_t *to, uint32_t lane, size_t room) {
        const size_t left = data[lane].size() - sent[lane], some = left < room ? left : room;
        if (some)
          std::memcpy(to, data[lane].data() + sent[lane], some);
        sent[lane] += some;
      };
      const size_t first = longest < 56 ? longest : 56;
      send(1 + (uint32_t)((first + 7) / 8), [&](Message &message, uint32_t lane) {
        message.words[0] = data[lane].size();
        put(message.words + 1, lane, 56);
      });
      for (size_t seen = 56; seen < longest; seen += 64) {
        const size_t part = longest - seen < 64 ? longest - seen : 64;
        send((uint32_t)((part + 7) / 8), [&](Message &message, uint32_t lane) { put(message.words, lane, 64); });
      }
    }

  private:
    friend class FastServer;
    Port(FastServer &server, uint32_t index) : server_(server), index_(index) {}

    void close() {
      if (owned_)
        flip(kNothing, 0);
    }
    uint32_t next() const { return (server_.ports_[index_].count + 1) & kCountMask; }
    void wait() {
      for (uint32_t tries = 0; !owned_; ++tries) {
        owned_ = server_.arrived(index_, false);
        if (tries >= 4096) // the client's thread may need this processor
          std::this_thread::yield();
      }
    }
    void flip(uint32_t kind, uint64_t word, uint32_t status_or_rows = 0) {
      const uint32_t count = server_.ports_[index_].count = next();
      if (count % kRefresh == 0) {
        const uint32_t written = kind == kWord ? (uint32_t)__builtin_popcountll(mask()) : 1;
        for (uint32_t rank = written; rank < lanes(); ++rank)
          server_.put_cell(index_, rank, count, 0, 0, 0);
      }
      server_.put_cell(index_, 0, count, word, kind, status_or_rows);
      owned_ = false;
    }

    FastServer &server_;
    uint32_t index_;
    bool owned_ = true;
    bool received_ = false;
  };

  // Serves one conversation at or after `start`. Returns its port, or the number of ports where there was none.
  template <class Handle> uint32_t serve_one(uint32_t start, Handle handle) {
    for (uint32_t index = start; index < layout_.ports; ++index) {
      if (load(doorbells_ + index, __ATOMIC_RELAXED) == ports_[index].count || !arrived(index, true))
        continue;
      Port port(*this, index);
      if (ports_[index].opening)
        handle(port);
      else
        port.refuse(5); // a packet of a conversation that has ended
      port.close();
      return index;
    }
    return layout_.ports;
  }

  template <class Handle, class Stop> void serve_until(Stop stop, Handle handle) {
    uint32_t index = 0;
    while (!stop()) {
      index = serve_one(index, handle);
      index = index >= layout_.ports ? 0 : index + 1;
    }
  }

  // What to publish: state of the ports included, for a time when no client runs.
  void image(FastImage &image, uint64_t doorbells, uint64_t requests, uint64_t replies, uint64_t packets) const {
    std::memset(&image, 0, sizeof image);
    image.version = 1;
    image.ports = layout_.ports;
    image.lanes = layout_.lanes;
    image.doorbells = doorbells;
    image.requests = requests;
    image.replies = replies;
    image.packets = packets;
    for (uint32_t index = 0; index < layout_.ports; ++index) {
      const uint32_t theirs = load(doorbells_ + index, __ATOMIC_RELAXED) & kCountMask;
      image.port[index] = theirs << 8 | (theirs != ports_[index].count ? 2u : 0u);
    }
  }

  // Before the first client: as if the ports had been used this often.
  void age(uint32_t count) {
    for (uint32_t index = 0; index < layout_.ports; ++index) {
      count &= kCountMask;
      ports_[index].count = count;
      store(doorbells_ + index, count, __ATOMIC_RELAXED);
      for (size_t word = 0; word < layout_.request_words(); ++word)
        store(request(index) + word, (uint64_t)count << 8, __ATOMIC_RELAXED);
      for (uint32_t rank = 0; rank < layout_.lanes; ++rank)
        put_cell(index, rank, count, 0, 0, 0);
    }
  }

private:
  struct State {
    uint32_t count = 0; // the server's flips
    uint32_t opcode = 0;
    uint64_t mask = 0;
    uint32_t kind = 0;
    bool opening = false;
  };

  // Whether the client's next message is there, all of it. Takes in its kind and, if it opens, opcode and mask.
  bool arrived(uint32_t index, bool may_open) {
    State &port = ports_[index];
    const uint32_t want = (port.count + 1) & kCountMask;
    if (load(doorbells_ + index, __ATOMIC_ACQUIRE) != want)
      return false;
    const uint64_t *block = request(index);
    const uint64_t low = load(block, __ATOMIC_ACQUIRE), high = load(block + 1, __ATOMIC_ACQUIRE);
    if (!is_of(low, want) || !is_of(high, want))
      return false;
    const uint32_t kind = (uint32_t)low & 0x1f;
    const bool opening = (low & kOpening) != 0;
    uint64_t mask = port.mask;
    uint32_t opcode = port.opcode;
    if (opening) {
      const uint64_t name = load(block + 2, __ATOMIC_ACQUIRE), lanes = load(block + 3, __ATOMIC_ACQUIRE);
      if (!is_of(name, want) || !is_of(lanes, want))
        return false;
      opcode = (uint32_t)(name >> 32);
      mask = lanes >> 32;
      if (layout_.lanes > 32) {
        const uint64_t more = load(block + 4, __ATOMIC_ACQUIRE);
        if (!is_of(more, want))
          return false;
        mask |= more >> 32 << 32;
      }
      mask &= ~(uint64_t)0 >> (64 - layout_.lanes);
    }
    if (kind == kWord) {
      for (uint32_t rank = 1; rank < (uint32_t)__builtin_popcountll(mask); ++rank)
        if (!is_of(load(block + 8 + 2 * rank, __ATOMIC_ACQUIRE), want) ||
            !is_of(load(block + 9 + 2 * rank, __ATOMIC_ACQUIRE), want))
          return false;
    }
    port.kind = kind;
    port.mask = mask;
    port.opcode = opcode;
    port.opening = opening && may_open;
    return true;
  }

  Message message(uint32_t index, uint32_t rank) {
    Message message{};
    const uint64_t *block = request(index);
    if (ports_[index].kind == kWord) {
      const uint64_t *cell = rank == 0 ? block : block + 8 + 2 * rank;
      message.words[0] = load(cell, __ATOMIC_RELAXED) >> 32 | load(cell + 1, __ATOMIC_RELAXED) >> 32 << 32;
    } else if (ports_[index].kind == kPacket) {
      const uint32_t rows = (uint32_t)load(block + 1, __ATOMIC_RELAXED) & 0xf;
      for (uint32_t k = 0; k < rows && k < 8; ++k)
        message.words[k] = load(packet_word(index, k, rank), __ATOMIC_RELAXED);
    }
    return message;
  }

  void put_cell(uint32_t index, uint32_t rank, uint32_t count, uint64_t word, uint32_t kind, uint32_t status) {
    uint64_t *cell = replies_ + ((size_t)index * layout_.lanes + rank) * 2;
    store(cell + 1, word >> 32 << 32 | count << 8 | status, __ATOMIC_RELEASE);
    store(cell, word << 32 | count << 8 | kind, __ATOMIC_RELEASE);
  }

  uint64_t *request(uint32_t index) { return requests_ + index * layout_.request_words(); }
  uint64_t *packet_word(uint32_t index, uint32_t k, uint32_t rank) {
    return packets_ + ((size_t)index * 8 + k) * layout_.lanes + rank;
  }
  static bool is_of(uint64_t word, uint32_t count) { return (uint32_t)word >> 8 == count; }
  template <class T> static T load(const T *at, int order) {
    return order == __ATOMIC_RELAXED ? __atomic_load_n(at, __ATOMIC_RELAXED) : __atomic_load_n(at, __ATOMIC_ACQUIRE);
  }
  template <class T> static void store(T *at, T value, int order) {
    if (order == __ATOMIC_RELAXED)
      __atomic_store_n(at, value, __ATOMIC_RELAXED);
    else
      __atomic_store_n(at, value, __ATOMIC_RELEASE);
  }

  FastLayout layout_;
  uint32_t *doorbells_;
  uint64_t *requests_;
  uint64_t *replies_;
  uint64_t *packets_;
  std::vector<State> ports_;
};

} // namespace hostcall_bench

#endif // HOSTCALL_TEST_FAST_SERVER_HPP
