// The device header on the CPU, lane width 1, against a small server thread in the same process.
//
// Compile once for each client: -DCLIENT_OURS (default), -DCLIENT_SHARED (LLVM's lock bits), -DCLIENT_BASELINE,
// -DCLIENT_FAST. Prints the name of each test; ends with status 1 at the first failure.
#define HOSTCALL_DEFINE_CLIENT
#define HOSTCALL_FAST 1
#if defined(CLIENT_SHARED)
#define HOSTCALL_CLIENT_SYMBOL __llvm_rpc_client
#endif
#include "../../device/bench/baseline.h"
#include "../../device/bench/baseline_server.hpp"
#include "fast_server.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define CHECK(condition)                                                                                          \
  do {                                                                                                            \
    if (!(condition)) {                                                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                        \
      std::exit(1);                                                                                               \
    }                                                                                                             \
  } while (0)

namespace {

#if defined(CLIENT_FAST)
using Port = hostcall::fast::Port;
#elif defined(CLIENT_BASELINE)
using Port = hostcall::baseline::Port;
#else
using Port = hostcall::Port;
#endif

enum Op : uint32_t {
  kIncrement = 0x78000001, // d[0] + 1 back
  kCount,                  // a notification; d[0] is added up
  kEcho,                   // a stream there, the same stream back
  kInterface,              // PROTOCOL.md 4.3
  kEight,                  // eight words there, each doubled back
  kSilent,                 // ends without a receive
  kUnknown = 0x79000000
};

// What the server saw.
struct Seen {
  std::atomic<uint64_t> calls{0}, notifications{0}, sum{0};
  std::string out, err;
  uint32_t exit_status = 0;
};

[[maybe_unused]] uint64_t &first(uint64_t *slot) { return *slot; }
template <class Message> [[maybe_unused]] uint64_t &first(Message &message) { return message.words[0]; }

// The handlers, written for both servers: `fill` hides how many words a reply has.
template <class P, class Fill> void handle(P &port, Seen &seen, Fill fill) {
  uint64_t word = 0;
  auto read = [&](auto &&packet, uint32_t) { word = first(packet); };
  auto reply = [&](uint64_t value) { fill(port, value); };
  switch (port.opcode()) {
  case kIncrement:
    port.recv(read);
    ++seen.calls;
    return reply(word + 1);
  case kCount:
    port.recv(read);
    seen.sum += word;
    ++seen.notifications;
    return;
  case kEcho:
    return port.send_stream(port.recv_stream());
  case kInterface: {
    port.recv(read);
    const bool ends_with_recv = word != 0;
    port.recv(read);
    reply(word + 1);
    port.recv(read);
    reply(word + 1);
    port.recv(read);
    port.recv(read);
    reply(word + 1);
    reply(word + 2);
    if (ends_with_recv)
      return port.recv(read);
    return reply(word + 3);
  }
  case hostcall::kWriteToStdout:
  case hostcall::kWriteToStderr: {
    std::string &sink = port.opcode() == hostcall::kWriteToStdout ? seen.out : seen.err;
    const auto data = port.recv_stream();
    sink.append(data[0].data(), data[0].size());
    return reply(data[0].size());
  }
  case hostcall::kExit:
    port.recv(read);
    reply(0);
    port.recv(read);
    seen.exit_status = (uint32_t)word;
    return;
  case kSilent:
    return;
  default:
    return port.refuse(1);
  }
}

#if defined(CLIENT_FAST)

// The shared memory and its server.
struct World {
  explicit World(uint32_t ports, uint32_t age = 0)
      : layout{ports, 1}, doorbells(ports), requests(layout.request_bytes() / 64 + 1), replies(layout.reply_bytes() / 64 + 1),
        packets(layout.packet_bytes() / 64 + 1),
        server(layout, doorbells.data(), words(requests), words(replies), words(packets)) {
    if (age)
      server.age(age);
  }

  void publish() {
    auto image = std::make_unique<hostcall_bench::FastImage>();
    server.image(*image, (uint64_t)doorbells.data(), (uint64_t)words(requests), (uint64_t)words(replies),
                 (uint64_t)words(packets));
    static_assert(sizeof *image == sizeof __hostcall_fast_client, "");
    std::memcpy((void *)&__hostcall_fast_client, image.get(), sizeof *image);
  }

  template <class Stop> void serve(Seen &seen, Stop stop) {
    server.serve_until(stop, [&](hostcall_bench::FastServer::Port &port) {
      if (port.opcode() == kEight) {
        hostcall_bench::FastServer::Message got{};
        port.recv([&](hostcall_bench::FastServer::Message &message, uint32_t) { got = message; });
        port.send(8, [&](hostcall_bench::FastServer::Message &message, uint32_t) {
          for (int i = 0; i < 8; ++i)
            message.words[i] = 2 * got.words[i];
        });
        return;
      }
      handle(port, seen, [](auto &p, uint64_t value) {
        p.send(1, [&](hostcall_bench::FastServer::Message &message, uint32_t) { message.words[0] = value; });
      });
    });
  }

  struct alignas(64) Line {
    uint64_t words[8];
  };
  static uint64_t *words(std::vector<Line> &lines) { return lines[0].words; }

  hostcall_bench::FastLayout layout;
  std::vector<uint32_t> doorbells;
  std::vector<Line> requests, replies, packets;
  hostcall_bench::FastServer server;
};

void unpublish() { std::memset((void *)&__hostcall_fast_client, 0, sizeof __hostcall_fast_client); }

#else

#if defined(CLIENT_BASELINE)
hostcall::Client &object() { return __hostcall_baseline_client; }
#else
hostcall::Client &object() { return HOSTCALL_CLIENT_SYMBOL; }
#endif

struct World {
  static constexpr auto kind = hostcall_bench::Mailboxes::Ordered;
  using Server = hostcall_bench::BaselineServer<kind>;

  explicit World(uint32_t ports, uint32_t = 0)
      : ports(ports), memory(3 * ports + 8 * ports), server({ports, 1, outbox(), inbox(), headers(), slots()}) {}

  uint32_t *inbox() { return (uint32_t *)memory.data(); }
  uint32_t *outbox() { return inbox() + ports; }
  hostcall_bench::ServerHeader *headers() { return (hostcall_bench::ServerHeader *)(memory.data() + ports); }
  uint64_t *slots() { return memory.data() + 3 * ports; }

  void publish() {
    hostcall::Client image{};
    image.port_count = ports;
    image.inbox = inbox();
    image.outbox = outbox();
    image.headers = (hostcall::Header *)headers();
    image.slots = (hostcall::u64 *)slots();
    object() = image;
  }

  template <class Stop> void serve(Seen &seen, Stop stop) {
    server.serve_until(stop, [&](Server::Port &port) {
      if (port.opcode() == kEight)
        return port.recv_and_send([](uint64_t *slot, uint32_t) {
          for (int i = 0; i < 8; ++i)
            slot[i] *= 2;
        });
      handle(port, seen, [](auto &p, uint64_t value) { p.send([&](uint64_t *slot, uint32_t) { *slot = value; }); });
    });
  }

  uint32_t ports;
  std::vector<uint64_t> memory; // odd port counts leave slots on 8 bytes only
  Server server;
};

[[maybe_unused]] void unpublish() { std::memset((void *)&object(), 0, sizeof(hostcall::Client)); }

#endif

// Runs `body` as `threads` device threads while the world is served; serves what is left before it returns.
void run(World &world, Seen &seen, int threads, const std::function<void(int)> &body) {
  std::atomic<bool> stop{false};
  std::thread server([&] {
    uint32_t rounds = 0;
    world.serve(seen, [&] {
      if (++rounds % 64 == 0)
        std::this_thread::yield();
      return stop.load(std::memory_order_acquire);
    });
  });
  std::vector<std::thread> device;
  for (int i = 0; i < threads; ++i)
    device.emplace_back([&, i] { body(i); });
  for (auto &thread : device)
    thread.join();
  stop = true;
  server.join();
  int left = 2 * 64;
  world.serve(seen, [&] { return left-- == 0; });
}

uint64_t increment(uint64_t value) {
  uint64_t reply = 0;
  Port port(kIncrement);
  port.send([&](Port::Outgoing &packet) { packet.set_word(0, value); });
  port.recv([&](Port::Incoming &packet) { reply = packet.word(0); });
  return reply;
}

std::vector<char> echo(const char *data, size_t size, size_t room, uint64_t &length) {
  std::vector<char> back(room + 1, 'x');
  Port port(kEcho);
  port.send_stream(data, size);
  length = port.recv_stream(back.data(), room);
  CHECK(back[room] == 'x');
  back.resize(length < room ? length : room);
  return back;
}

#if !defined(CLIENT_BASELINE)
void an_unpublished_client_gives_an_invalid_port() {
  unpublish();
  Port port(kIncrement);
  CHECK(!port);
  bool called = false;
  port.send([&](Port::Outgoing &) { called = true; });
  port.recv([&](Port::Incoming &) { called = true; });
  port.send_stream("abc", 3);
  CHECK(port.recv_stream(nullptr, 0) == 0 && !called);
  CHECK(port.status() == hostcall::Status::NoServer);
  port.close();
}
#endif

void every_reply_answers_its_own_request() {
  for (uint32_t ports : {1u, 3u, 64u}) {
    World world(ports);
    world.publish();
    Seen seen;
    run(world, seen, 8, [](int thread) {
      for (uint64_t i = 0; i < 500; ++i)
        CHECK(increment((uint64_t)thread << 32 | i) == ((uint64_t)thread << 32 | i) + 1);
    });
    CHECK(seen.calls == 8 * 500);
  }
}

void every_notification_is_served() {
  World world(3);
  world.publish();
  Seen seen;
  run(world, seen, 8, [](int thread) {
    for (uint64_t i = 1; i <= 200; ++i) {
      {
        Port port(kCount);
        port.send([&](Port::Outgoing &packet) { packet.set_word(0, i); });
      }
      if (i % 10 == 0)
        CHECK(increment((uint64_t)thread) == (uint64_t)thread + 1);
    }
  });
  CHECK(seen.notifications == 8 * 200 && seen.sum == 8 * 20100);
}

void streams_of_every_length_come_back() {
  World world(2);
  world.publish();
  Seen seen;
  run(world, seen, 4, [](int thread) {
    std::vector<char> data((1 << 20) + 16);
    for (size_t i = 0; i < data.size(); ++i)
      data[i] = (char)(i * 131 + i / 251 + thread);
    for (size_t size : {0, 1, 7, 8, 9, 55, 56, 57, 119, 120, 121, 251}) {
      for (size_t shift = 0; shift < 9; ++shift) {
        uint64_t length = 0;
        CHECK(echo(data.data() + shift, size, size, length) ==
              std::vector<char>(data.data() + shift, data.data() + shift + size));
        CHECK(length == size);
      }
    }
    if (thread < 2) {
      uint64_t length = 0;
      CHECK(echo(data.data() + thread, 1 << 20, 1 << 20, length) ==
            std::vector<char>(data.data() + thread, data.data() + thread + (1 << 20)));
    }
  });
}

#if !defined(CLIENT_BASELINE)
void an_overlong_stream_keeps_what_fits() {
  World world(1);
  world.publish();
  Seen seen;
  run(world, seen, 1, [](int) {
    std::string text(251, ' ');
    for (size_t i = 0; i < text.size(); ++i)
      text[i] = (char)('a' + i % 26);
    for (size_t room : {0, 1, 8, 55, 56, 57, 63, 120, 121, 250, 251, 300}) {
      uint64_t length = 0;
      const auto back = echo(text.data(), text.size(), room, length);
      CHECK(length == text.size());
      CHECK(std::string(back.begin(), back.end()) == text.substr(0, room));
    }
    CHECK(increment(1) == 2);
  });
}

void a_refused_call_reads_zeros_and_says_why() {
  World world(1);
  world.publish();
  Seen seen;
  run(world, seen, 1, [](int) {
    for (int i = 0; i < 3; ++i) {
      Port port(kUnknown);
      port.send([](Port::Outgoing &packet) { packet.set_word(0, 42); });
      uint64_t reply = 1;
      port.recv([&](Port::Incoming &packet) { reply = packet.word(0); });
      CHECK(reply == 0 && port.status() == hostcall::Status::UnknownOpcode);
      port.close();
      CHECK(increment(7) == 8);
    }
    Port port(kIncrement);
    port.send([](Port::Outgoing &packet) { packet.set_word(0, 42); });
    port.recv([](Port::Incoming &) {});
    CHECK(port.status() == hostcall::Status::Ok);
  });
}

void a_refused_stream_is_not_waited_for() {
  World world(2);
  world.publish();
  Seen seen;
  run(world, seen, 2, [](int) {
    std::vector<char> data(1000, 'a');
    Port port(kUnknown);
    port.send_stream(data.data(), data.size());
    uint64_t reply = 1;
    port.recv([&](Port::Incoming &packet) { reply = packet.word(0); });
    CHECK(reply == 0 && port.status() != hostcall::Status::Ok);
    port.close();
    CHECK(increment(1) == 2);
  });
}

void a_port_serves_one_conversation_after_another() {
  World world(1);
  world.publish();
  Seen seen;
  run(world, seen, 2, [](int thread) {
    Port port(kIncrement);
    for (uint64_t i = 0; i < 100; ++i) {
      if (i > 0)
        port.reopen(kIncrement);
      const uint64_t value = (uint64_t)thread << 32 | i;
      port.send([&](Port::Outgoing &packet) { packet.set_word(0, value); });
      port.recv([&](Port::Incoming &packet) { CHECK(packet.word(0) == value + 1); });
      port.reopen(kCount);
      port.send([&](Port::Outgoing &packet) { packet.set_word(0, i); });
    }
  });
  CHECK(seen.calls == 200 && seen.notifications == 200);
}
#endif

void sends_and_receives_mix() {
  World world(2);
  world.publish();
  Seen seen;
  run(world, seen, 3, [](int) {
    for (uint64_t end_with_send : {0, 1, 1, 0}) {
      uint64_t count = 0;
      auto send = [&](Port &port) { port.send([&](Port::Outgoing &packet) { packet.set_word(0, count++); }); };
      auto recv = [&](Port &port) { port.recv([&](Port::Incoming &packet) { count = packet.word(0); }); };
      Port port(kInterface);
      port.send([&](Port::Outgoing &packet) { packet.set_word(0, end_with_send); });
      send(port);
      recv(port);
      CHECK(count == 1);
      send(port);
      recv(port);
      CHECK(count == 2);
      send(port);
      send(port);
      recv(port);
      CHECK(count == 4);
      recv(port);
      CHECK(count == 5);
      if (end_with_send)
        send(port);
      else
        recv(port);
      CHECK(count == 6);
    }
  });
}

void eight_words_go_and_come() {
  World world(1);
  world.publish();
  Seen seen;
  run(world, seen, 2, [](int thread) {
    for (uint64_t i = 0; i < 50; ++i) {
      Port port(kEight);
      port.send([&](Port::Outgoing &packet) {
        for (uint32_t k = 0; k < 8; ++k)
          packet.set_word(k, i + k + (uint64_t)thread);
      });
      port.recv([&](Port::Incoming &packet) {
        for (uint32_t k = 0; k < 8; ++k)
          CHECK(packet.word(k) == 2 * (i + k + (uint64_t)thread));
      });
    }
  });
}

void a_silent_server_releases_its_client() {
  World world(1);
  world.publish();
  Seen seen;
  run(world, seen, 1, [](int) {
    {
      Port port(kSilent);
      port.send([](Port::Outgoing &packet) { packet.set_word(0, 1); });
      port.recv([](Port::Incoming &) {});
    }
    CHECK(increment(1) == 2);
  });
}

#if !defined(CLIENT_BASELINE)
void a_client_may_be_published_again_and_again() {
  World old(3);
  for (int round = 0; round < 4; ++round) {
    World fresh(2);
    for (World *world : {&old, &fresh, &old}) {
      world->publish();
      Seen seen;
      // An odd number of calls leaves mailboxes at one, a notification leaves its port pending when it ends.
      run(*world, seen, 3, [&](int thread) {
        for (uint64_t i = 0; i < 7; ++i)
          CHECK(increment(i) == i + 1);
        if (thread == round % 3) {
          Port port(kCount);
          port.send([](Port::Outgoing &packet) { packet.set_word(0, 1); });
        }
      });
      CHECK(seen.calls == 21 && seen.notifications == 1);
    }
  }
}

void a_published_client_may_have_pending_notifications() {
  World world(1);
  world.publish();
  {
    Port port(kCount);
    port.send([](Port::Outgoing &packet) { packet.set_word(0, 5); });
  }
  world.publish();
  Seen seen;
  run(world, seen, 1, [](int) { CHECK(increment(1) == 2); });
  CHECK(seen.notifications == 1 && seen.sum == 5);
}
#endif

#if !defined(CLIENT_BASELINE) && !defined(CLIENT_FAST)
#if !defined(CLIENT_SHARED)
void a_lock_left_behind_does_not_outlive_its_publication() {
  World world(2);
  world.publish();
  // A kernel that was killed while it held both ports.
  for (int i = 0; i < 2; ++i)
    __hostcall_state.port[i] |= 1;
  world.publish();
  Seen seen;
  run(world, seen, 4, [](int) {
    for (uint64_t i = 0; i < 50; ++i)
      CHECK(increment(i) == i + 1);
  });
}
#endif

struct Point {
  double x, y;
  int name;
};

void values_of_any_small_type_can_be_called_with() {
  World world(1);
  world.publish();
  Seen seen;
  run(world, seen, 1, [](int) {
    CHECK(hostcall::call<uint64_t>(kIncrement, (uint8_t)255) == 256);
    CHECK(hostcall::call<uint16_t>(kIncrement, 0xffffull) == 0);
    const Point back = hostcall::call<Point>(kSilent, Point{1.5, -2.5, 7});
    CHECK(back.x == 1.5 && back.y == -2.5 && back.name == 7);
    uint64_t reply = 9;
    CHECK(hostcall::try_call(kUnknown, 1, reply) == hostcall::Status::UnknownOpcode && reply == 0);
    CHECK(hostcall::try_call(kIncrement, 1ull, reply) == hostcall::Status::Ok && reply == 2);
    auto port = hostcall::open<kCount>();
    port.send([](hostcall::Packet &packet) { packet.set_value(40ull); });
    port.close();
    hostcall::notify(kCount, 2);
  });
  CHECK(seen.sum == 42);
}

void text_reaches_the_stream_it_was_written_to() {
  World world(1);
  world.publish();
  Seen seen;
  run(world, seen, 1, [](int) {
    CHECK(hostcall::print("hello, host\n") == 12);
    CHECK(hostcall::eprint("and its error stream, with a line that is longer than one packet holds\n") == 71);
    CHECK(hostcall::print("") == 0 && hostcall::print(nullptr) == 0);
    hostcall::request_exit(3);
  });
  CHECK(seen.out == "hello, host\n" && seen.err.size() == 71 && seen.exit_status == 3);
}
#endif

#if defined(CLIENT_FAST)
void counters_wrap_and_cells_are_refreshed() {
  for (uint32_t age : {0xfffffeu, 0xffffu - 3, 0xffffffu}) {
    World world(2, age);
    world.publish();
    Seen seen;
    run(world, seen, 3, [](int) {
      for (uint64_t i = 0; i < 20; ++i)
        CHECK(increment(i) == i + 1);
      for (uint64_t i = 0; i < 20; ++i)
        CHECK(hostcall::fast::call<uint64_t>(kIncrement, i, hostcall::fast::Order::Alone) == i + 1);
    });
    CHECK(seen.calls == 120);
  }
}
#endif

} // namespace

#define RUN(test)                                                                                                 \
  do {                                                                                                            \
    std::printf("%s\n", #test);                                                                                   \
    std::fflush(stdout);                                                                                          \
    test();                                                                                                       \
  } while (0)

int main() {
#if !defined(CLIENT_BASELINE)
  RUN(an_unpublished_client_gives_an_invalid_port);
  RUN(an_overlong_stream_keeps_what_fits);
  RUN(a_refused_call_reads_zeros_and_says_why);
  RUN(a_refused_stream_is_not_waited_for);
  RUN(a_port_serves_one_conversation_after_another);
  RUN(a_client_may_be_published_again_and_again);
  RUN(a_published_client_may_have_pending_notifications);
#endif
  RUN(every_reply_answers_its_own_request);
  RUN(every_notification_is_served);
  RUN(streams_of_every_length_come_back);
  RUN(sends_and_receives_mix);
  RUN(eight_words_go_and_come);
  RUN(a_silent_server_releases_its_client);
#if !defined(CLIENT_BASELINE) && !defined(CLIENT_FAST)
#if !defined(CLIENT_SHARED)
  RUN(a_lock_left_behind_does_not_outlive_its_publication);
#endif
  RUN(values_of_any_small_type_can_be_called_with);
  RUN(text_reaches_the_stream_it_was_written_to);
#endif
#if defined(CLIENT_FAST)
  RUN(counters_wrap_and_cells_are_refreshed);
#endif
  std::printf("ok\n");
}
