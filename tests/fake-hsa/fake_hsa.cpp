// A stand-in for the HSA runtime's library, for tests where no AMD GPU is: the functions that the backend loads, over
// memory of this process. It exists to execute every line of the backend, failures included; it says nothing about real
// devices. It is compiled against the runtime's own headers, so its signatures are the real ones.
//
//   c++ -std=c++17 -shared -fPIC -pthread fake_hsa.cpp -o libfake-hsa.so;  HOSTCALL_HSA_RUNTIME=/path/to/libfake-hsa.so
//
// There are a CPU, a device of another kind and two GPUs: 0 has waves of 64, and fine-grained memory that the host reaches; 1 has waves of 32, and
// none. Memory is filled with 0xa5, so that somebody must zero it. Code objects are any bytes that begin as an ELF file
// does, whatever is in them. Each has the kernels and the client object of the loader's test program (tests/gpu), which run
// as a warp of one lane on the queue's thread; a kernel `add.kd`, whose arguments are the address of a u64 and a u64 to add to it; `fault.kd`, which has
// none and fails; `page.kd`, which goes to memory that is not there; `forever.kd`, which has none and ends with its queue; and a variable `counter` of eight bytes.
//
// Functions of its own, for the test:
//   fake_hsa_refuse(n)     counts calls from here on and refuses the n-th that can be refused; 0: none
// FAKE_HSA_REFUSE=n in the environment does so from the start.
//   fake_hsa_calls()       how many there were since
//   fake_hsa_outstanding() what was taken and not given back: memory, signals, queues, readers, executables, starts
//   fake_hsa_odd(text)     is odd in a way from here on, "" for none; FAKE_HSA_ODD=text does so from the start:
//     no-events, unknown-signals  signals have no events, or are of a kind that nobody knows
//     keeps-memory                memory is not taken back
//     no-host-memory              the CPU has no fine-grained memory
//     no-text                     statuses have no text
//     no-isas                     the devices run nothing
//     no-client, llvm17-client, two-clients, odd-client   what client objects programs have
//     no-kernels                  programs have none, whatever is in them
//   fake_hsa_waits()       how often somebody waited for a signal
//   fake_hsa_memory_fault(agent)  what the handler of memory faults answers; 0: of another event
//   fake_hsa_interrupt(n)  what a device does once it has written the event's number into its mailbox
// Misuse (an unknown handle, a pointer freed twice, no access granted) ends the process with a line that says so.
#include <hsa/amd_hsa_signal.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <setjmp.h>

#include "start.cpp"

extern "C" {
#define main program_main
#include "program.c"
#undef main
}

namespace {

constexpr auto REFUSED = HSA_STATUS_ERROR_OUT_OF_RESOURCES;
enum : uint64_t { CPU = 1, GPU0 = 2, GPU1 = 3, DSP = 4, AGENTS = 4 };
enum : uint64_t { DEVICES_POOL = 10, HOST_POOL = 11, ARGUMENT_POOL = 12, COARSE_POOL = 20, NEAR_POOL = 30 }; // + agent for the last two
constexpr uint64_t ADD = 101, FAULT = 102, FOREVER = 103, COUNTER = 104, BEGIN = 105, START = 106, END = 107, CLIENT = 108,
                   CLOCK = 109, PAGE = 110;
uint64_t clock_freq;
thread_local jmp_buf trap;

// What a linker would collect.
Callback constructors[] = {first_constructor, second_constructor}, destructors[] = {destructor};
void link() {
  __init_array_start = constructors, __init_array_end = constructors + 2;
  __fini_array_start = destructors, __fini_array_end = destructors + 1;
}

std::recursive_mutex lock;
std::condition_variable_any changed;
uint64_t refused_at_first() {
  const char *number = std::getenv("FAKE_HSA_REFUSE");
  return number ? std::strtoull(number, nullptr, 10) : 0;
}
uint64_t calls, refused = refused_at_first(), next_handle = 1000;
std::map<void *, uint64_t> blocks; // and the agents that may touch each, as bits
std::set<uint64_t> handles;
std::set<uint64_t> signals; // addresses of blocks, as devices know them
uint64_t mailboxes[64];    // of events, by their numbers
uint32_t next_event;
std::string oddity = std::getenv("FAKE_HSA_ODD") ? std::getenv("FAKE_HSA_ODD") : "";
bool odd(const char *way) { return oddity == way; }
int starts;
hsa_amd_system_event_callback_t handler;
void *handlers_data;
std::atomic<uint64_t> waits;

struct Queue {
  hsa_queue_t queue;
  uint64_t written, read;
  uint64_t doorbell, agent;
  bool failed, stop;
  void (*callback)(hsa_status_t, hsa_queue_t *, void *);
  void *data;
  std::thread thread;
};
std::map<const hsa_queue_t *, Queue *> queues;
std::map<uint64_t, uint64_t *> executables;

[[noreturn]] void misuse(const char *what) {
  std::fprintf(stderr, "fake HSA: %s\n", what);
  std::abort();
}
int64_t &value_of(uint64_t signal) {
  if (!signals.count(signal)) misuse("no such signal");
  return const_cast<int64_t &>(reinterpret_cast<amd_signal_t *>(signal)->value);
}
using Guard = std::lock_guard<std::recursive_mutex>;
bool refuse() { return ++calls == refused; }
uint64_t fresh() {
  handles.insert(++next_handle);
  return next_handle;
}
void gone(uint64_t handle) {
  if (!handles.erase(handle)) misuse("an unknown handle");
}
uint64_t signal(int64_t value) {
  auto *block = new amd_signal_t{};
  block->kind = odd("unknown-signals") ? AMD_SIGNAL_KIND_INVALID : AMD_SIGNAL_KIND_USER;
  block->value = value;
  if (!odd("no-events")) {
    block->event_id = next_event++ % 63 + 1;
    block->event_mailbox_ptr = reinterpret_cast<uint64_t>(mailboxes + block->event_id);
  }
  auto handle = reinterpret_cast<uint64_t>(block);
  signals.insert(handle), handles.insert(handle);
  return handle;
}
void no_signal(uint64_t handle) {
  gone(handle);
  if (!signals.erase(handle)) misuse("no such signal");
  delete reinterpret_cast<amd_signal_t *>(handle);
}
template <typename T> hsa_status_t give(void *to, T value) {
  std::memcpy(to, &value, sizeof value);
  return HSA_STATUS_SUCCESS;
}
hsa_status_t text(void *to, const char *value) {
  std::strcpy(static_cast<char *>(to), value);
  return HSA_STATUS_SUCCESS;
}

// A kernel of the test program. Whether it came to its end.
bool run_program(uint64_t kernel, const void *kernarg) {
  struct {
    int32_t argc;
    char **argv, **envp;
    int *result;
  } arguments;
  std::memcpy(&arguments, kernarg, kernel == START ? sizeof arguments : kernel == BEGIN ? 24 : 0);
  if (setjmp(trap)) return false;
  if (kernel == BEGIN) {
    if (clock_freq != 100000000) misuse("nobody has set the clock");
    link(), cpu_begin(arguments.argc, arguments.argv, arguments.envp);
  } else if (kernel == START) {
    cpu_start(arguments.argc, arguments.argv, arguments.envp, arguments.result);
  } else {
    cpu_end();
  }
  return true;
}

// One packet on a queue's thread, which holds the lock.
void run(Queue &queue, hsa_kernel_dispatch_packet_t &packet) {
  if ((packet.header & 0xff) != HSA_PACKET_TYPE_KERNEL_DISPATCH) misuse("no kernel dispatch packet");
  if ((packet.header >> HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE & 3) != HSA_FENCE_SCOPE_SYSTEM ||
      (packet.header >> HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE & 3) != HSA_FENCE_SCOPE_SYSTEM)
    misuse("a packet that orders nothing");
  const uint16_t group[] = {packet.workgroup_size_x, packet.workgroup_size_y, packet.workgroup_size_z};
  const uint32_t grid[] = {packet.grid_size_x, packet.grid_size_y, packet.grid_size_z};
  for (int axis = 0; axis < 3; axis++)
    if (!group[axis] || !grid[axis] || grid[axis] % group[axis]) misuse("a bad grid");
  const char *stack = std::getenv("FAKE_HSA_STACK");
  if (packet.kernel_object == START && packet.private_segment_size != (stack ? std::strtoul(stack, nullptr, 10) : 16384))
    misuse("another stack than was asked for");
  if (packet.setup != 3 || packet.private_segment_size < 4 || packet.group_segment_size < 8) misuse("memory that is too small");
  if (value_of(queue.doorbell) < static_cast<int64_t>(queue.read)) misuse("nobody has told the device");
  if (packet.kernarg_address) {
    auto arguments = blocks.find(packet.kernarg_address);
    if (arguments == blocks.end()) misuse("arguments that were freed, or never allocated");
    if (!(arguments->second >> queue.agent & 1)) misuse("arguments that the device does not reach");
  }
  if (packet.kernel_object == PAGE) {
    hsa_amd_event_t event{};
    event.event_type = HSA_AMD_GPU_MEMORY_FAULT_EVENT;
    event.memory_fault = {{queue.agent}, 0xdead000, 1};
    if (!handler || handler(&event, handlers_data)) misuse("a memory fault that nobody handles");
    queue.failed = true;
    return;
  }
  if (packet.kernel_object == FAULT) {
    queue.failed = true;
    queue.callback(HSA_STATUS_ERROR_EXCEPTION, &queue.queue, queue.data);
    return;
  }
  if (packet.kernel_object == FOREVER) {
    changed.wait(lock, [&] { return queue.stop; });
    return;
  }
  if (packet.kernel_object >= BEGIN && packet.kernel_object <= END) {
    if (packet.kernel_object != END && !packet.kernarg_address) misuse("no arguments");
    lock.unlock();
    bool ended = run_program(packet.kernel_object, packet.kernarg_address);
    lock.lock();
    if (ended) {
      __atomic_fetch_sub(&value_of(packet.completion_signal.handle), 1, __ATOMIC_RELEASE);
    } else {
      queue.failed = true;
      queue.callback(HSA_STATUS_ERROR_EXCEPTION, &queue.queue, queue.data);
    }
    return;
  }
  if (packet.kernel_object != ADD) misuse("no such kernel");
  if (!packet.kernarg_address) misuse("no arguments");
  struct {
    uint64_t *to, number;
  } arguments;
  std::memcpy(&arguments, packet.kernarg_address, sizeof arguments);
  *arguments.to += arguments.number * packet.grid_size_x;
  __atomic_fetch_sub(&value_of(packet.completion_signal.handle), 1, __ATOMIC_RELEASE);
}

void serve(Queue *queue) {
  std::unique_lock<std::recursive_mutex> guard(lock);
  for (;;) {
    changed.wait(lock, [&] { return queue->stop || queue->read < queue->written; });
    if (queue->stop) return;
    auto &packet = static_cast<hsa_kernel_dispatch_packet_t *>(queue->queue.base_address)[queue->read % queue->queue.size];
    uint16_t header = __atomic_load_n(&packet.header, __ATOMIC_ACQUIRE);
    if ((header & 0xff) == HSA_PACKET_TYPE_INVALID || queue->failed) {
      changed.wait(lock); // reserved, not yet written
      continue;
    }
    run(*queue, packet);
    packet.header = HSA_PACKET_TYPE_INVALID;
    queue->read += 1;
    changed.notify_all();
  }
}

} // namespace

extern "C" {

void fake_trap() { longjmp(trap, 1); }

void fake_hsa_refuse(uint64_t n) {
  Guard guard(lock);
  calls = 0, refused = n;
}
uint64_t fake_hsa_calls(void) { return calls; }
void fake_hsa_odd(const char *way) {
  Guard guard(lock);
  oddity = way;
}
uint64_t fake_hsa_waits(void) { return waits; }
uint64_t fake_hsa_memory_fault(uint64_t agent) {
  hsa_amd_event_t event{};
  event.event_type = agent ? HSA_AMD_GPU_MEMORY_FAULT_EVENT : static_cast<hsa_amd_event_type_t>(77);
  event.memory_fault.agent.handle = agent;
  return handler(&event, handlers_data);
}
void fake_hsa_interrupt(uint64_t event) {
  Guard guard(lock);
  if (!event || event >= 64 || mailboxes[event] != event) misuse("an interrupt of an event that the mailbox has not got");
  mailboxes[event] = 0;
  changed.notify_all();
}
uint64_t fake_hsa_outstanding(void) {
  Guard guard(lock);
  return blocks.size() + handles.size() + queues.size() + starts;
}

hsa_status_t hsa_init(void) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  starts += 1;
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_shut_down(void) {
  Guard guard(lock);
  if (starts-- < 1) misuse("shut down more often than started");
  if (starts == 0) handler = nullptr;
  if (starts == 0 && (!blocks.empty() || !handles.empty() || !queues.empty())) misuse("shut down with things in use");
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_amd_register_system_event_handler(hsa_amd_system_event_callback_t callback, void *data) {
  Guard guard(lock);
  if (handler) return HSA_STATUS_ERROR;
  handler = callback, handlers_data = data;
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_status_string(hsa_status_t status, const char **to) {
  if (odd("no-text")) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  *to = status == REFUSED ? "refused by the stand-in" : status == HSA_STATUS_ERROR_EXCEPTION ? "a planned fault" : "other";
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  if (attribute != HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY) misuse("an unknown attribute of the system");
  return give<uint64_t>(to, 1000000000);
}

hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  for (uint64_t agent = 1; agent <= AGENTS; agent++)
    if (auto status = callback({agent}, data)) return status;
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *to) {
  Guard guard(lock);
  // HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY, where the header has it. Those who ask do without where it is refused.
  if (static_cast<uint32_t>(attribute) == 0xA016) return give<uint64_t>(to, 100000000);
  if (refuse()) return REFUSED;
  bool first = agent.handle == GPU0;
  switch (static_cast<uint32_t>(attribute)) {
  case HSA_AGENT_INFO_DEVICE: return give<uint32_t>(to, agent.handle == CPU   ? HSA_DEVICE_TYPE_CPU
                                                          : agent.handle == DSP ? HSA_DEVICE_TYPE_DSP
                                                                                : HSA_DEVICE_TYPE_GPU);
  case HSA_AGENT_INFO_NAME: return text(to, first ? "gfx90a" : "gfx1100");
  case HSA_AMD_AGENT_INFO_PRODUCT_NAME: return text(to, first ? "Stand-in Instinct" : "");
  case HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT: return give<uint32_t>(to, first ? 1216 : 2);
  case HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU: return give<uint32_t>(to, 8);
  case HSA_AGENT_INFO_WAVEFRONT_SIZE: return give<uint32_t>(to, first ? 64 : 32);
  case HSA_AGENT_INFO_QUEUE_MIN_SIZE: return give<uint32_t>(to, 2);
  case HSA_AGENT_INFO_QUEUE_MAX_SIZE: return give<uint32_t>(to, 4);
  default: misuse("an unknown attribute of an agent");
  }
}
hsa_status_t hsa_agent_iterate_isas(hsa_agent_t agent, hsa_status_t (*callback)(hsa_isa_t, void *), void *data) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  return odd("no-isas") ? HSA_STATUS_SUCCESS : callback({agent.handle}, data);
}
hsa_status_t hsa_isa_get_info_alt(hsa_isa_t isa, hsa_isa_info_t attribute, void *to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  const char *name = isa.handle == GPU0 ? "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-" : "amdgcn-amd-amdhsa--gfx1100";
  return attribute == HSA_ISA_INFO_NAME_LENGTH ? give<uint32_t>(to, std::strlen(name)) : text(to, name);
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *),
                                                void *data) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  if (agent.handle == CPU) {
    callback({DEVICES_POOL}, data);
    callback({ARGUMENT_POOL}, data);
    return callback({HOST_POOL}, data);
  }
  if (agent.handle == GPU0) callback({NEAR_POOL + agent.handle}, data);
  return callback({COARSE_POOL + agent.handle}, data);
}
hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t pool, hsa_amd_memory_pool_info_t attribute, void *to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  switch (attribute) {
  case HSA_AMD_MEMORY_POOL_INFO_SEGMENT: return give<uint32_t>(to, HSA_AMD_SEGMENT_GLOBAL);
  case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED: return give<bool>(to, pool.handle != DEVICES_POOL);
  case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS: {
    uint32_t fine = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
    if (pool.handle == ARGUMENT_POOL) fine |= HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT;
    bool coarse = (pool.handle > COARSE_POOL && pool.handle <= COARSE_POOL + AGENTS) ||
                  (odd("no-host-memory") && pool.handle < COARSE_POOL);
    return give<uint32_t>(to, coarse ? uint32_t{HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED} : fine);
  }
  default: misuse("an unknown attribute of a pool");
  }
}
hsa_status_t hsa_amd_agent_memory_pool_get_info(hsa_agent_t, hsa_amd_memory_pool_t, hsa_amd_agent_memory_pool_info_t, void *to) {
  Guard guard(lock);
  return refuse() ? REFUSED : give<uint32_t>(to, HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT);
}
hsa_status_t hsa_amd_memory_pool_allocate(hsa_amd_memory_pool_t pool, size_t size, uint32_t, void **to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  if (pool.handle == DEVICES_POOL) misuse("a pool that gives nothing");
  size_t pages = (size + 4095) / 4096 * 4096;
  *to = std::aligned_alloc(4096, pages);
  std::memset(*to, 0xa5, pages);
  blocks[*to] = pool.handle < COARSE_POOL ? 1 << CPU : 1 << (pool.handle % 10);
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_amd_memory_pool_free(void *block) {
  Guard guard(lock);
  if (!blocks.erase(block)) misuse("a block that is none, or was freed");
  if (odd("keeps-memory")) return HSA_STATUS_ERROR; // for good: the test would leak it
  std::free(block);
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_amd_agents_allow_access(uint32_t count, const hsa_agent_t *agents, const uint32_t *, const void *block) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  auto found = blocks.find(const_cast<void *>(block));
  if (found == blocks.end()) misuse("access to no block");
  while (count--) found->second |= 1 << agents[count].handle;
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_memory_copy(void *to, const void *from, size_t size) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  std::memmove(to, from, size);
  // A server has ports for whole waves; one lane finds its packets at the first port alone.
  if (to == &__hostcall_client) __hostcall_client.port_count = 1;
  return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_code_object_reader_create_from_memory(const void *bytes, size_t size, hsa_code_object_reader_t *reader) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  if (size < 4 || std::memcmp(bytes, "\x7f" "ELF", 4)) return HSA_STATUS_ERROR_INVALID_CODE_OBJECT;
  reader->handle = fresh();
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_code_object_reader_destroy(hsa_code_object_reader_t reader) {
  Guard guard(lock);
  gone(reader.handle);
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_executable_create_alt(hsa_profile_t, hsa_default_float_rounding_mode_t, const char *, hsa_executable_t *to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  to->handle = fresh();
  executables[to->handle] = new uint64_t(0);
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_executable_destroy(hsa_executable_t executable) {
  Guard guard(lock);
  gone(executable.handle);
  delete executables.at(executable.handle);
  executables.erase(executable.handle);
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_executable_load_agent_code_object(hsa_executable_t, hsa_agent_t, hsa_code_object_reader_t reader, const char *,
                                                   hsa_loaded_code_object_t *) {
  Guard guard(lock);
  if (!handles.count(reader.handle)) misuse("no such reader");
  return refuse() ? REFUSED : HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_executable_freeze(hsa_executable_t, const char *) {
  Guard guard(lock);
  return refuse() ? REFUSED : HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_executable_get_symbol_by_name(hsa_executable_t executable, const char *name, const hsa_agent_t *,
                                               hsa_executable_symbol_t *to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  if (!executables.count(executable.handle)) misuse("no such executable");
  std::map<std::string, uint64_t> symbols = {{"add.kd", ADD}, {"fault.kd", FAULT}, {"forever.kd", FOREVER},
                                                 {"counter", COUNTER}, {"_begin.kd", BEGIN}, {"_start.kd", START},
                                                 {"_end.kd", END}, {"__hostcall_client", CLIENT}, {"page.kd", PAGE},
                                                 {"__llvm_libc_clock_freq", CLOCK}};
  if (odd("no-client")) symbols.erase("__hostcall_client");
  if (odd("llvm17-client")) symbols.erase("__hostcall_client"), symbols["__llvm_libc_rpc_client"] = COUNTER;
  if (odd("two-clients")) symbols["__llvm_rpc_client"] = CLIENT;
  if (odd("no-kernels")) symbols.erase("_start.kd");
  auto found = symbols.find(name);
  if (found == symbols.end()) return HSA_STATUS_ERROR_INVALID_SYMBOL_NAME;
  to->handle = executable.handle * 1000 + found->second;
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_executable_symbol_get_info(hsa_executable_symbol_t symbol, hsa_executable_symbol_info_t attribute, void *to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  uint64_t which = symbol.handle % 1000;
  switch (attribute) {
  case HSA_EXECUTABLE_SYMBOL_INFO_TYPE: return give<uint32_t>(to, which == COUNTER || which == CLIENT || which == CLOCK ? HSA_SYMBOL_KIND_VARIABLE : HSA_SYMBOL_KIND_KERNEL);
  case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT: return give<uint64_t>(to, which);
  case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE: return give<uint32_t>(to, which == ADD ? 16 : which == START ? 32 : which == BEGIN ? 24 : 0);
  case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_ALIGNMENT: return give<uint32_t>(to, 16);
  case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_GROUP_SEGMENT_SIZE: return give<uint32_t>(to, 8);
  case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_PRIVATE_SEGMENT_SIZE: return give<uint32_t>(to, 4);
  case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_DYNAMIC_CALLSTACK: return give<bool>(to, which == START);
  case HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ADDRESS:
    return give<const void *>(to, which == CLIENT  ? static_cast<void *>(&__hostcall_client)
                                  : which == CLOCK ? &clock_freq
                                                   : executables.at(symbol.handle / 1000));
  case HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_SIZE:
    return give<uint32_t>(to, which == CLIENT ? (odd("odd-client") ? 100 : sizeof __hostcall_client) : 8);
  default: misuse("an unknown attribute of a symbol");
  }
}

hsa_status_t hsa_queue_create(hsa_agent_t agent, uint32_t size, hsa_queue_type32_t type,
                              void (*callback)(hsa_status_t, hsa_queue_t *, void *), void *data, uint32_t, uint32_t,
                              hsa_queue_t **to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  if (size & (size - 1)) misuse("a queue's size is a power of two");
  auto *queue = new Queue{};
  queue->queue.type = type;
  queue->queue.size = size;
  queue->queue.base_address = std::aligned_alloc(64, 64 * size);
  for (uint32_t at = 0; at < size; at++)
    static_cast<hsa_kernel_dispatch_packet_t *>(queue->queue.base_address)[at].header = HSA_PACKET_TYPE_INVALID;
  queue->doorbell = signal(-1);
  queue->agent = agent.handle;
  queue->queue.doorbell_signal.handle = queue->doorbell;
  queue->callback = callback, queue->data = data;
  queue->thread = std::thread(serve, queue);
  queues[&queue->queue] = queue;
  *to = &queue->queue;
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_queue_destroy(hsa_queue_t *handle) {
  Queue *queue;
  {
    Guard guard(lock);
    if (!queues.count(handle)) misuse("no such queue");
    queue = queues.at(handle);
    queue->stop = true;
    changed.notify_all();
  }
  queue->thread.join();
  Guard guard(lock);
  no_signal(queue->doorbell);
  queues.erase(handle);
  std::free(queue->queue.base_address);
  delete queue;
  return HSA_STATUS_SUCCESS;
}
uint64_t hsa_queue_load_read_index_scacquire(const hsa_queue_t *queue) {
  Guard guard(lock);
  return queues.at(queue)->read;
}
uint64_t hsa_queue_load_write_index_relaxed(const hsa_queue_t *queue) {
  Guard guard(lock);
  return queues.at(queue)->written;
}
uint64_t hsa_queue_add_write_index_scacq_screl(const hsa_queue_t *queue, uint64_t value) {
  Guard guard(lock);
  auto before = queues.at(queue)->written;
  queues.at(queue)->written += value;
  return before;
}

hsa_status_t hsa_signal_create(hsa_signal_value_t initial, uint32_t, const hsa_agent_t *, hsa_signal_t *to) {
  Guard guard(lock);
  if (refuse()) return REFUSED;
  to->handle = signal(initial);
  return HSA_STATUS_SUCCESS;
}
hsa_status_t hsa_signal_destroy(hsa_signal_t signal) {
  Guard guard(lock);
  no_signal(signal.handle);
  return HSA_STATUS_SUCCESS;
}
void hsa_signal_store_screlease(hsa_signal_t signal, hsa_signal_value_t value) {
  Guard guard(lock);
  __atomic_store_n(&value_of(signal.handle), value, __ATOMIC_RELEASE);
  changed.notify_all();
}
void hsa_signal_add_screlease(hsa_signal_t signal, hsa_signal_value_t value) {
  Guard guard(lock);
  __atomic_fetch_add(&value_of(signal.handle), value, __ATOMIC_RELEASE);
  changed.notify_all();
}
hsa_signal_value_t hsa_signal_wait_scacquire(hsa_signal_t signal, hsa_signal_condition_t condition, hsa_signal_value_t value,
                                             uint64_t timeout, hsa_wait_state_t) {
  std::unique_lock<std::recursive_mutex> guard(lock);
  waits += 1;
  if (condition != HSA_SIGNAL_CONDITION_LT && condition != HSA_SIGNAL_CONDITION_NE) misuse("a condition that nobody waits for");
  auto now = [&] { return __atomic_load_n(&value_of(signal.handle), __ATOMIC_ACQUIRE); };
  // As on a device, a value that changes without a notice ends no wait.
  changed.wait_for(guard, std::chrono::nanoseconds(timeout),
                   [&] { return condition == HSA_SIGNAL_CONDITION_NE ? now() != value : now() < value; });
  return now();
}

} // extern "C"
