// Start code and the little library of the loader's test programs, over the device header: for NVRTC (together with the
// program, -default-device), for clang's NVPTX and AMDGPU targets (linked as bitcode), and for the CPU, where the stand-ins
// fake_driver.cpp and fake_hsa.cpp run it.
#define HOSTCALL_DEFINE_CLIENT
#include "hostcall.h"
#include "start.h"

using hostcall::Packet;
using hostcall::u32;
using hostcall::u64;

#if defined(__CUDACC__) && !defined(__clang__)
#define KERNEL(name) extern "C" __global__ void name
#define OBJECT __device__
#elif defined(HOSTCALL_NVPTX)
#define KERNEL(name) extern "C" __attribute__((nvptx_kernel)) void name
#define OBJECT __attribute__((used, visibility("protected")))
#elif defined(HOSTCALL_AMDGPU)
#define KERNEL(name) extern "C" __attribute__((amdgpu_kernel, visibility("protected"))) void name
#define OBJECT __attribute__((used, visibility("protected")))
#else
#define KERNEL(name) extern "C" void cpu##name
#define OBJECT
#define START_ON_CPU 1
#endif

// The program's main, by a name that is free everywhere: programs are compiled with -Dmain=program_main.
extern "C" int program_main(int argc, char **argv, char **envp);

extern "C" {

OBJECT int constructed;
static HOSTCALL_FN void first_constructor() { constructed = 1; }
static HOSTCALL_FN void second_constructor() { constructed = constructed == 1 ? 12 : 99; }
static HOSTCALL_FN void destructor() { hostcall::print("destroyed\n"); }

using Callback = void (*)();
#if defined(HOSTCALL_AMDGPU)
// The linker sorts these and defines where they begin and end.
#define ENTRY(section_name) __attribute__((used, section(section_name))) static Callback
ENTRY(".init_array.200") second_entry = second_constructor;
ENTRY(".init_array.101") first_entry = first_constructor;
ENTRY(".fini_array") last_entry = destructor;
#define BOUND extern __attribute__((visibility("hidden"))) Callback
BOUND __init_array_start[], __init_array_end[], __fini_array_start[], __fini_array_end[];
#else
// As LLVM's compiler leaves them for the loader to collect; not in the order of their priorities.
OBJECT Callback __init_array_object_second_200 = second_constructor;
OBJECT Callback __init_array_object_first_101 = first_constructor;
OBJECT Callback __fini_array_object_only_65535 = destructor;
OBJECT Callback *__init_array_start = nullptr;
OBJECT Callback *__init_array_end = nullptr;
OBJECT Callback *__fini_array_start = nullptr;
OBJECT Callback *__fini_array_end = nullptr;
#endif

} // extern "C"

KERNEL(_begin)(int, char **, char **) {
  for (Callback *entry = __init_array_start; entry != __init_array_end; ++entry)
    (*entry)();
}

KERNEL(_start)(int argc, char **argv, char **envp, int *result) {
  hostcall::detail::or_acquire_gpu((u32 *)result, (u32)program_main(argc, argv, envp));
}

KERNEL(_end)() {
  for (Callback *entry = __fini_array_end; entry != __fini_array_start;)
    (*--entry)();
}

// Once each, however often the program calls them.
#define OUTLINE __attribute__((noinline))
extern "C" {

OUTLINE unsigned long gpu_print(const char *text) { return hostcall::print(text); }
OUTLINE unsigned long gpu_complain(const char *text) { return hostcall::eprint(text); }

OUTLINE unsigned long gpu_read_line(char *line, unsigned long size) {
  hostcall::Port port(0x63000007); // fgets
  port.send([&](Packet &packet) {
    packet.set_word(0, size);
    packet.set_word(1, 1); // standard input
  });
  u64 length = port.recv_stream(line, size);
  return length ? length - 1 : 0; // with its NUL
}

OUTLINE unsigned long gpu_open(const char *path, const char *mode) {
  hostcall::Port port(0x63000008);
  port.send_stream(path, hostcall::detail::text_length(path) + 1);
  port.send([&](Packet &packet) {
    u64 word = 0; // modes are short
    for (u32 at = 0; mode[at]; ++at)
      word |= (u64)(unsigned char)mode[at] << 8 * at;
    packet.set_word(0, word);
  });
  u64 file = 0;
  port.recv([&](Packet &packet) { file = packet.word(0); });
  return file;
}
OUTLINE unsigned long gpu_write(unsigned long file, const char *text) {
  hostcall::Port port(0x63000004);
  port.send([&](Packet &packet) { packet.set_word(0, file); });
  port.send_stream(text, hostcall::detail::text_length(text));
  u64 written = 0;
  port.recv([&](Packet &packet) { written = packet.word(0); });
  return written;
}
OUTLINE int gpu_system(const char *command) {
  hostcall::Port port(0x6300001d);
  port.send_stream(command, hostcall::detail::text_length(command) + 1);
  u64 status = 0;
  port.recv([&](Packet &packet) { status = packet.word(0); });
  return (int)status;
}
OUTLINE void *gpu_malloc(unsigned long size) { return (void *)hostcall::call<u64>(0x6300000a, (u64)size); }
OUTLINE void gpu_free(void *memory) { hostcall::notify(0x6300000b, (u64)memory); }
OUTLINE void gpu_exit(int status) { hostcall::exit(status); }
OUTLINE void gpu_abort(void) { hostcall::abort(); }
OUTLINE unsigned long gpu_unknown(void) { return hostcall::call<u64>(0x7a000063, 77ull); }
int gpu_constructed(void) { return constructed; }

#if defined(START_ON_CPU)
extern void fake_trap();
void gpu_trap(void) { fake_trap(); }
unsigned gpu_thread(void) { return 0; }
#else
#if defined(HOSTCALL_AMDGPU)
void gpu_trap(void) { __builtin_trap(); }
#else
void gpu_trap(void) { asm volatile("trap;"); }
#endif
unsigned gpu_thread(void) { return hostcall::detail::group_number() * 32 + hostcall::detail::lane_id(); }
#endif

int gpu_equal(const char *a, const char *b) {
  for (; *a && *a == *b; ++a, ++b) {
  }
  return *a == *b;
}
int gpu_number(const char *text) {
  int number = 0;
  for (; *text >= '0' && *text <= '9'; ++text)
    number = number * 10 + (*text - '0');
  return number;
}

} // extern "C"
