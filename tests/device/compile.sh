#!/usr/bin/env bash
# Compiles the device header for every target and looks at what came out. Needs clang-22, lld-22, llvm-22 and g++; for
# NVRTC and ptxas a Python with venv (installs two wheels; HOSTCALL_CUDA_VENV names the place). No GPU.
# Without the wheels those steps are skipped, unless HOSTCALL_NEED_CUDA=1. nvcc is tried where it is on the PATH.
set -euo pipefail
cd "$(dirname "$0")"
for tool in clang-22 ld.lld-22 llvm-readelf-22 g++ python3; do
  command -v "$tool" >/dev/null || { echo "missing: $tool (apt-get install clang-22 lld-22 llvm-22 g++)" >&2; exit 1; }
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
flags=(-std=c++17 -O2 -Wall -Wextra -Werror)
sources=(kernels.cu ../../device/bench/bench.cu)
step() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

venv=${HOSTCALL_CUDA_VENV:-${TMPDIR:-/tmp}/hostcall-cuda-venv}
have_cuda=1
if ! ls "$venv"/lib/python3*/site-packages/nvidia/cuda_nvcc/bin/ptxas >/dev/null 2>&1; then
  { python3 -m venv "$venv" && "$venv/bin/pip" install -q nvidia-cuda-nvcc-cu12 nvidia-cuda-nvrtc-cu12; } || have_cuda=0
fi
if [ $have_cuda = 0 ]; then
  [ "${HOSTCALL_NEED_CUDA:-0}" = 0 ] || fail "the CUDA wheels do not install"
  echo "skipped: ptxas and NVRTC (the wheels do not install)"
fi
assemble() { # arch ptx
  [ $have_cuda = 1 ] || return 0
  "$venv"/lib/python3*/site-packages/nvidia/cuda_nvcc/bin/ptxas -arch="$1" "$2" -o "$out/cubin"
}

# Read-modify-writes have order and device scope; the host's words see loads and stores only.
check_ptx() { # ptx
  local bad
  bad=$(grep -nE '^\s*(@\S+\s+)?(atom|red)\.' "$1" | grep -vE '(atom|red)\.(relaxed|acquire|release|acq_rel)\.gpu\.' || true)
  [ -z "$bad" ] || fail "read-modify-write without order, or beyond the device: $bad"
  for symbol in __hostcall_client __hostcall_state; do
    grep -q "\.visible \.global.* $symbol\[" "$1" || fail "$symbol is not visible"
  done
}
# Our own clients need no separate fence but the one that says so; the baseline does.
check_no_fence() { ! grep -nE 'membar|fence\.' "$1" | grep -v 'before the pairs' || fail "a separate fence in $1"; }

for arch in sm_70 sm_90; do
  for source in "${sources[@]}"; do
    [ "$arch $source" != "sm_70 ${sources[1]}" ] || continue
    step "clang, freestanding, $arch, $(basename "$source")"
    clang-22 -x c++ --target=nvptx64-nvidia-cuda -march=$arch --cuda-feature=+ptx80 -ffreestanding -nogpulib \
      "${flags[@]}" -S "$source" -o "$out/ptx"
    check_ptx "$out/ptx"
    [ "$source" != kernels.cu ] || check_no_fence "$out/ptx"
    assemble $arch "$out/ptx"
    [ "$source" = kernels.cu ] || continue
    step "clang, CUDA, $arch, $(basename "$source")"
    clang-22 -x cuda -Wno-unknown-cuda-version --cuda-device-only --cuda-gpu-arch=$arch --cuda-feature=+ptx80 -nocudainc -nocudalib \
      "${flags[@]}" -S "$source" -o "$out/ptx"
    check_ptx "$out/ptx"
    assemble $arch "$out/ptx"
  done
done
step "clang, CUDA, host side"
clang-22 -x cuda -Wno-unknown-cuda-version --cuda-host-only -nocudainc -nocudalib "${flags[@]}" -fsyntax-only kernels.cu

for arch in gfx90a gfx942 gfx1100; do
  for source in "${sources[@]}"; do
    [ "$arch" = gfx90a ] || [ "$source" = kernels.cu ] || continue
    step "clang, freestanding, $arch, $(basename "$source")"
    clang-22 -x c++ --target=amdgcn-amd-amdhsa -mcpu=$arch -ffreestanding -nogpulib "${flags[@]}" "$source" \
      -o "$out/hsaco"
    llvm-readelf-22 --dyn-syms "$out/hsaco" | grep -E ' 552 OBJECT +GLOBAL PROTECTED .* __hostcall_client$' >/dev/null ||
      fail "the client object is not a dynamic symbol of 552 bytes"
  done
done
for arch in gfx90a gfx1100; do
  step "clang, HIP, $arch"
  clang-22 -x hip --offload-device-only --no-gpu-bundle-output --offload-arch=$arch -nogpuinc -nogpulib "${flags[@]}" \
    kernels.cu -o "$out/hip"
  llvm-readelf-22 --dyn-syms "$out/hip" | grep -E ' 552 OBJECT +GLOBAL PROTECTED .* __hostcall_client$' >/dev/null ||
    fail "the client object is not a dynamic symbol of 552 bytes"
done
step "clang, HIP, host side"
clang-22 -x hip --offload-host-only -nogpuinc -nogpulib "${flags[@]}" -fsyntax-only kernels.cu

step "a second translation unit"
grep -v 'define HOSTCALL_DEFINE_CLIENT' kernels.cu | sed 's#"../../device/hostcall.h"#"hostcall.h"#' >"$out/second.cu"
for target in "--target=nvptx64-nvidia-cuda -march=sm_90 --cuda-feature=+ptx80" "--target=amdgcn-amd-amdhsa -mcpu=gfx90a"; do
  # shellcheck disable=SC2086
  clang-22 -x c++ $target -ffreestanding -nogpulib "${flags[@]}" -I../../device -S "$out/second.cu" -o "$out/s"
done
g++ -x c++ "${flags[@]}" -I../../device -c "$out/second.cu" -o "$out/o"

step "another client symbol, locks shared with LLVM's code"
clang-22 -x c++ --target=nvptx64-nvidia-cuda -march=sm_90 --cuda-feature=+ptx80 -ffreestanding -nogpulib "${flags[@]}" \
  -DHOSTCALL_CLIENT_SYMBOL=__llvm_rpc_client -DHOSTCALL_FAST=0 -S kernels.cu -o "$out/ptx"
grep -q '\.visible \.global.* __llvm_rpc_client\[552\]' "$out/ptx" || fail "__llvm_rpc_client is not visible"
! grep -q __hostcall_state "$out/ptx" || fail "state that nobody needs"
assemble sm_90 "$out/ptx"

for compiler in g++ clang++-22; do
  step "$compiler, CPU"
  for source in host_shim.cpp "${sources[@]}"; do
    $compiler -x c++ "${flags[@]}" -pedantic -c "$source" -o "$out/o"
  done
  printf '#include "hostcall.h"\nint main() { return 0; }\n' >"$out/user.cpp"
  $compiler "${flags[@]}" -I../../device -c "$out/user.cpp" -o "$out/o"
done

if [ $have_cuda = 1 ]; then
  for arch in compute_70 compute_90; do
    for source in "${sources[@]}"; do
      step "NVRTC, $arch, $(basename "$source")"
      "$venv/bin/python" nvrtc.py $arch "$source" "$out/ptx"
      check_ptx "$out/ptx"
      assemble ${arch/compute/sm} "$out/ptx"
    done
  done
fi
if command -v nvcc >/dev/null; then
  step "nvcc"
  for options in "" "-rdc=true"; do
    nvcc -arch=sm_90 -std=c++17 -Werror all-warnings $options -c kernels.cu -o "$out/o"
  done
fi
echo ok
