#!/usr/bin/env bash
# Runs the device header on the CPU against a small server: each client plain, under the address and undefined
# behaviour sanitizers, and under the thread sanitizer. The baseline client hands over by fences, which the thread
# sanitizer does not understand, so it is not run there.
set -euo pipefail
cd "$(dirname "$0")"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
flags=(-std=c++17 -O1 -g -pthread -Wall -Wextra -Werror)
run() { # name compiler options...
  echo "== $1"
  local compiler=$2
  shift 2
  $compiler "${flags[@]}" "$@" host_client.cpp -o "$out/test"
  timeout 300 "$out/test" >"$out/log" || { cat "$out/log"; echo "FAILED" >&2; exit 1; }
  tail -n 1 "$out/log"
}
for client in OURS SHARED FAST BASELINE; do
  run "$client, g++" g++ -O2 -DCLIENT_$client
  run "$client, address and undefined behaviour" g++ -fsanitize=address,undefined -fno-sanitize-recover=all -DCLIENT_$client
  [ $client = BASELINE ] || run "$client, threads" g++ -fsanitize=thread -DCLIENT_$client
done
if command -v clang++-22 >/dev/null; then
  for client in OURS FAST; do
    run "$client, clang++" clang++-22 -O2 -DCLIENT_$client
  done
fi
