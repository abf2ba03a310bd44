// The C interface of hostcall: a host's services for device code. Made by cbindgen from src/capi: do not edit.
//
// Every function returns a status or null for whatever it is given; rpc_last_error() has the text. In C++,
// exceptions must not leave functions that are given to this library: the end of this file has help, for C++14 and
// later. What leaves one all the same, an exception or pthread_exit, ends the process.

#ifndef HOSTCALL_RPC_H
#define HOSTCALL_RPC_H

#include <stdint.h>

// Device code of LLVM 17.
#define RPC_ABI_LLVM_17 17

// Device code of LLVM 18.
#define RPC_ABI_LLVM_18 18

// Device code of LLVM 19.
#define RPC_ABI_LLVM_19 19

// Device code of LLVM 20, 21 and 22, and of device/hostcall.h.
#define RPC_ABI_LLVM_20 20

// Device code of LLVM's main branch, 23 and later.
#define RPC_ABI_LLVM_MAIN 23

// Device code that uses hostcall::fast of device/hostcall.h.
#define RPC_ABI_HOSTCALL 4096

// The device may read this process's standard input.
#define RPC_LIBC_STDIN 1

// The device may read all files that this process may.
#define RPC_LIBC_READ_FILES 2

// The device may read, write and remove all files that this process may.
#define RPC_LIBC_WRITE_FILES 4

// The device may run commands.
#define RPC_LIBC_SYSTEM 8

// The most lanes that a warp has: the length of arrays with something for each lane.
#define RPC_MAXIMUM_LANES 64

// What a function came to: one of `RPC_STATUS_*`. Those up to `RPC_STATUS_INVALID_LANE_SIZE` have
// the original's numbers (PROTOCOL.md §6.3).
typedef uint32_t rpc_status_t;

// A device with its server. All zeros is none.
typedef struct {
  // A number, never an address.
  uint64_t handle;
} rpc_device_t;

// Gives `size` bytes that the device reaches at the same address, or null. Alignment and contents do
// not matter. May be called on any thread.
typedef void *(*rpc_alloc_t)(uint64_t size, void *data);

// Takes back `size` bytes at `ptr`. May be called on any thread.
typedef void (*rpc_free_t)(void *ptr, uint64_t size, void *data);

// A conversation, for as long as its callback runs.
typedef struct {
  // A number, never an address.
  uint64_t handle;
  // The lanes of a warp.
  uint32_t lane_size;
} rpc_port_t;

// Answers an opcode. Runs on a thread of a pool and may block; others may run at the same time, of all
// devices of the process together 500, or as many as the environment variable BLOCKING_MAX_THREADS says
// when the first one runs.
typedef void (*rpc_opcode_callback_t)(rpc_port_t port, void *data);

// What a lane sends at a time.
typedef struct {
  // The words.
  uint64_t data[8];
} rpc_buffer_t;

// Reads a lane's packet, or fills it. Called for each lane that takes part, lowest first.
typedef void (*rpc_port_callback_t)(rpc_buffer_t *buffer, void *data);

// It is done.
#define RPC_STATUS_SUCCESS 0

// It goes on: call again. No failure.
#define RPC_STATUS_CONTINUE 1

// It failed for a reason that only `rpc_last_error` tells.
#define RPC_STATUS_ERROR 4096

// The device asked for an opcode that nobody answers.
#define RPC_STATUS_UNHANDLED_OPCODE 4097

// A warp has 1 to 64 lanes.
#define RPC_STATUS_INVALID_LANE_SIZE 4098

// A null pointer, or a number that means nothing.
#define RPC_STATUS_INVALID_ARGUMENT 4099

// The handle's device or port is gone, or never was.
#define RPC_STATUS_INVALID_HANDLE 4100

// An allocation callback returned null.
#define RPC_STATUS_OUT_OF_MEMORY 4101

// A server has 1 to 16384 ports, with older device code 512 or 4096 at most.
#define RPC_STATUS_INVALID_PORT_COUNT 4102

// `rpc_init` after `rpc_init`, or an opcode that has a handler.
#define RPC_STATUS_ALREADY_INITIALIZED 4103

// Somebody else uses it at this moment, or the caller itself does further up.
#define RPC_STATUS_BUSY 4104

// The conversation is over: the device said nothing for 60 seconds, or the server shuts down.
#define RPC_STATUS_ENDED 4105

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of this thread's last failure; empty where there was none.
//
// At most 511 bytes, in a place of this thread's that the next failure overwrites. Never null.
const char *rpc_last_error(void);

// Makes a server whose shared memory comes from `alloc`, and writes its handle to `device`.
//
// `abi` is one of `RPC_ABI_*`, what the device code was built for. `ports` is how many conversations
// there can be at a time, `lane_size` the lanes of a warp. `data` goes to both functions. The server
// answers no opcode at first: see `rpc_register_callback` and `rpc_register_libc`.
//
// Returns `RPC_STATUS_SUCCESS`; `RPC_STATUS_INVALID_ARGUMENT`, `RPC_STATUS_INVALID_PORT_COUNT`,
// `RPC_STATUS_INVALID_LANE_SIZE` or `RPC_STATUS_OUT_OF_MEMORY`: nothing has been kept then.
//
// # Safety
// `device` is null or a place for a handle. The functions do what their types say, on any thread, until
// the server has been shut down.
rpc_status_t rpc_server_init(rpc_device_t *device,
                             uint32_t abi,
                             uint32_t ports,
                             uint32_t lane_size,
                             rpc_alloc_t alloc,
                             rpc_free_t free,
                             void *data);

// Ends all conversations, waits for callbacks that run, and gives the memory back.
//
// Returns `RPC_STATUS_SUCCESS`: no callback runs any more, none of their data is used. Otherwise
// `RPC_STATUS_CONTINUE`: after five seconds a callback or a call still runs; call again. The device
// cannot be used for anything else then. `RPC_STATUS_BUSY` in a callback of the device itself;
// `RPC_STATUS_INVALID_HANDLE` the second time. The kernels must have ended.
rpc_status_t rpc_server_shutdown(rpc_device_t device);

// Serves what the device has sent, until nothing is ready. Never waits for the device.
//
// Returns `RPC_STATUS_SUCCESS`; `RPC_STATUS_CONTINUE` where a busy device kept it from coming to an
// end; `RPC_STATUS_UNHANDLED_OPCODE` or `RPC_STATUS_ERROR` for the first conversation that failed since
// the last time: the others have been served, and it may be called again. Several threads may call it.
rpc_status_t rpc_handle_server(rpc_device_t device);

// As `rpc_handle_server`, and waits for callbacks that are at work, five seconds at most: after a kernel
// has ended, nothing that it sent is lost.
//
// `RPC_STATUS_CONTINUE` where a callback is at work still: call again. `RPC_STATUS_BUSY` in a callback of
// the device itself, which it would wait for.
rpc_status_t rpc_server_drain(rpc_device_t device);

// Gives an opcode to a callback, in place of what had it. Also while the device is served:
// conversations that have begun keep the one that they have.
//
// Opcodes are those of LLVM 20 and later for the C library's, whatever the device was built for.
//
// # Safety
// The function may be called with `data` on any thread, several at a time, until the device has been shut
// down.
rpc_status_t rpc_register_callback(rpc_device_t device,
                                   uint32_t opcode,
                                   rpc_opcode_callback_t callback,
                                   void *data);

// Takes an opcode from its handler. Conversations that have begun go on.
//
// `RPC_STATUS_INVALID_ARGUMENT` where it has none.
rpc_status_t rpc_unregister_callback(rpc_device_t device, uint32_t opcode);

// Answers the C library's opcodes: the device prints to this process's output. `allowed` is what else it
// may do, any of `RPC_LIBC_*`. It gets no memory: `malloc` on the device returns null unless
// a callback for it says otherwise. `exit` is reported by `rpc_get_exit_status`.
//
// `RPC_STATUS_ALREADY_INITIALIZED` the second time, and where one of the opcodes has a callback: register
// yours afterwards.
rpc_status_t rpc_register_libc(rpc_device_t device, uint32_t allowed);

// Writes the status that the device program wants to end with. `RPC_STATUS_CONTINUE` where it has not
// said so.
//
// # Safety
// `status` is null or a place for a number.
rpc_status_t rpc_get_exit_status(rpc_device_t device, int32_t *status);

// The name of the device's client object, which gets the bytes of `rpc_get_client_buffer`. Up to LLVM 19
// it is a pointer to an object that the host allocates. Code of device/hostcall.h has
// `__hostcall_client` with `RPC_ABI_LLVM_20`. A constant; null where there is no such device.
const char *rpc_get_client_symbol(rpc_device_t device);

// The bytes to copy to the device's client object. They stay until the device is shut down. Null where
// there is no such device.
const void *rpc_get_client_buffer(rpc_device_t device);

// How many bytes those are. 0 where there is no such device.
uint64_t rpc_get_client_size(rpc_device_t device);

// Where the device finds the packets. Null where there is no such device.
void *rpc_get_buffer_of(rpc_device_t device);

// Waits for the next packet of the conversation and gives it to `callback`, lane by lane.
//
// Returns `RPC_STATUS_SUCCESS`, `RPC_STATUS_ENDED` where there comes none any more: return from the
// callback then. `RPC_STATUS_INVALID_HANDLE`, `RPC_STATUS_INVALID_ARGUMENT` or `RPC_STATUS_BUSY`
// for misuse.
//
// # Safety
// The function may be called with a buffer and `data`.
rpc_status_t rpc_recv(rpc_port_t port, rpc_port_callback_t callback, void *data);

// Lets `callback` fill a packet, lane by lane, and sends it. The packet is at first the one that was
// received or sent last.
//
// Statuses are those of `rpc_recv`.
//
// # Safety
// As `rpc_recv`.
rpc_status_t rpc_send(rpc_port_t port, rpc_port_callback_t callback, void *data);

// Waits for a packet, lets `callback` change it, lane by lane, and sends it back.
//
// Statuses are those of `rpc_recv`.
//
// # Safety
// As `rpc_recv`.
rpc_status_t rpc_recv_and_send(rpc_port_t port, rpc_port_callback_t callback, void *data);

// Sends a message of any length to each lane that takes part: `size[lane]` bytes at `src[lane]`.
//
// Statuses are those of `rpc_recv`. A null message of some length is an
// `RPC_STATUS_INVALID_ARGUMENT`, and nothing is sent then.
//
// # Safety
// Both arrays are null or have an element for each lane of a warp; each message that is not null has as
// many bytes as its size says. Elements of lanes that take no part are not looked at.
rpc_status_t rpc_send_n(rpc_port_t port, const void *const *src, const uint64_t *size);

// Receives a message of any length from each lane. `dst[lane]` gets memory from `alloc` with the
// message, `size[lane]` its length in bytes; null and 0 for lanes that take no part and for empty messages.
//
// The caller frees what `alloc` gave, also after a failure.
//
// Statuses are those of `rpc_recv`. `RPC_STATUS_ERROR` where all lanes together announce more than 64 MiB,
// before any memory is allocated. `RPC_STATUS_OUT_OF_MEMORY` where `alloc` returned null: those lanes
// have null and their length, the others their message.
//
// # Safety
// Both arrays are null or have a place for each lane of a warp. `alloc` gives as many bytes as it is
// asked for, or null.
rpc_status_t rpc_recv_n(rpc_port_t port, void **dst, uint64_t *size, rpc_alloc_t alloc, void *data);

// Writes which lanes take part, a bit for each.
//
// # Safety
// `mask` is null or a place for a number.
rpc_status_t rpc_port_lane_mask(rpc_port_t port, uint64_t *mask);

// Says that the callback failed: when it returns, the client is told, and `rpc_handle_server` returns
// `RPC_STATUS_ERROR`.
rpc_status_t rpc_port_fail(rpc_port_t port);

// Makes the process's server, which answers the C library's opcodes as `rpc_register_libc(device, 0)`
// does. Arguments and statuses are those of `rpc_server_init`; `RPC_STATUS_ALREADY_INITIALIZED` where
// there is one; `RPC_STATUS_BUSY` while one is being made.
//
// # Safety
// As `rpc_server_init`.
rpc_status_t rpc_init(uint32_t abi,
                      uint32_t ports,
                      uint32_t lane_size,
                      rpc_alloc_t alloc,
                      rpc_free_t free,
                      void *data);

// As `rpc_server_shutdown`, for the process's server. Another `rpc_init` may follow.
rpc_status_t rpc_deinit(void);

// As `rpc_handle_server`, for the process's server.
rpc_status_t rpc_handle(void);

// Writes the handle of the process's server, for the functions that want one.
//
// # Safety
// `device` is null or a place for a handle.
rpc_status_t rpc_get_device(rpc_device_t *device);

// Where the device finds the server's inbox, the mailboxes that it writes. Null before `rpc_init`.
void *rpc_get_inbox(void);

// Where the device finds the server's outbox, the mailboxes that it polls. Null before `rpc_init`.
void *rpc_get_outbox(void);

// Where the device finds the packets. Null before `rpc_init`.
void *rpc_get_buffer(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOSTCALL_RPC_H */

#if defined(__cplusplus) && __cplusplus >= 201402L && !defined(HOSTCALL_RPC_HPP)
#define HOSTCALL_RPC_HPP
#include <exception>
#include <utility>

namespace hostcall {

// Turns an exception of Function into a failed conversation, as rpc_port_fail says:
//   rpc_register_callback(device, opcode, hostcall::callback<answer>, data);
template <void (*Function)(rpc_port_t, void *)> void callback(rpc_port_t port, void *data) noexcept {
  try {
    Function(port, data);
  } catch (...) {
    rpc_port_fail(port);
  }
}

// A Function that may throw as a rpc_alloc_t, whose exception is no memory, and as a rpc_free_t:
//   rpc_server_init(&device, abi, ports, lanes, hostcall::allocation<take>, hostcall::release<give_back>, data);
template <void *(*Function)(uint64_t, void *)> void *allocation(uint64_t size, void *data) noexcept {
  try {
    return Function(size, data);
  } catch (...) {
    return nullptr;
  }
}
template <void (*Function)(void *, uint64_t, void *)> void release(void *ptr, uint64_t size, void *data) noexcept {
  try {
    Function(ptr, size, data);
  } catch (...) {
  }
}

// A function object as a rpc_port_callback_t. What it throws is kept, and thrown again by `done`.
template <class Function> class Packets {
public:
  explicit Packets(Function &function) : function_(function) {}
  static void call(rpc_buffer_t *buffer, void *data) noexcept {
    Packets &self = *static_cast<Packets *>(data);
    if (self.thrown_)
      return;
    try {
      self.function_(*buffer);
    } catch (...) {
      self.thrown_ = std::current_exception();
    }
  }
  rpc_status_t done(rpc_status_t status) {
    if (thrown_)
      std::rethrow_exception(std::exchange(thrown_, nullptr));
    return status;
  }

private:
  Function &function_;
  std::exception_ptr thrown_;
};

// As rpc_recv, rpc_send and rpc_recv_and_send, with a function of a rpc_buffer_t & that may throw.
template <class Function> rpc_status_t recv(rpc_port_t port, Function &&function) {
  Packets<Function> packets(function);
  return packets.done(rpc_recv(port, packets.call, &packets));
}
template <class Function> rpc_status_t send(rpc_port_t port, Function &&function) {
  Packets<Function> packets(function);
  return packets.done(rpc_send(port, packets.call, &packets));
}
template <class Function> rpc_status_t recv_and_send(rpc_port_t port, Function &&function) {
  Packets<Function> packets(function);
  return packets.done(rpc_recv_and_send(port, packets.call, &packets));
}

} // namespace hostcall
#endif // HOSTCALL_RPC_HPP
