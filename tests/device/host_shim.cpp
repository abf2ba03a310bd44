// The device header as a plain C interface, lane width 1, for tests in other languages that serve it.
// TEST_FAST: on the crate's own wire.
#define HOSTCALL_DEFINE_CLIENT
#if defined(TEST_FAST)
#define HOSTCALL_FAST 1
#endif
#include "../../device/hostcall.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(TEST_FAST)
namespace wire = hostcall::fast;
#define CLIENT_OBJECT __hostcall_fast_client
#else
namespace wire = hostcall;
#define CLIENT_OBJECT HOSTCALL_CLIENT_SYMBOL
#endif

extern "C" {

// Publishes a client image. Returns 0, or 1 where it has not the size of the client object. No client thread may
// be at work.
int hc_test_publish(const void *image, size_t size) {
  if (size != sizeof CLIENT_OBJECT)
    return 1;
  std::memcpy(static_cast<void *>(&CLIENT_OBJECT), image, size);
  return 0;
}

// One word there, one word back.
uint64_t hc_test_call(uint32_t opcode, uint64_t value) { return wire::call<uint64_t>(opcode, value); }

// As hc_test_call; the reply comes in `reply`, the server's status (0: well) is returned.
uint32_t hc_test_try_call(uint32_t opcode, uint64_t value, uint64_t *reply) {
  return static_cast<uint32_t>(wire::try_call(opcode, value, *reply));
}

// `count` words, at most 8, there and back in place. Returns the status.
uint32_t hc_test_call_words(uint32_t opcode, uint64_t *words, uint32_t count) {
  wire::Port port(opcode);
  port.send([&](wire::Port::Outgoing &packet) {
    for (uint32_t i = 0; i < count; ++i)
      packet.set_word(i, words[i]);
  });
  port.recv([&](wire::Port::Incoming &packet) {
    for (uint32_t i = 0; i < count; ++i)
      words[i] = packet.word(i);
  });
  return static_cast<uint32_t>(port.status());
}

// One word that nobody waits for.
void hc_test_notify(uint32_t opcode, uint64_t value) { wire::notify(opcode, value); }

// A stream there, a stream back. Returns the length of what came back; `out` has its first `max` bytes.
size_t hc_test_stream_echo(uint32_t opcode, const void *data, size_t size, void *out, size_t max) {
  wire::Port port(opcode);
  port.send_stream(data, size);
  return port.recv_stream(out, max);
}

// Text to the host's standard output (stream 1) or standard error (2). Returns the bytes written.
uint64_t hc_test_print(int stream, const char *text) {
  return stream == 2 ? wire::eprint(text) : wire::print(text);
}

// The order to end the program, without ending the caller.
void hc_test_request_exit(uint32_t status) { wire::request_exit(status); }

} // extern "C"
