#!/usr/bin/env bash
# Compiles the loader's test programs with clang for AMDGPU and links a code object: build_amd.sh FOLDER gfx90a [OPTION]...
# Needs clang-22, llvm-22 and lld-22.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
arch=$2
shift 2
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
target=(--target=amdgcn-amd-amdhsa -mcpu="$arch" -ffreestanding -nogpulib -fno-exceptions -fvisibility=hidden -O2 -Wall -Wextra -Werror "$@")
clang-22 -x c++ -std=c++17 "${target[@]}" -I../../device -emit-llvm -c start.cpp -o "$work/start.bc"
clang-22 -x c -std=c11 -Dmain=program_main "${target[@]}" -emit-llvm -c program.c -o "$work/program.bc"
llvm-link-22 "$work/start.bc" "$work/program.bc" -o "$work/linked.bc"
clang-22 "${target[@]}" -Wno-unused-command-line-argument -c "$work/linked.bc" -o "$work/program.o"
ld.lld-22 -shared --no-undefined "$work/program.o" -o "$out/program-$arch.co"
echo "$out/program-$arch.co"
