// A stand-in for the driver's library, for tests where no GPU is: a device of one processor, whose kernels are threads of
// this process with warps of one lane. It knows the loader's test programs alone, whatever PTX it is given, and the kernels
// that the PTX names. Device addresses of pinned memory differ from the host's: the memory is mapped twice.
//
// FAKE_CUDA chooses faults: no-device, stub, no-memory, bad-ptx, new-ptx, lost (frees fail), no-launch.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <setjmp.h>
#include <sys/mman.h>
#include <unistd.h>

#include "start.cpp"

extern "C" {
#define main program_main
#include "program.c"
#undef main
}

namespace {

enum Result : int {
  Success = 0,
  InvalidValue = 1,
  OutOfMemory = 2,
  StubLibrary = 34,
  NoDevice = 100,
  InvalidPtx = 218,
  UnsupportedPtx = 222,
  NotFound = 500,
  NotReady = 600,
  LaunchFailed = 719,
};

bool wants(const char *what) {
  const char *fault = getenv("FAKE_CUDA");
  return fault && !strcmp(fault, what);
}

struct Pinned {
  void *device;
  size_t size;
};

std::mutex lock;
std::map<void *, Pinned> pinned; // by host address
std::atomic<int> broken{Success}; // sticky, as a real context's
std::atomic<int> running{0};
thread_local void *current = nullptr;
thread_local jmp_buf trap;
int a_context, a_stream, an_event;

struct Module {
  std::string text;
};

struct Kernel {
  const char *name;
  size_t parameters;
};
Kernel kernels[] = {{"_begin", 3}, {"_start", 4}, {"_end", 0}};

struct Variable {
  const char *name;
  void *address;
  size_t size;
};
#define VARIABLE(name) {#name, (void *)&name, sizeof name}
Variable variables[] = {
    VARIABLE(__hostcall_client),
    VARIABLE(__init_array_object_second_200),
    VARIABLE(__init_array_object_first_101),
    VARIABLE(__fini_array_object_only_65535),
    VARIABLE(__init_array_start),
    VARIABLE(__init_array_end),
    VARIABLE(__fini_array_start),
    VARIABLE(__fini_array_end),
};

void run(const Kernel *kernel, std::string parameters) {
  uint64_t words[4] = {};
  memcpy(words, parameters.data(), parameters.size());
  if (setjmp(trap)) {
    broken = LaunchFailed;
  } else if (kernel == &kernels[0]) {
    cpu_begin((int)words[0], (char **)words[1], (char **)words[2]);
  } else if (kernel == &kernels[1]) {
    cpu_start((int)words[0], (char **)words[1], (char **)words[2], (int *)words[3]);
  } else {
    cpu_end();
  }
  --running;
}

} // namespace

extern "C" {

void fake_trap() { longjmp(trap, 1); }

int cuInit(unsigned) { return wants("no-device") ? NoDevice : wants("stub") ? StubLibrary : Success; }
int cuGetErrorName(int error, const char **text) {
  *text = error == LaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OF_THE_FAKE";
  return Success;
}
int cuGetErrorString(int, const char **text) {
  *text = "as the test wants";
  return Success;
}

int cuDeviceGetCount(int *count) {
  *count = 1;
  return Success;
}
int cuDeviceGet(int *device, int) {
  *device = 0;
  return Success;
}
int cuDeviceGetName(char *name, int size, int) {
  snprintf(name, (size_t)size, "Fake GPU");
  return Success;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) {
  *bytes = 1 << 30;
  return Success;
}
int cuDeviceGetAttribute(int *value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1; // compute capability 9.0
  return Success;
}

int cuDevicePrimaryCtxRetain(void **context, int) {
  *context = &a_context;
  return Success;
}
int cuDevicePrimaryCtxRelease_v2(int) { return Success; }
int cuCtxGetCurrent(void **context) {
  *context = current;
  return Success;
}
int cuCtxSetCurrent(void *context) {
  current = context;
  return Success;
}
int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
int cuCtxPopCurrent_v2(void **context) { return cuCtxGetCurrent(context); }
int cuCtxSynchronize() { return broken; }
int cuCtxSetLimit(int, size_t) { return Success; }

int cuMemHostAlloc(void **host, size_t size, unsigned flags) {
  if (flags & 4 || !current) // write-combined, no context
    return InvalidValue;
  if (wants("no-memory"))
    return OutOfMemory;
  int file = memfd_create("pinned", 0);
  if (file < 0 || ftruncate(file, (off_t)size) != 0)
    return OutOfMemory;
  void *at[2];
  for (void *&mapping : at)
    if ((mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED)
      return OutOfMemory;
  close(file);
  memset(at[0], 0xa5, size); // a driver does not promise zeros
  std::lock_guard<std::mutex> guard(lock);
  pinned[*host = at[0]] = {at[1], size};
  return Success;
}
int cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned) {
  std::lock_guard<std::mutex> guard(lock);
  *device = (uint64_t)pinned.at(host).device;
  return Success;
}
int cuMemFreeHost(void *host) {
  while (running && !broken) // as the real one
    usleep(1000);
  if (broken || wants("lost"))
    return broken ? (int)broken : InvalidValue;
  std::lock_guard<std::mutex> guard(lock);
  auto block = pinned.find(host);
  if (block == pinned.end()) {
    fputs("fake driver: freed what was not allocated\n", stderr);
    abort();
  }
  munmap(block->second.device, block->second.size);
  munmap(host, block->second.size);
  pinned.erase(block);
  return Success;
}

int cuModuleLoadDataEx(Module **module, const void *image, unsigned count, int *options, void **values) {
  if (wants("bad-ptx") || wants("new-ptx")) {
    for (unsigned i = 0; i < count; ++i)
      if (options[i] == 5) // the error log
        strcpy((char *)values[i], "\nptxas application ptx input, line 7; fatal : as the test wants\n");
    return wants("bad-ptx") ? InvalidPtx : UnsupportedPtx;
  }
  *module = new Module{(const char *)image};
  return Success;
}
int cuModuleUnload(Module *module) {
  delete module;
  return Success;
}
int cuModuleGetFunction(Kernel **function, Module *module, const char *name) {
  for (Kernel &kernel : kernels)
    if (!strcmp(name, kernel.name) && module->text.find(std::string(".entry ") + name) != std::string::npos) {
      *function = &kernel;
      return Success;
    }
  return NotFound;
}
int cuFuncGetParamInfo(Kernel *kernel, size_t index, size_t *offset, size_t *size) {
  *offset = *size = 8;
  return index < kernel->parameters ? Success : InvalidValue;
}
int cuModuleGetGlobal_v2(uint64_t *address, size_t *size, Module *module, const char *name) {
  for (Variable &variable : variables)
    if (!strcmp(name, variable.name) && module->text.find(name) != std::string::npos) {
      *address = (uint64_t)variable.address;
      *size = variable.size;
      return Success;
    }
  return NotFound;
}

int cuStreamCreate(void **stream, unsigned) {
  *stream = &a_stream;
  return broken;
}
int cuStreamSynchronize(void *) { return broken; }
int cuStreamDestroy_v2(void *) { return Success; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *) {
  memcpy((void *)to, from, size);
  // A server has ports for warps of 32; one lane finds its packets at the first port alone.
  if (to == (uint64_t)&__hostcall_client)
    __hostcall_client.port_count = 1;
  return broken;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *) {
  memcpy(to, (const void *)from, size);
  return broken;
}
int cuPointerGetAttribute(void *value, int, uint64_t) {
  *(unsigned *)value = 2; // device memory
  return Success;
}

int cuEventCreate(void **event, unsigned) {
  *event = &an_event;
  return Success;
}
int cuEventRecord(void *, void *) { return broken; }
int cuEventDestroy_v2(void *) { return Success; }
#if !defined(FAKE_OLD)
int cuEventQuery(void *) { return broken ? (int)broken : running ? NotReady : Success; }
#endif

int cuLaunchKernel(Kernel *kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **extra) {
  std::string parameters;
  if (extra) {
    if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4])
      return InvalidValue;
    parameters.assign((const char *)extra[1], *(size_t *)extra[3]);
  }
  const size_t expected[] = {24, 32, 0};
  if (parameters.size() != expected[kernel - kernels] || wants("no-launch"))
    return InvalidValue;
  ++running;
  std::thread(run, kernel, parameters).detach();
  return Success;
}

} // extern "C"
