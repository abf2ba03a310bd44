// hostcall.h: calls from device code to the host program.
//
// One header, C++17, no other file needed. It compiles with nvcc, NVRTC, clang for CUDA and HIP, clang for
// freestanding C++ on nvptx64 and amdgcn, and with any GCC or clang for the CPU, where a lane group is one
// thread. PROTOCOL.md section numbers stand for the description of the wire in the repository.
//
//   #define HOSTCALL_DEFINE_CLIENT          // in one translation unit of the program
//   #include "hostcall.h"
//
//   __global__ void kernel() {
//     unsigned long long answer = hostcall::call<unsigned long long>(0x78000001, 41ull);
//     hostcall::print("hello from the device\n");
//   }
//
// Before the first launch the host copies the 552 bytes of its client image to the symbol
// `__hostcall_client` (cuModuleGetGlobal, hsa_executable_get_symbol, or a memcpy on the CPU).
//
// Macros to define before the include
//   HOSTCALL_DEFINE_CLIENT   define the client objects here. Everywhere else they are declared `extern`.
//   HOSTCALL_CLIENT_SYMBOL   name of the client object, `__hostcall_client` unless defined. With
//                            `__llvm_rpc_client` LLVM's loaders publish it; see HOSTCALL_SHARED_CLIENT.
//   HOSTCALL_SHARED_CLIENT   1 where other code (LLVM's libc, say) uses the same client object. Ports are then
//                            locked by LLVM's lock bits and both mailboxes are read at every open.
//                            Default: 1 if HOSTCALL_CLIENT_SYMBOL is defined, else 0.
//   HOSTCALL_FAST            1 adds namespace hostcall::fast: the same functions on the crate's own faster wire, and
//                            its client object `__hostcall_fast_client` of 16448 bytes, for a server that was
//                            built for that wire. LLVM's servers do not speak it.
//
// nvcc and NVRTC keep the symbols local to the module unless the program is compiled with -rdc=true; give that
// option (or nvrtcAddNameExpression) where the host looks symbols up by name.
//
// Lanes. A function marked *collective* is called by all lanes of a group at the same place: the lanes that
// were together when the port was opened (for free functions: that are together at the call). A group may be
// any subset of a warp, and groups of one warp may hold different ports at the same time. All lanes of a
// port do the same operations in the same order; a lane must not leave its port early. What differs from lane
// to lane is data only: the values, stream addresses and lengths. Opcodes are uniform.
//
// Unpublished client. While the client object is all zero, open() gives an invalid port: it tests false,
// its operations do nothing, replies are zero, status() is Status::NoServer. Nothing is dereferenced.
//
// Publishing again. The host may copy a new image at any time when no kernel that uses it runs. It needs to
// know nothing of the state that this header keeps: see `State`.
#ifndef HOSTCALL_H
#define HOSTCALL_H

// ---- Target ----------------------------------------------------------------------------------------------

#if defined(__AMDGPU__) || defined(__HIP__)
#define HOSTCALL_AMDGPU 1
#elif defined(__NVPTX__) || defined(__CUDA_ARCH__) || defined(__CUDACC__) || defined(__CUDA__)
#define HOSTCALL_NVPTX 1
#else
#define HOSTCALL_CPU 1
#endif

#if defined(__CUDACC__) && !defined(__clang__)
#define HOSTCALL_FN __device__ inline
#define HOSTCALL_PRIMITIVE __device__ __forceinline__
#define HOSTCALL_OBJECT __device__
#elif defined(__clang__) && (defined(__CUDA__) || defined(__HIP__))
#define HOSTCALL_FN __attribute__((device)) inline
#define HOSTCALL_PRIMITIVE __attribute__((device, always_inline)) inline
#define HOSTCALL_OBJECT __attribute__((device, visibility("protected")))
#elif defined(HOSTCALL_CPU)
#define HOSTCALL_FN inline
#define HOSTCALL_PRIMITIVE inline
#define HOSTCALL_OBJECT
#else
#define HOSTCALL_FN inline
#define HOSTCALL_PRIMITIVE __attribute__((always_inline)) inline
#define HOSTCALL_OBJECT __attribute__((visibility("protected")))
#endif

// A kernel that the host finds by its name, for every compiler: `HOSTCALL_KERNEL work(u32 n) { ... }`.
#if defined(__CUDACC__) && !defined(__clang__)
#define HOSTCALL_KERNEL extern "C" __global__ void
#elif defined(__CUDA__) || defined(__HIP__)
#define HOSTCALL_KERNEL extern "C" __attribute__((global)) void
#elif defined(HOSTCALL_NVPTX)
#define HOSTCALL_KERNEL extern "C" __attribute__((nvptx_kernel)) void
#elif defined(HOSTCALL_AMDGPU)
#define HOSTCALL_KERNEL extern "C" __attribute__((amdgpu_kernel, visibility("protected"))) void
#else
#define HOSTCALL_KERNEL extern "C" void
#endif

#if !defined(HOSTCALL_CLIENT_SYMBOL)
#define HOSTCALL_CLIENT_SYMBOL __hostcall_client
#if !defined(HOSTCALL_SHARED_CLIENT)
#define HOSTCALL_SHARED_CLIENT 0
#endif
#elif !defined(HOSTCALL_SHARED_CLIENT)
#define HOSTCALL_SHARED_CLIENT 1
#endif

#if !defined(HOSTCALL_FAST)
#define HOSTCALL_FAST 0
#endif

#if defined(__clang__) || defined(__CUDACC__)
#define HOSTCALL_UNROLL _Pragma("unroll")
#else
#define HOSTCALL_UNROLL
#endif

// For constant sizes only: a copy of run-time size becomes a loop over bytes on a device.
#if defined(__CUDACC__) && !defined(__clang__)
#define HOSTCALL_COPY memcpy
#else
#define HOSTCALL_COPY __builtin_memcpy
#endif

#if !defined(HOSTCALL_DEFINE_CLIENT)
#define HOSTCALL_DECLARE extern
#elif defined(__clang__)
#define HOSTCALL_DECLARE __attribute__((used))
#else
#define HOSTCALL_DECLARE
#endif

#if defined(HOSTCALL_CPU) && defined(__has_include)
#if __has_include(<sched.h>)
#include <sched.h>
#define HOSTCALL_HAS_SCHED 1
#endif
#endif

namespace hostcall {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using usize = decltype(sizeof(0));

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void *) == 8, "a 64-bit target");

// ---- Primitives of the target ----------------------------------------------------------------------------
//
// "sys" reaches the host, "gpu" the device. The host sees loads and stores only: LLVM 22 drops order and
// scope of read-modify-writes on NVPTX, and PCIe has none to offer. The `*_gpu` read-modify-writes are for
// words in device memory. Those with order say so in PTX, because device-scope builtins widen to the system.

namespace detail {

#if defined(HOSTCALL_NVPTX)

using Mask = u32;
inline constexpr u32 kMaxLanes = 32;

HOSTCALL_PRIMITIVE u32 lane_width() { return 32; }

HOSTCALL_PRIMITIVE u32 lane_id() {
  u32 id;
  asm("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
}

#if defined(__clang__)
HOSTCALL_PRIMITIVE Mask lane_mask() { return __nvvm_activemask(); }
HOSTCALL_PRIMITIVE void raw_sync(Mask mask) { __nvvm_bar_warp_sync(mask); }
HOSTCALL_PRIMITIVE u32 raw_ballot(Mask mask, bool value) { return __nvvm_vote_ballot_sync(mask, value); }
HOSTCALL_PRIMITIVE u32 raw_shuffle(Mask mask, u32 value, u32 lane) {
  return (u32)__nvvm_shfl_sync_idx_i32(mask, (int)value, (int)lane, 31);
}
HOSTCALL_PRIMITIVE u32 first_lane(Mask mask) { return (u32)__builtin_ctz(mask); }
HOSTCALL_PRIMITIVE u32 count_lanes(Mask mask) { return (u32)__builtin_popcount(mask); }
#else
HOSTCALL_PRIMITIVE Mask lane_mask() { return __activemask(); }
HOSTCALL_PRIMITIVE void raw_sync(Mask mask) { __syncwarp(mask); }
HOSTCALL_PRIMITIVE u32 raw_ballot(Mask mask, bool value) { return __ballot_sync(mask, value); }
HOSTCALL_PRIMITIVE u32 raw_shuffle(Mask mask, u32 value, u32 lane) { return __shfl_sync(mask, value, (int)lane); }
HOSTCALL_PRIMITIVE u32 first_lane(Mask mask) { return (u32)__ffs((int)mask) - 1; }
HOSTCALL_PRIMITIVE u32 count_lanes(Mask mask) { return (u32)__popc(mask); }
#endif

// Runs a warp operation over `mask` for one group at a time.
//
// Two groups of a warp may come to the same instruction together, each with a mask of its own. For such an
// operation ptxas looks at the mask of one lane; where that group is complete, all lanes that are there go on,
// also those whose own group is not (seen on an H200: lanes passed a barrier without their leader).
template <class Operation> HOSTCALL_PRIMITIVE void one_group_at_a_time(Mask mask, Operation operation) {
  for (bool waiting = true; waiting;) {
    const Mask here = lane_mask();
    if (raw_shuffle(here, mask, first_lane(here)) == mask) {
      operation();
      waiting = false;
    }
  }
}
HOSTCALL_PRIMITIVE void lanes_sync(Mask mask) {
  one_group_at_a_time(mask, [&] { raw_sync(mask); });
}
HOSTCALL_PRIMITIVE bool lanes_any(Mask mask, bool value) {
  bool any = false;
  one_group_at_a_time(mask, [&] { any = raw_ballot(mask, value) != 0; });
  return any;
}
HOSTCALL_PRIMITIVE u32 from_first_lane(Mask mask, u32 value) {
  u32 result = 0;
  one_group_at_a_time(mask, [&] { result = raw_shuffle(mask, value, first_lane(mask)); });
  return result;
}

HOSTCALL_PRIMITIVE u32 load_relaxed_sys(const u32 *at) {
  u32 value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
HOSTCALL_PRIMITIVE u32 load_acquire_sys(const u32 *at) {
  u32 value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
HOSTCALL_PRIMITIVE void store_relaxed_sys(u32 *at, u32 value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}
HOSTCALL_PRIMITIVE void store_release_sys(u32 *at, u32 value) {
  asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}
// Payload, ordered by the mailbox operations around it.
HOSTCALL_PRIMITIVE u64 load_word(const u64 *at) {
  u64 value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
HOSTCALL_PRIMITIVE void store_word(u64 *at, u64 value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}
// Two neighbouring words at a multiple of 16 bytes in one access. Each is atomic, both together need not be.
HOSTCALL_PRIMITIVE void load_pair(const u64 *at, u64 &low, u64 &high) {
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
}
HOSTCALL_PRIMITIVE void load_pair_acquire(const u64 *at, u64 &low, u64 &high) {
  asm volatile("ld.acquire.sys.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
}
HOSTCALL_PRIMITIVE void store_pair(u64 *at, u64 low, u64 high) {
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" : : "l"(at), "l"(low), "l"(high) : "memory");
}

HOSTCALL_PRIMITIVE u32 load_relaxed_gpu(const u32 *at) {
  u32 value;
  asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
HOSTCALL_PRIMITIVE void store_release_gpu(u32 *at, u32 value) {
  asm volatile("st.release.gpu.u32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}
HOSTCALL_PRIMITIVE u32 or_acquire_gpu(u32 *at, u32 bits) {
  u32 old;
  asm volatile("atom.acquire.gpu.or.b32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(bits) : "memory");
  return old;
}
HOSTCALL_PRIMITIVE u32 or_relaxed_gpu(u32 *at, u32 bits) {
  u32 old;
  asm volatile("atom.relaxed.gpu.or.b32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(bits) : "memory");
  return old;
}
HOSTCALL_PRIMITIVE void store_relaxed_gpu(u32 *at, u32 value) {
  asm volatile("st.relaxed.gpu.u32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}
// What the lanes did before lanes_before_release is visible to whoever sees a pair that this lane stores after it.
HOSTCALL_PRIMITIVE void fence_before_pairs() { asm volatile("fence.acq_rel.sys; // before the pairs" : : : "memory"); }
HOSTCALL_PRIMITIVE void and_release_gpu(u32 *at, u32 bits) {
  asm volatile("red.release.gpu.and.b32 [%0], %1;" : : "l"(at), "r"(bits) : "memory");
}
HOSTCALL_PRIMITIVE u32 add_relaxed_gpu(u32 *at, u32 value) {
  u32 old;
  asm volatile("atom.relaxed.gpu.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(value) : "memory");
  return old;
}
HOSTCALL_PRIMITIVE u32 swap_if_acquire_gpu(u32 *at, u32 expected, u32 value) {
  u32 old;
  asm volatile("atom.acquire.gpu.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(at), "r"(expected), "r"(value)
               : "memory");
  return old;
}

// A barrier makes the lanes' accesses precede what the first lane releases, and what it acquired precede the
// lanes' accesses: release and acquire are cumulative, so one lane's is enough.
HOSTCALL_PRIMITIVE void lanes_before_release(Mask mask) { lanes_sync(mask); }
HOSTCALL_PRIMITIVE void lanes_after_acquire(Mask mask) { lanes_sync(mask); }
HOSTCALL_PRIMITIVE void lanes_before_unlock(Mask mask) { lanes_sync(mask); }
HOSTCALL_PRIMITIVE void lanes_after_lock(Mask mask) { lanes_sync(mask); }

HOSTCALL_PRIMITIVE void doze(u32 tries) {
  if (tries >= 64) {
    u32 nanoseconds = tries >= 1024 ? 1000 : 100;
    asm volatile("nanosleep.u32 %0;" : : "r"(nanoseconds));
  }
}
HOSTCALL_PRIMITIVE void end_thread() { asm volatile("exit;"); }

HOSTCALL_PRIMITIVE u32 group_number() {
  u32 x, y, z, nx, ny, tx, ty, tz, mx, my, mz;
  asm("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  asm("mov.u32 %0, %%ctaid.y;" : "=r"(y));
  asm("mov.u32 %0, %%ctaid.z;" : "=r"(z));
  asm("mov.u32 %0, %%nctaid.x;" : "=r"(nx));
  asm("mov.u32 %0, %%nctaid.y;" : "=r"(ny));
  asm("mov.u32 %0, %%tid.x;" : "=r"(tx));
  asm("mov.u32 %0, %%tid.y;" : "=r"(ty));
  asm("mov.u32 %0, %%tid.z;" : "=r"(tz));
  asm("mov.u32 %0, %%ntid.x;" : "=r"(mx));
  asm("mov.u32 %0, %%ntid.y;" : "=r"(my));
  asm("mov.u32 %0, %%ntid.z;" : "=r"(mz));
  u32 block = x + nx * (y + ny * z), thread = tx + mx * (ty + my * tz);
  return block * ((mx * my * mz + 31) / 32) + thread / 32;
}

#elif defined(HOSTCALL_AMDGPU)

using Mask = u64;
inline constexpr u32 kMaxLanes = 64;

HOSTCALL_PRIMITIVE u32 lane_width() { return (u32)__builtin_amdgcn_wavefrontsize(); }
HOSTCALL_PRIMITIVE u32 lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
HOSTCALL_PRIMITIVE Mask lane_mask() { return __builtin_amdgcn_read_exec(); }
HOSTCALL_PRIMITIVE void lanes_sync(Mask) { __builtin_amdgcn_wave_barrier(); }
HOSTCALL_PRIMITIVE bool lanes_any(Mask mask, bool value) { return (mask & __builtin_amdgcn_ballot_w64(value)) != 0; }
HOSTCALL_PRIMITIVE u32 first_lane(Mask mask) { return (u32)__builtin_ctzll(mask); }
HOSTCALL_PRIMITIVE u32 count_lanes(Mask mask) { return (u32)__builtin_popcountll(mask); }
HOSTCALL_PRIMITIVE u32 from_first_lane(Mask, u32 value) { return (u32)__builtin_amdgcn_readfirstlane((int)value); }

HOSTCALL_PRIMITIVE u32 load_relaxed_sys(const u32 *at) {
  return __scoped_atomic_load_n(at, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE u32 load_acquire_sys(const u32 *at) {
  return __scoped_atomic_load_n(at, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE void store_relaxed_sys(u32 *at, u32 value) {
  __scoped_atomic_store_n(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE void store_release_sys(u32 *at, u32 value) {
  __scoped_atomic_store_n(at, value, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE u64 load_word(const u64 *at) {
  return __scoped_atomic_load_n(at, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE void store_word(u64 *at, u64 value) {
  __scoped_atomic_store_n(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE void load_pair(const u64 *at, u64 &low, u64 &high) {
  low = load_word(at);
  high = load_word(at + 1);
}
HOSTCALL_PRIMITIVE void load_pair_acquire(const u64 *at, u64 &low, u64 &high) {
  load_pair(at, low, high);
  __scoped_atomic_thread_fence(__ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE void store_pair(u64 *at, u64 low, u64 high) {
  store_word(at, low);
  store_word(at + 1, high);
}

HOSTCALL_PRIMITIVE u32 load_relaxed_gpu(const u32 *at) {
  return __scoped_atomic_load_n(at, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
HOSTCALL_PRIMITIVE void store_release_gpu(u32 *at, u32 value) {
  __scoped_atomic_store_n(at, value, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
}
HOSTCALL_PRIMITIVE u32 or_acquire_gpu(u32 *at, u32 bits) {
  return __scoped_atomic_fetch_or(at, bits, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE);
}
HOSTCALL_PRIMITIVE u32 or_relaxed_gpu(u32 *at, u32 bits) {
  return __scoped_atomic_fetch_or(at, bits, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
HOSTCALL_PRIMITIVE void store_relaxed_gpu(u32 *at, u32 value) {
  __scoped_atomic_store_n(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
// lanes_before_release has done it.
HOSTCALL_PRIMITIVE void fence_before_pairs() {}
HOSTCALL_PRIMITIVE void and_release_gpu(u32 *at, u32 bits) {
  __scoped_atomic_fetch_and(at, bits, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
}
HOSTCALL_PRIMITIVE u32 add_relaxed_gpu(u32 *at, u32 value) {
  return __scoped_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
HOSTCALL_PRIMITIVE u32 swap_if_acquire_gpu(u32 *at, u32 expected, u32 value) {
  __scoped_atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE,
                                     __MEMORY_SCOPE_DEVICE);
  return expected;
}

// A wave barrier orders nothing here, so every lane has the fence; it is one instruction for the wave.
HOSTCALL_PRIMITIVE void lanes_before_release(Mask) {
  __scoped_atomic_thread_fence(__ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
  __builtin_amdgcn_wave_barrier();
}
HOSTCALL_PRIMITIVE void lanes_after_acquire(Mask) {
  __builtin_amdgcn_wave_barrier();
  __scoped_atomic_thread_fence(__ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM);
}
HOSTCALL_PRIMITIVE void lanes_before_unlock(Mask) {
  __scoped_atomic_thread_fence(__ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
  __builtin_amdgcn_wave_barrier();
}
HOSTCALL_PRIMITIVE void lanes_after_lock(Mask) {
  __builtin_amdgcn_wave_barrier();
  __scoped_atomic_thread_fence(__ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE);
}

HOSTCALL_PRIMITIVE void doze(u32 tries) {
  if (tries >= 64)
    __builtin_amdgcn_s_sleep(8);
}
HOSTCALL_PRIMITIVE void end_thread() { __builtin_amdgcn_endpgm(); }

HOSTCALL_PRIMITIVE u32 group_number() {
  u32 mx = __builtin_amdgcn_workgroup_size_x(), my = __builtin_amdgcn_workgroup_size_y();
  u32 mz = __builtin_amdgcn_workgroup_size_z(), width = lane_width();
  u32 nx = __builtin_amdgcn_grid_size_x() / mx, ny = __builtin_amdgcn_grid_size_y() / my;
  u32 block = __builtin_amdgcn_workgroup_id_x() +
              nx * (__builtin_amdgcn_workgroup_id_y() + ny * __builtin_amdgcn_workgroup_id_z());
  u32 thread = __builtin_amdgcn_workitem_id_x() +
               mx * (__builtin_amdgcn_workitem_id_y() + my * __builtin_amdgcn_workitem_id_z());
  return from_first_lane(0, block * ((mx * my * mz + width - 1) / width) + thread / width);
}

#else // CPU: a lane group is a thread.

using Mask = u32;
inline constexpr u32 kMaxLanes = 1;

HOSTCALL_PRIMITIVE u32 lane_width() { return 1; }
HOSTCALL_PRIMITIVE u32 lane_id() { return 0; }
HOSTCALL_PRIMITIVE Mask lane_mask() { return 1; }
HOSTCALL_PRIMITIVE void lanes_sync(Mask) {}
HOSTCALL_PRIMITIVE bool lanes_any(Mask, bool value) { return value; }
HOSTCALL_PRIMITIVE u32 first_lane(Mask) { return 0; }
HOSTCALL_PRIMITIVE u32 count_lanes(Mask mask) { return mask & 1; }
HOSTCALL_PRIMITIVE u32 from_first_lane(Mask, u32 value) { return value; }

HOSTCALL_PRIMITIVE u32 load_relaxed_sys(const u32 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE u32 load_acquire_sys(const u32 *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
HOSTCALL_PRIMITIVE void store_relaxed_sys(u32 *at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE void store_release_sys(u32 *at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
HOSTCALL_PRIMITIVE u64 load_word(const u64 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE void store_word(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE void load_pair(const u64 *at, u64 &low, u64 &high) {
  low = load_word(at);
  high = load_word(at + 1);
}
HOSTCALL_PRIMITIVE void load_pair_acquire(const u64 *at, u64 &low, u64 &high) {
  low = __atomic_load_n(at, __ATOMIC_ACQUIRE);
  high = __atomic_load_n(at + 1, __ATOMIC_ACQUIRE);
}
// Releases, for a fence of its own is nothing that the thread sanitizer understands.
HOSTCALL_PRIMITIVE void store_pair(u64 *at, u64 low, u64 high) {
  __atomic_store_n(at + 1, high, __ATOMIC_RELEASE);
  __atomic_store_n(at, low, __ATOMIC_RELEASE);
}
HOSTCALL_PRIMITIVE void fence_before_pairs() {}
HOSTCALL_PRIMITIVE u32 load_relaxed_gpu(const u32 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE void store_release_gpu(u32 *at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
HOSTCALL_PRIMITIVE u32 or_acquire_gpu(u32 *at, u32 bits) { return __atomic_fetch_or(at, bits, __ATOMIC_ACQUIRE); }
HOSTCALL_PRIMITIVE u32 or_relaxed_gpu(u32 *at, u32 bits) { return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE void store_relaxed_gpu(u32 *at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE void and_release_gpu(u32 *at, u32 bits) { __atomic_fetch_and(at, bits, __ATOMIC_RELEASE); }
HOSTCALL_PRIMITIVE u32 add_relaxed_gpu(u32 *at, u32 value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
HOSTCALL_PRIMITIVE u32 swap_if_acquire_gpu(u32 *at, u32 expected, u32 value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
  return expected;
}
HOSTCALL_PRIMITIVE void lanes_before_release(Mask) {}
HOSTCALL_PRIMITIVE void lanes_after_acquire(Mask) {}
HOSTCALL_PRIMITIVE void lanes_before_unlock(Mask) {}
HOSTCALL_PRIMITIVE void lanes_after_lock(Mask) {}

HOSTCALL_PRIMITIVE void doze(u32 tries) {
#if defined(HOSTCALL_HAS_SCHED)
  if (tries >= 64)
    sched_yield();
#else
  (void)tries;
#endif
}
// A thread that asked the host to end the process waits for that to happen.
HOSTCALL_PRIMITIVE void end_thread() {
  for (;;)
    doze(64);
}

inline u32 threads_seen = 0;
HOSTCALL_PRIMITIVE u32 group_number() {
  thread_local const u32 number = __atomic_fetch_add(&threads_seen, 1, __ATOMIC_RELAXED);
  return number;
}

#endif

HOSTCALL_PRIMITIVE u64 lanes_below(u32 lane) { return (u64(1) << lane) - 1; }

// The lane's place among the lanes of the mask.
HOSTCALL_PRIMITIVE u32 rank_in(Mask mask) { return count_lanes(mask & Mask(lanes_below(lane_id()))); }

HOSTCALL_PRIMITIVE bool is_multiple_of(const void *address, u64 size) { return ((u64)address & (size - 1)) == 0; }

// Up to eight bytes of the caller's memory as a word, padded with zeros. Nothing outside is touched.
HOSTCALL_PRIMITIVE u64 read_bytes(const u8 *from, u64 size) {
  u64 word = 0;
  for (u32 i = 0; i < size; ++i)
    word |= (u64)from[i] << (8 * i);
  return word;
}
HOSTCALL_PRIMITIVE void write_bytes(u8 *to, u64 word, u64 size) {
  for (u32 i = 0; i < size; ++i)
    to[i] = (u8)(word >> (8 * i));
}
HOSTCALL_PRIMITIVE u64 read_whole(const u8 *from) {
  u64 word;
  if (is_multiple_of(from, 8)) {
    HOSTCALL_COPY(&word, __builtin_assume_aligned(from, 8), 8);
  } else if (is_multiple_of(from, 4)) {
    u32 low, high;
    HOSTCALL_COPY(&low, __builtin_assume_aligned(from, 4), 4);
    HOSTCALL_COPY(&high, __builtin_assume_aligned(from + 4, 4), 4);
    word = (u64)high << 32 | low;
  } else {
    word = read_bytes(from, 8);
  }
  return word;
}
HOSTCALL_PRIMITIVE void write_whole(u8 *to, u64 word) {
  if (is_multiple_of(to, 8)) {
    HOSTCALL_COPY(__builtin_assume_aligned(to, 8), &word, 8);
  } else if (is_multiple_of(to, 4)) {
    u32 low = (u32)word, high = (u32)(word >> 32);
    HOSTCALL_COPY(__builtin_assume_aligned(to, 4), &low, 4);
    HOSTCALL_COPY(__builtin_assume_aligned(to + 4, 4), &high, 4);
  } else {
    write_bytes(to, word, 8);
  }
}

// The words of a value of at most 64 bytes.
template <class T> struct Words {
  static_assert(sizeof(T) <= 64, "a value has at most 64 bytes; send longer ones as a stream");
  static_assert(__is_trivially_copyable(T), "a value must be trivially copyable");
  static constexpr u32 count = (sizeof(T) + 7) / 8;
};

template <class View, class T> HOSTCALL_PRIMITIVE void put_value(View &view, const T &value) {
  // From a copy of its own: NVRTC reads what it cannot see the alignment of byte by byte.
  const T copy = value;
  u64 words[Words<T>::count] = {};
  HOSTCALL_COPY(words, &copy, sizeof(T));
  view.set_words(words, Words<T>::count);
}
template <class T, class View> HOSTCALL_PRIMITIVE T get_value(const View &view) {
  u64 words[Words<T>::count];
  view.words(0, words, Words<T>::count);
  T value{};
  HOSTCALL_COPY(&value, words, sizeof(T));
  return value;
}

} // namespace detail

// ---- What both wires share -------------------------------------------------------------------------------

// Most ports that a client object has room for.
inline constexpr u32 kMaxPorts = 4096;

// Opcodes of the C library that this header knows to speak (PROTOCOL.md 4.2).
inline constexpr u32 kExit = 0x63000001;
inline constexpr u32 kWriteToStdout = 0x63000002;
inline constexpr u32 kWriteToStderr = 0x63000003;
inline constexpr u32 kAbort = 0x6300000d;

// How the server ended a conversation. LLVM's servers always leave Ok.
enum class Status : u32 {
  Ok = 0,
  UnknownOpcode = 1,   // no handler is registered
  HandlerFailed = 2,   // the handler returned an error
  DeadlineExpired = 3, // the conversation made no progress
  ShuttingDown = 4,    // the server stops
  Protocol = 5,        // the packet belongs to no conversation
  NoServer = 0xffffffff // the client object was never published
};

namespace detail {

// Sends `size` bytes of each lane as a stream: length, then bytes, 56 in the first packet and 64 in each other.
template <class P> HOSTCALL_FN void send_stream(P &port, const void *data, u64 size) {
  using Outgoing = typename P::Outgoing;
  const u8 *next = (const u8 *)data;
  u64 left = size;
  auto fill = [&](Outgoing &packet, u32 first) {
    u64 words[8];
    u32 used = first;
    words[0] = size;
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; ++i) {
      if (i >= first && left > 0) {
        u64 some = left < 8 ? left : 8;
        words[i] = some == 8 ? read_whole(next) : read_bytes(next, some);
        next += some;
        left -= some;
        used = i + 1;
      }
    }
    packet.set_words(words, used);
  };
  port.send([&](Outgoing &packet) { fill(packet, 1); });
  while (lanes_any(port.mask(), left > 0))
    port.send([&](Outgoing &packet) { fill(packet, 0); });
}

// Receives a stream. Keeps the first `max` bytes, takes in all.
template <class P> HOSTCALL_FN u64 recv_stream(P &port, void *data, u64 max) {
  using Incoming = typename P::Incoming;
  u8 *next = (u8 *)data;
  u64 size = 0, left = 0, room = 0;
  auto take = [&](const Incoming &packet, u32 first) {
    u64 here = 8 * (u64)(8 - first), keep = left < here ? left : here;
    left -= keep;
    if (keep > room)
      keep = room;
    room -= keep;
    u64 words[8];
    packet.words(first, words, (u32)((keep + 7) / 8));
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; ++i) {
      if (keep > 0) {
        u64 some = keep < 8 ? keep : 8;
        if (some == 8)
          write_whole(next, words[i]);
        else
          write_bytes(next, words[i], some);
        next += some;
        keep -= some;
      }
    }
  };
  port.recv([&](Incoming &packet) {
    size = left = packet.word(0);
    room = left < max ? left : max;
    take(packet, 1);
  });
  while (lanes_any(port.mask(), left > 0))
    port.recv([&](Incoming &packet) { take(packet, 0); });
  return size;
}

HOSTCALL_FN u64 text_length(const char *text) {
  u64 length = 0;
  if (text)
    while (text[length])
      ++length;
  return length;
}

// EXIT and ABORT: a handshake, so that everything sent before has been served, then the order.
template <class P> HOSTCALL_FN void ask_for_end(P &port, u32 status) {
  port.send([](typename P::Outgoing &) {});
  port.recv([](typename P::Incoming &) {});
  port.send([&](typename P::Outgoing &packet) { packet.set_word(0, status); });
}

template <class P> HOSTCALL_FN u64 write(u32 opcode, const void *data, u64 size) {
  u64 written = 0;
  P port(opcode);
  port.send_stream(data, size);
  port.recv([&](typename P::Incoming &packet) { written = packet.word(0); });
  return written;
}

// For EXIT and ABORT; the port is closed before the lanes end.
template <class P> HOSTCALL_FN void request_end(u32 opcode, u32 status) {
  P port(opcode);
  ask_for_end(port, status);
}

} // namespace detail

// ---- The client object -----------------------------------------------------------------------------------

// What a client writes when it opens a port. The server may leave a status.
struct Header {
  u64 mask;
  u32 opcode;
  u32 status;
};

// The object that the host publishes: LLVM 20 to 22's, 552 bytes (PROTOCOL.md 1.4). Addresses are the device's.
struct Client {
  u32 port_count;
  u32 padding;
  u32 *inbox;      // written by the server
  u32 *outbox;     // written by the client
  Header *headers; // one for each port
  u64 *slots;      // eight words for each lane of each port
  u32 locks[128];  // zero in every image; the device's
};
static_assert(sizeof(Header) == 16 && sizeof(Client) == 552, "LLVM 20 to 22");

// What the client remembers of the ports, so that it need not read mailboxes over the bus to open one.
//
// port[i] is `epoch << 3 | pending << 2 | out << 1 | locked`. `out` is what the client last wrote into its
// mailbox; `pending` says that the server had the port when it was closed. The word is true for one
// publication only. Each publication has an epoch: the published image's last lock word is zero, and the first
// lane group that finds it so puts a number there that was never used before, counted in `epochs`. A word of
// another epoch, the zero of a new module included, is replaced by whoever takes the port first, from what
// the mailboxes say; also a lock that a killed kernel left behind. So the host publishes its 552 bytes over
// old or new shared memory, whatever the mailboxes hold, and nothing else.
//
// One published image at a time may use a server's ports: locks are the image's, as with LLVM.
struct State {
  u32 epochs;
  u32 port[kMaxPorts];
};

} // namespace hostcall

extern "C" {
HOSTCALL_DECLARE HOSTCALL_OBJECT hostcall::Client HOSTCALL_CLIENT_SYMBOL;
#if !HOSTCALL_SHARED_CLIENT
HOSTCALL_DECLARE HOSTCALL_OBJECT hostcall::State __hostcall_state;
#endif
}

namespace hostcall {

// A lane's 64 bytes of the port, while the client owns it. Every access is one to host memory: a write is
// cheap, a read waits for the bus. Words run from 0 to 7.
class Packet {
public:
  HOSTCALL_PRIMITIVE explicit Packet(u64 *slot) : slot_(slot) {}

  HOSTCALL_PRIMITIVE u64 word(u32 index) const { return detail::load_word(slot_ + index); }
  HOSTCALL_PRIMITIVE void set_word(u32 index, u64 value) { detail::store_word(slot_ + index, value); }

  // The first bytes as a value of type T, trivially copyable and at most 64 bytes.
  template <class T> HOSTCALL_PRIMITIVE T value() const { return detail::get_value<T>(*this); }
  template <class T> HOSTCALL_PRIMITIVE void set_value(const T &value) { detail::put_value(*this, value); }

  // Reads `count` words from word `first` on. All loads are under way before the first is waited for.
  HOSTCALL_PRIMITIVE void words(u32 first, u64 *into, u32 count) const {
    const u64 *from = slot_ + first;
    const bool pairs = detail::is_multiple_of(from, 16);
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; i += 2) {
      if (pairs && i + 1 < count) {
        detail::load_pair(from + i, into[i], into[i + 1]);
      } else {
        if (i < count)
          into[i] = detail::load_word(from + i);
        if (i + 1 < count)
          into[i + 1] = detail::load_word(from + i + 1);
      }
    }
  }
  // Writes the first `count` words.
  HOSTCALL_PRIMITIVE void set_words(const u64 *from, u32 count) {
    const bool pairs = detail::is_multiple_of(slot_, 16);
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; i += 2) {
      if (pairs && i + 1 < count) {
        detail::store_pair(slot_ + i, from[i], from[i + 1]);
      } else {
        if (i < count)
          detail::store_word(slot_ + i, from[i]);
        if (i + 1 < count)
          detail::store_word(slot_ + i + 1, from[i + 1]);
      }
    }
  }

private:
  u64 *slot_;
};

namespace detail {

inline constexpr u32 kNoPort = 0xffffffff;
inline constexpr u32 kLocked = 1;

HOSTCALL_PRIMITIVE u32 usable_ports(const Client &client) {
  if (client.port_count == 0 || !client.inbox || !client.outbox || !client.headers || !client.slots)
    return 0;
  return client.port_count < kMaxPorts ? client.port_count : kMaxPorts;
}

#if HOSTCALL_SHARED_CLIENT

HOSTCALL_PRIMITIVE u32 epoch_word(Client &) { return 0; }
HOSTCALL_PRIMITIVE u32 publication(Client &, u32) { return 0; }

HOSTCALL_PRIMITIVE void release_port(Client &client, u32, u32 index, u32, bool) {
  and_release_gpu(&client.locks[index / 32], ~(1u << (index % 32)));
}

HOSTCALL_PRIMITIVE bool looks_taken(Client &client, u32, u32 index) {
  return (load_relaxed_gpu(&client.locks[index / 32]) >> (index % 32) & 1) != 0;
}

HOSTCALL_FN bool try_take(Client &client, u32 epoch, u32 index, u32 &out) {
  u32 bit = 1u << (index % 32);
  if (or_acquire_gpu(&client.locks[index / 32], bit) & bit)
    return false;
  out = load_relaxed_sys(client.outbox + index);
  if (load_acquire_sys(client.inbox + index) == out)
    return true;
  release_port(client, epoch, index, out, true);
  return false;
}

#else

inline constexpr u32 kOut = 2, kPending = 4, kEpochShift = 3, kEpochs = 1u << 29;

HOSTCALL_PRIMITIVE u32 epoch_word(Client &client) { return load_relaxed_gpu(&client.locks[127]); }

// The number of the published image, never 0, given what stands in its epoch word.
HOSTCALL_FN u32 publication(Client &client, u32 epoch) {
  if (epoch == 0) {
    u32 next = (add_relaxed_gpu(&__hostcall_state.epochs, 1) + 1) % kEpochs;
    if (next == 0)
      next = (add_relaxed_gpu(&__hostcall_state.epochs, 1) + 1) % kEpochs;
    u32 found = swap_if_acquire_gpu(&client.locks[127], 0, next);
    epoch = found ? found : next;
  }
  return epoch;
}

HOSTCALL_PRIMITIVE void release_port(Client &, u32 epoch, u32 index, u32 out, bool pending) {
  u32 word = epoch << kEpochShift | (pending ? kPending : 0) | (out ? kOut : 0);
  store_release_gpu(&__hostcall_state.port[index], word);
}

HOSTCALL_PRIMITIVE bool looks_taken(Client &, u32 epoch, u32 index) {
  u32 word = load_relaxed_gpu(&__hostcall_state.port[index]);
  return word >> kEpochShift == epoch && (word & kLocked);
}

HOSTCALL_FN bool try_take(Client &client, u32 epoch, u32 index, u32 &out) {
  u32 *word = &__hostcall_state.port[index];
  u32 old = or_acquire_gpu(word, kLocked);
  bool ask = (old & kPending) != 0;
  if (old >> kEpochShift != epoch) {
    // Of an earlier publication, its lock too. One of those who see that wins; the others find the port locked.
    u32 stale = old | kLocked;
    if (swap_if_acquire_gpu(word, stale, epoch << kEpochShift | kLocked) != stale)
      return false;
    out = load_relaxed_sys(client.outbox + index);
    ask = true;
  } else {
    if (old & kLocked)
      return false;
    out = (old & kOut) ? 1 : 0;
  }
  if (!ask || load_acquire_sys(client.inbox + index) == out)
    return true;
  release_port(client, epoch, index, out, true);
  return false;
}

#endif

// For the first lane of a group: looks for a port from the group's own number on, until there is one. Returns
// `index << 1 | out`.
HOSTCALL_FN u32 take_port(Client &client, u32 ports, u32 epoch) {
  const u32 home = group_number() % ports;
  u32 index = home, out = 0;
  for (u32 rounds = 0; !try_take(client, epoch, index, out);) {
    do {
      index = index + 1 == ports ? 0 : index + 1;
      if (index == home)
        doze(64 + rounds++);
    } while (looks_taken(client, epoch, index));
  }
  return index << 1 | out;
}

} // namespace detail

// ---- Port ------------------------------------------------------------------------------------------------

// A conversation with the server, from open() to the end of its scope. Belongs to the lanes that opened it.
//
// The first operation is a send. After the last operation, send or receive, the port may be closed; what was
// sent is served all the same, so a notification is a send and a close.
class Port {
public:
  // What send() and recv() give to their callables.
  using Outgoing = Packet;
  using Incoming = Packet;

  // See open().
  HOSTCALL_FN explicit Port(u32 opcode)
      : mask_(detail::lane_mask()), index_(detail::kNoPort), out_(0), epoch_(0), owned_(true), received_(false),
        inbox_(nullptr), outbox_(nullptr), slot_(nullptr) {
    // All loads from the client object go out together and before the lock, whose acquire empties the first cache.
    epoch_ = detail::epoch_word(client());
    const u32 ports = detail::usable_ports(client());
    const u32 *const inboxes = client().inbox;
    u32 *const outboxes = client().outbox;
    Header *const headers = client().headers;
    u64 *const slots = client().slots;
    if (ports == 0)
      return;
    u32 taken = 0;
    if (leads()) {
      epoch_ = detail::publication(client(), epoch_);
      taken = detail::take_port(client(), ports, epoch_);
    }
    taken = detail::from_first_lane(mask_, taken);
    index_ = taken >> 1;
    out_ = taken & 1;
    inbox_ = inboxes + index_;
    outbox_ = outboxes + index_;
    slot_ = slots + ((u64)index_ * detail::lane_width() + detail::lane_id()) * 8;
    detail::lanes_after_lock(mask_);
    if (leads())
      write_header(headers + index_, opcode);
  }
  Port(const Port &) = delete;
  Port &operator=(const Port &) = delete;

  // Collective. The same as close().
  HOSTCALL_FN ~Port() { close(); }

  // False where no client was published, and after close(). Uniform.
  HOSTCALL_PRIMITIVE explicit operator bool() const { return index_ != detail::kNoPort; }

  // The port's number. Uniform.
  HOSTCALL_PRIMITIVE u32 index() const { return index_; }

  // The lanes of the conversation, bit j for lane j. Uniform.
  HOSTCALL_PRIMITIVE detail::Mask mask() const { return mask_; }

  // Collective. Sends a packet: each lane's `fill` is called once with its own Packet to write. Words not
  // written keep what they had. Waits until it is the client's turn, not for the server to read. What the
  // lanes wrote before, also elsewhere, is visible to the handler.
  template <class Fill> HOSTCALL_PRIMITIVE void send(Fill fill) {
    if (!*this)
      return;
    wait();
    Packet packet(slot_);
    fill(packet);
    hand_over();
    received_ = false;
  }

  // Collective. Receives a packet: waits for the server and calls each lane's `read` once with its own Packet.
  // What the handler wrote before, also elsewhere, is visible to the lanes.
  template <class Read> HOSTCALL_PRIMITIVE void recv(Read read) {
    if (!*this)
      return;
    if (received_)
      hand_over();
    wait();
    Packet packet(slot_);
    read(packet);
    received_ = true;
  }

  // Collective. Sends `size` bytes from `data`, each lane its own (PROTOCOL.md 3.1). Zero is allowed, then `data` may be null.
  HOSTCALL_FN void send_stream(const void *data, u64 size) {
    if (*this)
      detail::send_stream(*this, data, size);
  }

  // Collective. Receives a stream into `data`, each lane its own. Returns the length of the lane's message. Where that
  // is more than `max`, all of it is received and the first `max` bytes are kept.
  HOSTCALL_FN u64 recv_stream(void *data, u64 max) {
    return *this ? detail::recv_stream(*this, data, max) : 0;
  }

  // Collective. What the server says of the conversation; meaningful after a recv. A read over the bus.
  // A server that refused has cleared the packets: values received are zeros, streams empty. Uniform.
  HOSTCALL_FN Status status() const {
    if (!*this)
      return Status::NoServer;
    u32 value = leads() ? detail::load_relaxed_sys(&client().headers[index_].status) : 0;
    return (Status)detail::from_first_lane(mask_, value);
  }

  // Collective. Ends the conversation and begins another on the same port, without giving the port up: cheaper
  // than close and open. Waits where the last operation was a send. Others cannot use the port in between.
  HOSTCALL_FN void reopen(u32 opcode) {
    if (!*this)
      return;
    wait();
    detail::lanes_sync(mask_);
    if (leads())
      write_header(client().headers + index_, opcode);
    received_ = false;
  }

  // Collective. Ends the conversation and gives the port up. Does not wait for the server. No-op when closed.
  HOSTCALL_FN void close() {
    if (!*this)
      return;
    detail::lanes_before_unlock(mask_);
    if (leads())
      detail::release_port(client(), epoch_, index_, out_, !owned_);
    index_ = detail::kNoPort;
  }

private:
  HOSTCALL_PRIMITIVE static Client &client() { return HOSTCALL_CLIENT_SYMBOL; }
  HOSTCALL_PRIMITIVE bool leads() const { return detail::lane_id() == detail::first_lane(mask_); }

  // All 16 bytes: the server crosses the opcode out and leaves a status.
  HOSTCALL_PRIMITIVE void write_header(Header *header, u32 opcode) const {
    u64 *words = (u64 *)header;
    if (detail::is_multiple_of(words, 16)) {
      detail::store_pair(words, mask_, opcode);
    } else {
      detail::store_word(words, mask_);
      detail::store_word(words + 1, opcode);
    }
  }

  // Until the client owns the port: one lane looks, the others stand at the barrier.
  HOSTCALL_PRIMITIVE void wait() {
    if (owned_)
      return;
    if (leads())
      for (u32 tries = 0; detail::load_acquire_sys(inbox_) != out_; ++tries)
        detail::doze(tries);
    detail::lanes_after_acquire(mask_);
    owned_ = true;
  }

  HOSTCALL_PRIMITIVE void hand_over() {
    out_ ^= 1;
    detail::lanes_before_release(mask_);
    if (leads())
      detail::store_release_sys(outbox_, out_);
    owned_ = false;
  }

  detail::Mask mask_;
  u32 index_;
  u32 out_;
  u32 epoch_; // the first lane's only
  bool owned_;
  bool received_;
  const u32 *inbox_;
  u32 *outbox_;
  u64 *slot_;
};

// Collective. Opens a port for the lanes that are together here; tries on as long as all ports are in use. The port is
// invalid where no client was published. Who holds a port and opens another needs ports to spare: twice as many as
// groups may do so at once, or they wait for each other.
HOSTCALL_PRIMITIVE Port open(u32 opcode) { return Port(opcode); }
template <u32 opcode> HOSTCALL_PRIMITIVE Port open() { return Port(opcode); }

// Collective. One value to the host, one value back, for each lane. Both trivially copyable and at most 64
// bytes; a Reply is value-initialised first. Zeros where the server refused: see try_call().
template <class Reply, class Request> HOSTCALL_FN Reply call(u32 opcode, const Request &request) {
  Reply reply{};
  Port port(opcode);
  port.send([&](Packet &packet) { packet.set_value(request); });
  port.recv([&](Packet &packet) { reply = packet.value<Reply>(); });
  return reply;
}

// Collective. As call(), into `reply`, and says how it went, which costs a read over the bus more. `reply` is
// left alone where no client was published. The status is uniform.
template <class Reply, class Request>
HOSTCALL_FN Status try_call(u32 opcode, const Request &request, Reply &reply) {
  Port port(opcode);
  port.send([&](Packet &packet) { packet.set_value(request); });
  port.recv([&](Packet &packet) { reply = packet.value<Reply>(); });
  return port.status();
}

// Collective. One value of each lane that nobody waits for. Served even if the kernel ends right after,
// as long as the server drains.
template <class Message> HOSTCALL_FN void notify(u32 opcode, const Message &message) {
  Port port(opcode);
  port.send([&](Packet &packet) { packet.set_value(message); });
}

// Collective. Writes `size` bytes of each lane to an output stream of the host program; `opcode` is kWriteToStdout or
// kWriteToStderr. Lanes are written in order, each in one piece. Returns the bytes written, 0 on refusal.
HOSTCALL_FN u64 write(u32 opcode, const void *data, u64 size) { return detail::write<Port>(opcode, data, size); }

// Collective. Writes each lane's text to the host's standard output. Null prints nothing. Returns the bytes written.
HOSTCALL_FN u64 print(const char *text) { return write(kWriteToStdout, text, detail::text_length(text)); }

// Collective. As print(), to the host's standard error.
HOSTCALL_FN u64 eprint(const char *text) { return write(kWriteToStderr, text, detail::text_length(text)); }

// Collective. Asks the host to end the program with `status` once everything sent before by these lanes has been
// served. Returns when the order is out; the first lane's status counts.
HOSTCALL_FN void request_exit(u32 status) { detail::request_end<Port>(kExit, status); }

// Collective. request_exit(), then the end of the calling lanes. On the CPU the thread waits for the end of
// the process. Does not return.
HOSTCALL_FN void exit(int status) {
  request_exit((u32)status);
  detail::end_thread();
}

// Collective. As exit(), for a program that must not go on: the host aborts.
HOSTCALL_FN void abort() {
  detail::request_end<Port>(kAbort, 0);
  detail::end_thread();
}

} // namespace hostcall

// ---- The faster wire -------------------------------------------------------------------------------------

#if HOSTCALL_FAST

namespace hostcall {
namespace fast {

// The crate's own wire: the same conversations, fewer steps over the bus. Mailboxes count flips (24 bits) where
// LLVM's toggle, and every 8-byte word of a short message carries the count, so that it needs no fence and no
// separate flag: a request of one word per lane is stores alone, a reply of one word per lane is complete in
// the load that finds it. Only 8-byte words need to be atomic. Longer messages go through packets, ordered by
// release and acquire.
//
// Tagged word: `data << 32 | count << 8 | meta`. Cell: two of them, the halves of one u64. Rank: a lane's number
// among the active lanes; messages lie by rank.

// The object that the host publishes as `__hostcall_fast_client`; its size, 16448 bytes, names the interface.
struct Client {
  u32 version; // 1; 0 while unpublished
  u32 port_count;
  u32 lane_width; // lanes that the blocks have room for
  u32 zero;
  u32 *doorbells; // [port] client's count
  u64 *requests;  // [port] block of 8 + 2 * lane_width words, see Block
  u64 *replies;   // [port] cells of lane_width ranks
  u64 *packets;   // [port] 8 rows of lane_width words: word k of rank r at k * lane_width + r
  u64 reserved[2];
  u32 port[kMaxPorts]; // count << 8 | pending << 1 | locked. The host writes the counts that the server is at.
};
static_assert(sizeof(Client) == 64 + 4 * kMaxPorts, "version 1");

// Words of a request block.
enum Block : u32 {
  kLow = 0,      // low half of rank 0's word; meta: kind, kOpening, kWhole
  kHigh = 1,     // high half; meta: words of each lane in the packet
  kOpcode = 2,   // in an opening packet only, as the masks
  kMaskLow = 3,  //
  kMaskHigh = 4, // where lane_width > 32
  kCells = 8     // cell of rank r at kCells + 2 * r, r >= 1
};

// What a message is made of.
enum Kind : u32 {
  kNothing = 0, // a flip alone, all words zero
  kWord = 1,    // one word for each lane, in cells
  kPacket = 2   // up to eight, in the packet
};

inline constexpr u32 kOpening = 0x80;
// The message is there as a whole once the doorbell says so.
inline constexpr u32 kWhole = 0x40;

// What a send orders besides itself.
enum class Order {
  Ordered, // all that the lanes wrote before is visible to the handler, as with hostcall::Port
  Alone    // the message only; half a microsecond sooner
};

} // namespace fast
} // namespace hostcall

extern "C" {
HOSTCALL_DECLARE HOSTCALL_OBJECT hostcall::fast::Client __hostcall_fast_client;
}

namespace hostcall {
namespace fast {

namespace detail {
using namespace hostcall::detail;

inline constexpr u32 kCountMask = 0xffffff;
inline constexpr u32 kPendingBit = 2;
// A sender whose count is a multiple of this writes all its tagged words, so that none is ever as old as
// the counter is long.
inline constexpr u32 kRefresh = 0x10000;
// Polls in which every lane looks at its own cell; then only the first lane does.
inline constexpr u32 kWidePolls = 3;

HOSTCALL_PRIMITIVE u64 tagged(u32 data, u32 count, u32 meta) { return (u64)data << 32 | count << 8 | meta; }
HOSTCALL_PRIMITIVE bool is_of(u64 word, u32 count) { return (u32)word >> 8 == count; }
HOSTCALL_PRIMITIVE u32 meta_of(u64 word) { return (u32)word & 0xff; }
HOSTCALL_PRIMITIVE u32 data_of(u64 word) { return (u32)(word >> 32); }

HOSTCALL_PRIMITIVE u32 usable_ports(const Client &client) {
  if (client.version != 1 || client.lane_width < lane_width() || !client.doorbells)
    return 0;
  return client.port_count < kMaxPorts ? client.port_count : kMaxPorts;
}

// A port's word orders nothing: all that it guards carries counts. Whoever opens the port writes a request once
// the server has answered the last one, so has seen all of it. Only reads of a packet have to be over before, see
// Port::close.
HOSTCALL_PRIMITIVE u32 port_word(u32 count, bool pending) { return count << 8 | (pending ? kPendingBit : 0); }

HOSTCALL_FN bool try_take(Client &client, u32 index, u32 &count) {
  const u32 old = or_relaxed_gpu(&client.port[index], kLocked);
  if (old & kLocked)
    return false;
  count = old >> 8;
  if (!(old & kPendingBit))
    return true;
  u64 low, high;
  load_pair_acquire(client.replies + (u64)index * client.lane_width * 2, low, high);
  if (is_of(low, count) && is_of(high, count))
    return true;
  store_relaxed_gpu(&client.port[index], port_word(count, true));
  return false;
}

// For the first lane of a group, as detail::take_port.
HOSTCALL_FN u32 take_port(Client &client, u32 ports, u32 &count) {
  const u32 home = group_number() % ports;
  u32 index = home;
  for (u32 rounds = 0; !try_take(client, index, count);) {
    do {
      index = index + 1 == ports ? 0 : index + 1;
      if (index == home)
        doze(64 + rounds++);
    } while (load_relaxed_gpu(&client.port[index]) & kLocked);
  }
  return index;
}

} // namespace detail

// A lane's message on its way out, in registers. What is not set is zero or, behind the last word set by any
// lane, not sent.
class Outgoing {
public:
  HOSTCALL_PRIMITIVE Outgoing() : used_(0) {
    // Not `words_{}`, which NVRTC copies from a constant in memory.
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; ++i)
      words_[i] = 0;
  }
  HOSTCALL_PRIMITIVE void set_word(u32 index, u64 value) {
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; ++i)
      if (i == index)
        words_[i] = value;
    used_ = index < used_ ? used_ : index + 1;
  }
  template <class T> HOSTCALL_PRIMITIVE void set_value(const T &value) { detail::put_value(*this, value); }
  HOSTCALL_PRIMITIVE void set_words(const u64 *from, u32 count) {
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; ++i)
      if (i < count)
        words_[i] = from[i];
    used_ = count < used_ ? used_ : count;
  }

private:
  friend class Port;
  u64 words_[8];
  u32 used_;
};

// A lane's message that came in: the first word in a register, more of them over the bus.
class Incoming {
public:
  HOSTCALL_PRIMITIVE u64 word(u32 index) const {
    if (kind_ == kPacket)
      return index < rows_ ? detail::load_word(column_ + (u64)index * width_) : 0;
    return index == 0 ? first_ : 0;
  }
  template <class T> HOSTCALL_PRIMITIVE T value() const { return detail::get_value<T>(*this); }
  HOSTCALL_PRIMITIVE void words(u32 first, u64 *into, u32 count) const {
    HOSTCALL_UNROLL
    for (u32 i = 0; i < 8; ++i)
      if (i < count)
        into[i] = word(first + i);
  }

private:
  friend class Port;
  u32 kind_;
  u32 rows_;
  u32 width_;
  u64 first_;
  const u64 *column_;
};

// As hostcall::Port, on the faster wire; callables get Outgoing and Incoming. Differences: every send is a whole
// new message, no word keeps what it had; status() reads nothing over the bus.
class Port {
public:
  using Outgoing = fast::Outgoing;
  using Incoming = fast::Incoming;

  HOSTCALL_FN explicit Port(u32 opcode)
      : mask_(detail::lane_mask()), index_(detail::kNoPort), count_(0), rank_(0), width_(0), opcode_(opcode),
        kind_(kNothing), rows_(0), status_(0), opening_(true), owned_(true), received_(false), had_packet_(false), doorbell_(nullptr),
        request_(nullptr), reply_(nullptr), column_(nullptr), word_(0) {
    const u32 ports = detail::usable_ports(client());
    width_ = client().lane_width;
    u32 *const doorbells = client().doorbells;
    u64 *const requests = client().requests, *const replies = client().replies, *const packets = client().packets;
    if (ports == 0)
      return;
    rank_ = detail::rank_in(mask_);
    u32 index = 0, count = 0;
    if (leads())
      index = detail::take_port(client(), ports, count);
    index_ = detail::from_first_lane(mask_, index);
    count_ = detail::from_first_lane(mask_, count);
    doorbell_ = doorbells + index_;
    request_ = requests + (u64)index_ * (kCells + 2 * width_);
    reply_ = replies + ((u64)index_ * width_ + rank_) * 2;
    column_ = packets + (u64)index_ * width_ * 8 + rank_;
  }
  Port(const Port &) = delete;
  Port &operator=(const Port &) = delete;
  HOSTCALL_FN ~Port() { close(); }

  HOSTCALL_PRIMITIVE explicit operator bool() const { return index_ != detail::kNoPort; }
  HOSTCALL_PRIMITIVE u32 index() const { return index_; }
  HOSTCALL_PRIMITIVE detail::Mask mask() const { return mask_; }

  // Collective.
  template <class Fill> HOSTCALL_PRIMITIVE void send(Fill fill, Order order = Order::Ordered) {
    if (!*this)
      return;
    wait();
    Outgoing message;
    fill(message);
    if (!detail::lanes_any(mask_, message.used_ > 1)) {
      send_words(message.words_[0], order);
    } else {
      // The leading lane says how many rows there are for all.
      u32 rows = 2;
      HOSTCALL_UNROLL
      for (u32 k = 2; k < 8; ++k)
        if (detail::lanes_any(mask_, message.used_ > k))
          rows = k + 1;
      HOSTCALL_UNROLL
      for (u32 k = 0; k < 8; ++k)
        if (k < rows)
          detail::store_word(column_ + (u64)k * width_, message.words_[k]);
      hand_over(kPacket, rows, 0);
    }
    received_ = false;
  }

  // Collective.
  template <class Read> HOSTCALL_PRIMITIVE void recv(Read read) {
    if (!*this)
      return;
    if (received_)
      hand_over(kNothing, 0, 0);
    wait();
    Incoming message;
    message.kind_ = kind_;
    message.rows_ = rows_;
    message.width_ = width_;
    message.first_ = kind_ == kWord ? word_ : 0;
    message.column_ = column_;
    read(message);
    received_ = true;
  }

  // Collective.
  HOSTCALL_FN void send_stream(const void *data, u64 size) {
    if (*this)
      detail::send_stream(*this, data, size);
  }
  // Collective.
  HOSTCALL_FN u64 recv_stream(void *data, u64 max) {
    return *this ? detail::recv_stream(*this, data, max) : 0;
  }

  // What the server said first that was not Ok. Uniform; any lane may ask.
  HOSTCALL_PRIMITIVE Status status() const { return *this ? (Status)status_ : Status::NoServer; }

  // Collective.
  HOSTCALL_FN void reopen(u32 opcode) {
    if (!*this)
      return;
    wait();
    opcode_ = opcode;
    opening_ = true;
    received_ = false;
    status_ = 0;
  }

  // Collective.
  HOSTCALL_FN void close() {
    if (!*this)
      return;
    u32 *const word = &client().port[index_];
    const u32 value = detail::port_word(count_, !owned_);
    if (had_packet_) {
      detail::lanes_before_unlock(mask_);
      if (leads())
        detail::store_release_gpu(word, value);
    } else if (leads()) {
      detail::store_relaxed_gpu(word, value);
    }
    index_ = detail::kNoPort;
  }

private:
  HOSTCALL_PRIMITIVE static Client &client() { return __hostcall_fast_client; }
  HOSTCALL_PRIMITIVE bool leads() const { return detail::lane_id() == detail::first_lane(mask_); }

  HOSTCALL_PRIMITIVE void send_words(u64 word, Order order) {
    const u32 next = (count_ + 1) & detail::kCountMask;
    // Before the message and not behind it, where it would wait for the message to cross the bus. The server takes
    // no cell before it has that of the first lane.
    if (order == Order::Ordered) {
      detail::lanes_before_release(mask_);
      if (leads())
        detail::fence_before_pairs();
    }
    if (rank_ != 0)
      detail::store_pair(request_ + kCells + 2 * rank_, detail::tagged((u32)word, next, 0),
                         detail::tagged((u32)(word >> 32), next, 0));
    hand_over(kWord, 1, word);
  }

  // The first lane's part of a message, then the doorbell. What is no word of each lane is ordered by the doorbell.
  HOSTCALL_PRIMITIVE void hand_over(u32 kind, u32 rows, u64 word) {
    using namespace detail;
    count_ = (count_ + 1) & kCountMask;
    const bool whole = kind != kWord;
    if (whole)
      lanes_before_release(mask_);
    if (leads()) {
      if (count_ % kRefresh == 0)
        refresh(kind == kWord ? count_lanes(mask_) : 1);
      const u32 flags = (opening_ ? kOpening : 0) | (whole ? kWhole : 0);
      store_pair(request_, tagged((u32)word, count_, kind | flags),
                 tagged((u32)(word >> 32), count_, rows));
      if (opening_) {
        store_pair(request_ + kOpcode, tagged(opcode_, count_, 0), tagged((u32)mask_, count_, 0));
        if (width_ > 32)
          store_word(request_ + kMaskHigh, tagged((u32)((u64)mask_ >> 32), count_, 0));
      }
      if (whole)
        store_release_sys(doorbell_, count_);
      else
        store_relaxed_sys(doorbell_, count_);
    }
    opening_ = false;
    owned_ = false;
  }

  // All tagged words of the block that this message does not write.
  HOSTCALL_FN void refresh(u32 written) {
    for (u32 word = kOpcode; word < kCells; ++word)
      detail::store_word(request_ + word, detail::tagged(0, count_, 0));
    for (u32 rank = written; rank < width_; ++rank)
      detail::store_pair(request_ + kCells + 2 * rank, detail::tagged(0, count_, 0), detail::tagged(0, count_, 0));
  }

  // Until the reply is there, with each lane's word if it is that short.
  HOSTCALL_PRIMITIVE void wait() {
    using namespace detail;
    if (owned_)
      return;
    u32 found = 0;
    bool complete = false;
    u64 low = 0, high = 0;
    for (u32 tries = 0; !found; ++tries) {
      doze(tries);
      if (leads() || tries < kWidePolls) {
        load_pair_acquire(reply_, low, high);
        complete = is_of(low, count_) && is_of(high, count_);
      }
      found = from_first_lane(mask_, complete ? 0x10000 | meta_of(low) << 8 | meta_of(high) : 0);
    }
    kind_ = found >> 8 & 0x1f;
    if (kind_ == kPacket) {
      rows_ = found & 0xf;
      had_packet_ = true;
    } else if (kind_ == kNothing && status_ == 0) {
      status_ = found & 0xff; // the first reason stays
    }
    if (kind_ == kWord) {
      while (!complete) {
        load_pair_acquire(reply_, low, high);
        complete = is_of(low, count_) && is_of(high, count_);
      }
      word_ = (u64)data_of(high) << 32 | data_of(low);
    }
    lanes_after_acquire(mask_);
    owned_ = true;
  }

  detail::Mask mask_;
  u32 index_;
  u32 count_; // the client's; the server's, too, while the client owns the port
  u32 rank_;
  u32 width_;
  u32 opcode_;
  u32 kind_;
  u32 rows_;
  u32 status_;
  bool opening_;
  bool owned_;
  bool received_;
  bool had_packet_;
  u32 *doorbell_;
  u64 *request_;
  const u64 *reply_;
  u64 *column_;
  u64 word_;
};

// Collective. As the functions of the same names in namespace hostcall.
HOSTCALL_PRIMITIVE Port open(u32 opcode) { return Port(opcode); }
template <u32 opcode> HOSTCALL_PRIMITIVE Port open() { return Port(opcode); }

template <class Reply, class Request>
HOSTCALL_FN Status try_call(u32 opcode, const Request &request, Reply &reply, Order order = Order::Ordered) {
  Port port(opcode);
  port.send([&](Outgoing &message) { message.set_value(request); }, order);
  port.recv([&](Incoming &message) { reply = message.value<Reply>(); });
  return port.status();
}

template <class Reply, class Request>
HOSTCALL_FN Reply call(u32 opcode, const Request &request, Order order = Order::Ordered) {
  Reply reply{};
  try_call(opcode, request, reply, order);
  return reply;
}

template <class Message>
HOSTCALL_FN void notify(u32 opcode, const Message &message, Order order = Order::Ordered) {
  Port port(opcode);
  port.send([&](Outgoing &outgoing) { outgoing.set_value(message); }, order);
}

HOSTCALL_FN u64 write(u32 opcode, const void *data, u64 size) { return detail::write<Port>(opcode, data, size); }
HOSTCALL_FN u64 print(const char *text) { return write(kWriteToStdout, text, detail::text_length(text)); }
HOSTCALL_FN u64 eprint(const char *text) { return write(kWriteToStderr, text, detail::text_length(text)); }
HOSTCALL_FN void request_exit(u32 status) { detail::request_end<Port>(kExit, status); }
HOSTCALL_FN void exit(int status) {
  request_exit((u32)status);
  detail::end_thread();
}
HOSTCALL_FN void abort() {
  detail::request_end<Port>(kAbort, 0);
  detail::end_thread();
}

} // namespace fast
} // namespace hostcall

#endif // HOSTCALL_FAST

#endif // HOSTCALL_H
