// Two devices with warps of different width in one C program. The devices are played by this process: where a kernel
// would be, `call` does what device code does.
//
//   cargo rustc --release --lib --features capi --crate-type staticlib,cdylib
//   cc -std=c11 -I src/capi examples/capi/square.c target/release/libhostcall.a -lpthread -ldl -lm -o square
#include "hostcall_rpc.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SQUARE = 0x78000001, REVERSE = 0x78000002, LATE = 0x78000003 };

#define CHECK(condition)                                                                                          \
  do {                                                                                                            \
    if (!(condition)) {                                                                                           \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, rpc_last_error());                      \
      exit(1);                                                                                                    \
    }                                                                                                             \
  } while (0)

// Memory that the device sees: with a real one, its runtime's. The balance shows that all of it comes back.
static void *take(uint64_t size, void *balance) {
  *(int64_t *)balance += (int64_t)size;
  return malloc(size);
}
static void give_back(void *memory, uint64_t size, void *balance) {
  *(int64_t *)balance -= (int64_t)size;
  free(memory);
}
// Memory from a function that looks around: there is no server yet, which is a status.
static void *take_curious(uint64_t size, void *balance) {
  rpc_device_t device;
  CHECK(!rpc_get_inbox() && rpc_handle() == RPC_STATUS_INVALID_HANDLE && rpc_deinit() == RPC_STATUS_INVALID_HANDLE);
  CHECK(rpc_get_device(&device) == RPC_STATUS_INVALID_HANDLE);
  CHECK(rpc_init(RPC_ABI_LLVM_20, 16, 32, take, give_back, balance) == RPC_STATUS_BUSY);
  return take(size, balance);
}
static void *take_none(uint64_t size, void *data) {
  (void)size, (void)data;
  return NULL;
}

// Answers SQUARE: every lane's number, squared.
static void square_lane(rpc_buffer_t *buffer, void *data) {
  (void)data;
  buffer->data[0] *= buffer->data[0];
}
static void square(rpc_port_t port, void *calls) {
  uint64_t mask = 0;
  CHECK(rpc_port_lane_mask(port, &mask) == RPC_STATUS_SUCCESS && mask != 0);
  CHECK(rpc_recv_and_send(port, square_lane, NULL) == RPC_STATUS_SUCCESS);
  CHECK(rpc_recv(port, NULL, NULL) == RPC_STATUS_INVALID_ARGUMENT);
  atomic_fetch_add((atomic_int *)calls, 1);
}

// Answers REVERSE: every lane's message, backwards.
static void *allocate(uint64_t size, void *data) {
  (void)data;
  return malloc(size);
}
static void reverse(rpc_port_t port, void *data) {
  (void)data;
  void *message[RPC_MAXIMUM_LANES];
  uint64_t size[RPC_MAXIMUM_LANES];
  CHECK(rpc_recv_n(port, message, size, allocate, NULL) == RPC_STATUS_SUCCESS);
  for (uint32_t lane = 0; lane < port.lane_size; lane++) {
    char *text = message[lane];
    for (uint64_t i = 0; i < size[lane] / 2; i++) {
      char c = text[i];
      text[i] = text[size[lane] - 1 - i];
      text[size[lane] - 1 - i] = c;
    }
  }
  CHECK(rpc_send_n(port, (const void *const *)message, size) == RPC_STATUS_SUCCESS);
  for (uint32_t lane = 0; lane < port.lane_size; lane++)
    free(message[lane]);
}

// The beginning of the client object of LLVM 20 to 22 (RPC_ABI_LLVM_20).
struct client {
  uint32_t port_count;
  _Atomic uint32_t *inbox, *outbox;
  struct {
    uint64_t mask;
    uint32_t opcode, padding;
  } *headers;
  rpc_buffer_t *packets;
};

// Hands port 0 over to the host and waits until it is the client's again, while this thread serves.
static rpc_status_t exchange(rpc_device_t device, struct client *client) {
  rpc_status_t worst = RPC_STATUS_SUCCESS;
  uint32_t out = !atomic_load_explicit(client->outbox, memory_order_relaxed);
  atomic_store_explicit(client->outbox, out, memory_order_release);
  while (atomic_load_explicit(client->inbox, memory_order_acquire) != out) {
    rpc_status_t status = rpc_handle_server(device);
    if (status > RPC_STATUS_CONTINUE)
      worst = status;
  }
  return worst;
}

// Port 0 of a warp: opens it with the lanes of `mask`, sends what stands in `packets`, and has the reply there.
static rpc_status_t call(rpc_device_t device, uint32_t opcode, uint64_t mask, rpc_buffer_t *packets, uint32_t lanes) {
  struct client client;
  memcpy(&client, rpc_get_client_buffer(device), sizeof client);
  client.headers[0].mask = mask;
  client.headers[0].opcode = opcode;
  memcpy(client.packets, packets, lanes * sizeof *packets);
  rpc_status_t status = exchange(device, &client);
  memcpy(packets, client.packets, lanes * sizeof *packets);
  return status;
}

int main(void) {
  int64_t balance = 0;
  atomic_int calls = 0;
  rpc_device_t devices[2] = {{0}, {0}};
  const uint32_t lanes[2] = {32, 64};
  for (int i = 0; i < 2; i++) {
    CHECK(rpc_server_init(&devices[i], RPC_ABI_LLVM_20, 16, lanes[i], take, give_back, &balance) == RPC_STATUS_SUCCESS);
    CHECK(rpc_get_client_size(devices[i]) == 552 && rpc_get_buffer_of(devices[i]));
    CHECK(rpc_register_libc(devices[i], 0) == RPC_STATUS_SUCCESS);
  }
  for (int i = 0; i < 2; i++) {
    rpc_buffer_t packets[RPC_MAXIMUM_LANES] = {0};
    uint64_t sum = 0;
    for (uint32_t lane = 0; lane < lanes[i]; lane++)
      packets[lane].data[0] = lane;
    // Nobody answers yet: the call comes back, and the server says so.
    CHECK(call(devices[i], SQUARE, 1, packets, lanes[i]) == RPC_STATUS_UNHANDLED_OPCODE);
    for (uint32_t lane = 0; lane < lanes[i]; lane++)
      packets[lane].data[0] = lane;
    CHECK(rpc_register_callback(devices[i], SQUARE, square, &calls) == RPC_STATUS_SUCCESS);
    CHECK(call(devices[i], SQUARE, ~0ull, packets, lanes[i]) == RPC_STATUS_SUCCESS);
    for (uint32_t lane = 0; lane < lanes[i]; lane++)
      sum += packets[lane].data[0];
    printf("%u lanes: the squares add up to %llu\n", lanes[i], (unsigned long long)sum);

    // A message of 5 bytes: its length is the first word.
    CHECK(rpc_register_callback(devices[i], REVERSE, reverse, NULL) == RPC_STATUS_SUCCESS);
    packets[3].data[0] = 5;
    memcpy(&packets[3].data[1], "hello", 5);
    struct client client;
    memcpy(&client, rpc_get_client_buffer(devices[i]), sizeof client);
    CHECK(call(devices[i], REVERSE, 1 << 3, packets, lanes[i]) == RPC_STATUS_SUCCESS);
    printf("%.*s\n", (int)client.packets[3].data[0], (const char *)&client.packets[3].data[1]);
  }

  // Misuse is a status.
  rpc_device_t none = {0}, stale = devices[0];
  int32_t exit_status = 0;
  CHECK(rpc_server_init(NULL, RPC_ABI_LLVM_20, 16, 32, take, give_back, &balance) == RPC_STATUS_INVALID_ARGUMENT);
  CHECK(rpc_server_init(&none, RPC_ABI_LLVM_20, 16, 32, NULL, give_back, &balance) == RPC_STATUS_INVALID_ARGUMENT);
  CHECK(rpc_server_init(&none, 1234, 16, 32, take, give_back, &balance) == RPC_STATUS_INVALID_ARGUMENT);
  CHECK(rpc_server_init(&none, RPC_ABI_LLVM_20, 0, 32, take, give_back, &balance) == RPC_STATUS_INVALID_PORT_COUNT);
  CHECK(rpc_server_init(&none, RPC_ABI_LLVM_20, 16, 65, take, give_back, &balance) == RPC_STATUS_INVALID_LANE_SIZE);
  CHECK(rpc_server_init(&none, RPC_ABI_LLVM_20, 16, 32, take_none, give_back, &balance) == RPC_STATUS_OUT_OF_MEMORY);
  CHECK(strstr(rpc_last_error(), "returned null"));
  CHECK(none.handle == 0 && rpc_handle_server(none) == RPC_STATUS_INVALID_HANDLE);
  CHECK(rpc_register_callback(devices[0], LATE, NULL, NULL) == RPC_STATUS_INVALID_ARGUMENT);
  CHECK(rpc_unregister_callback(devices[0], LATE) == RPC_STATUS_INVALID_ARGUMENT);
  CHECK(rpc_register_libc(devices[0], 0) == RPC_STATUS_ALREADY_INITIALIZED);
  CHECK(rpc_register_libc(devices[0], 0x100) == RPC_STATUS_INVALID_ARGUMENT);
  CHECK(rpc_get_exit_status(devices[0], NULL) == RPC_STATUS_INVALID_ARGUMENT);
  CHECK(rpc_get_exit_status(devices[0], &exit_status) == RPC_STATUS_CONTINUE);
  CHECK(rpc_recv((rpc_port_t){77, 32}, square_lane, NULL) == RPC_STATUS_INVALID_HANDLE);

  for (int i = 0; i < 2; i++) {
    CHECK(rpc_unregister_callback(devices[i], SQUARE) == RPC_STATUS_SUCCESS);
    CHECK(rpc_server_drain(devices[i]) == RPC_STATUS_SUCCESS);
    CHECK(rpc_server_shutdown(devices[i]) == RPC_STATUS_SUCCESS);
  }
  CHECK(rpc_server_shutdown(stale) == RPC_STATUS_INVALID_HANDLE && !rpc_get_client_buffer(stale));
  CHECK(rpc_get_client_size(stale) == 0 && !rpc_get_buffer_of(stale));
  CHECK(atomic_load(&calls) == 2 && balance == 0);

  // The form for one device.
  CHECK(rpc_handle() == RPC_STATUS_INVALID_HANDLE && !rpc_get_inbox() && rpc_deinit() == RPC_STATUS_INVALID_HANDLE);
  for (int again = 0; again < 2; again++) {
    CHECK(rpc_init(RPC_ABI_LLVM_20, 16, 32, take, give_back, &balance) == RPC_STATUS_SUCCESS);
    CHECK(rpc_init(RPC_ABI_LLVM_20, 16, 32, take, give_back, &balance) == RPC_STATUS_ALREADY_INITIALIZED);
    CHECK(rpc_get_inbox() && rpc_get_outbox() && rpc_get_buffer() && rpc_handle() == RPC_STATUS_SUCCESS);
    CHECK(rpc_get_device(NULL) == RPC_STATUS_INVALID_ARGUMENT && rpc_get_device(&none) == RPC_STATUS_SUCCESS);
    CHECK(rpc_get_buffer() == rpc_get_buffer_of(none));
    CHECK(rpc_deinit() == RPC_STATUS_SUCCESS && !rpc_get_outbox() && balance == 0);
  }
  // It is a server as any other, and may be shut down as one.
  for (int again = 0; again < 2; again++) {
    CHECK(rpc_init(RPC_ABI_LLVM_18, 16, 32, take_curious, give_back, &balance) == RPC_STATUS_SUCCESS);
    CHECK(rpc_get_device(&none) == RPC_STATUS_SUCCESS);
    CHECK(!strcmp(rpc_get_client_symbol(none), "__llvm_libc_rpc_client"));
    CHECK(rpc_server_shutdown(none) == RPC_STATUS_SUCCESS && rpc_deinit() == RPC_STATUS_INVALID_HANDLE);
    CHECK(!rpc_get_client_symbol(none) && balance == 0);
  }
  puts("all memory came back");
  return 0;
}
