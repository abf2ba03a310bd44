// A callback that waits for the device while another is served, and exceptions that fail their conversation alone. The
// device is played by threads of this process, with the device header compiled for the host.
//
//   cargo rustc --release --lib --features capi --crate-type staticlib,cdylib
//   c++ -std=c++17 -I src/capi -I device examples/capi/waiting.cpp target/release/libhostcall.a -lpthread -ldl -lm -o waiting
#define HOSTCALL_DEFINE_CLIENT
#include "hostcall.h"
#include "hostcall_rpc.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#define CHECK(condition)                                                                                          \
  do {                                                                                                            \
    if (!(condition)) {                                                                                           \
      std::fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, rpc_last_error());                 \
      std::exit(1);                                                                                               \
    }                                                                                                             \
  } while (0)

namespace {

enum : uint32_t { kSum = 0x78000001, kNext = 0x78000002, kThrow = 0x78000003, kThrowInside = 0x78000004, kStop = 0x78000005 };

std::atomic<bool> waiting{false};

// Two packets, then the sum of both. Waits for the second, however long that takes.
void sum(rpc_port_t port, void *) {
  uint64_t total = 0;
  auto add = [&](rpc_buffer_t &buffer) { total += buffer.data[0]; };
  hostcall::recv(port, add);
  waiting = true;
  if (hostcall::recv(port, add) == RPC_STATUS_ENDED)
    return;
  hostcall::send(port, [&](rpc_buffer_t &buffer) { buffer.data[0] = total; });
}

void next(rpc_port_t port, void *) {
  hostcall::recv_and_send(port, [](rpc_buffer_t &buffer) { buffer.data[0] += 1; });
}

void throws(rpc_port_t, void *) { throw std::runtime_error("as planned"); }
void throws_inside(rpc_port_t port, void *) {
  hostcall::recv(port, [](rpc_buffer_t &) { throw std::runtime_error("as planned"); });
}

// A callback can neither shut its own device down nor wait for it.
void stop(rpc_port_t port, void *device) {
  rpc_status_t status = rpc_server_shutdown(*static_cast<rpc_device_t *>(device));
  CHECK(rpc_server_drain(*static_cast<rpc_device_t *>(device)) == status);
  hostcall::recv_and_send(port, [&](rpc_buffer_t &buffer) { buffer.data[0] = status; });
}

void *take(uint64_t size, void *) { return operator new(size); }
void give_back(void *memory, uint64_t, void *) { operator delete(memory); }
void *take_none(uint64_t, void *) { throw std::bad_alloc(); }

} // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IONBF, 0); // the device prints there too
  rpc_device_t device;
  auto *release = hostcall::release<give_back>;
  CHECK(rpc_server_init(&device, RPC_ABI_LLVM_20, 4, 1, hostcall::allocation<take_none>, release, nullptr) ==
        RPC_STATUS_OUT_OF_MEMORY);
  CHECK(rpc_server_init(&device, RPC_ABI_LLVM_20, 4, 1, hostcall::allocation<take>, release, nullptr) == RPC_STATUS_SUCCESS);
  CHECK(rpc_get_client_size(device) == sizeof HOSTCALL_CLIENT_SYMBOL);
  std::memcpy(static_cast<void *>(&HOSTCALL_CLIENT_SYMBOL), rpc_get_client_buffer(device), sizeof HOSTCALL_CLIENT_SYMBOL);
  CHECK(rpc_register_libc(device, 0) == RPC_STATUS_SUCCESS);

  std::atomic<bool> done{false};
  std::atomic<int> failed{0};
  std::thread host([&] {
    while (!done) {
      rpc_status_t status = rpc_handle_server(device);
      if (status > RPC_STATUS_CONTINUE)
        ++failed;
      std::this_thread::yield();
    }
  });

  // While this is served.
  CHECK(rpc_register_callback(device, kSum, hostcall::callback<sum>, nullptr) == RPC_STATUS_SUCCESS);
  CHECK(rpc_register_callback(device, kNext, hostcall::callback<next>, nullptr) == RPC_STATUS_SUCCESS);
  CHECK(rpc_register_callback(device, kThrow, hostcall::callback<throws>, nullptr) == RPC_STATUS_SUCCESS);
  CHECK(rpc_register_callback(device, kThrowInside, hostcall::callback<throws_inside>, nullptr) == RPC_STATUS_SUCCESS);
  CHECK(rpc_register_callback(device, kStop, hostcall::callback<stop>, &device) == RPC_STATUS_SUCCESS);

  uint64_t answer = 0;
  {
    hostcall::Port port(kSum);
    port.send([](hostcall::Port::Outgoing &packet) { packet.set_word(0, 40); });
    while (!waiting)
      std::this_thread::yield();
    // The callback waits for this thread now. Others are served.
    std::thread([] { CHECK(hostcall::call<uint64_t>(kNext, uint64_t{6}) == 7); }).join();
    port.send([](hostcall::Port::Outgoing &packet) { packet.set_word(0, 2); });
    port.recv([&](hostcall::Port::Incoming &packet) { answer = packet.word(0); });
  }
  std::printf("the sum is %llu\n", static_cast<unsigned long long>(answer));

  uint64_t reply = 0;
  CHECK(static_cast<uint32_t>(hostcall::try_call(kThrow, uint64_t{1}, reply)) != 0);
  CHECK(static_cast<uint32_t>(hostcall::try_call(kThrowInside, uint64_t{1}, reply)) != 0);
  CHECK(hostcall::call<uint64_t>(kNext, uint64_t{1}) == 2);
  CHECK(hostcall::call<uint64_t>(kStop, uint64_t{1}) == RPC_STATUS_BUSY);
  CHECK(rpc_server_drain(device) == RPC_STATUS_SUCCESS);
  hostcall::print("printed by the device\n");

  // A callback that waits for ever: shutting down ends its wait.
  waiting = false;
  hostcall::Port port(kSum);
  port.send([](hostcall::Port::Outgoing &packet) { packet.set_word(0, 1); });
  while (!waiting)
    std::this_thread::yield();
  done = true;
  host.join();
  CHECK(rpc_server_shutdown(device) == RPC_STATUS_SUCCESS);
  CHECK(failed == 2);
  std::printf("%d callbacks failed, and nothing else\n", failed.load());
  std::_Exit(0); // the port above is open and its server gone: nothing may close it
}
