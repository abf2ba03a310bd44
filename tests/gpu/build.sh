#!/usr/bin/env bash
# Compiles the loader's test programs with clang for NVPTX: build.sh FOLDER [sm_90]. Needs clang-22 and llvm-22.
# The PTX may be carried to a machine with a GPU: HOSTCALL_GPU_PROGRAMS=FOLDER for tests/cuda.rs. With an architecture and
# CUDA's ptxas (on the PATH, or PTXAS names it), machine code for it is made as well.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
arch=${2:-sm_70}
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
target=(--target=nvptx64-nvidia-cuda -march="$arch" --cuda-feature=+ptx80 -ffreestanding -nogpulib -fno-exceptions -O2 -Wall -Wextra -Werror)
clang-22 -x c++ -std=c++17 "${target[@]}" -I../../device -emit-llvm -c start.cpp -o "$work/start.bc"
clang-22 -x c -std=c11 -Dmain=program_main "${target[@]}" -emit-llvm -c program.c -o "$work/program.bc"
llvm-link-22 "$work/start.bc" "$work/program.bc" -o "$work/linked.bc"
clang-22 "${target[@]}" -Wno-unused-command-line-argument -S "$work/linked.bc" -o "$out/program.ptx"
echo "$out/program.ptx"
ptxas=${PTXAS:-$(command -v ptxas || true)}
if [ $# -ge 2 ] && [ -n "$ptxas" ]; then
  "$ptxas" -arch="$arch" "$out/program.ptx" -o "$out/program.cubin"
  echo "$out/program.cubin"
fi
