#!/usr/bin/env bash
# Builds the CPU engine and sanitize*.cpp with AddressSanitizer + UndefinedBehaviorSanitizer, and with ThreadSanitizer,
# side by side, and runs them on every instruction set of this machine. No Python, no CMake.
# Usage: run_sanitizers.sh [build folder]
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
build="${1:-$root/build/sanitizers}"
cxx="${CXX:-g++}"
defines="-DELMO_FAST_HAS_AVX2 -DELMO_FAST_HAS_AVX512 -DELMO_FAST_HAS_AMX"

avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl"
isa_flags() {
  case "$1" in
    *_avx2.cpp) echo "-mavx2 -mfma" ;;
    *_avx512.cpp) echo "$avx512" ;;
    *_amx.cpp) echo "$avx512 -mamx-tile -mamx-bf16 -mavx512bf16" ;;
  esac
}

build_and_run() {  # name, sanitizer flags, program arguments
  local out="$build/$1" objects=() source object
  mkdir -p "$out"
  for source in "$root"/csrc/cpu/*.cpp "$root"/tests/native/sanitize*.cpp; do
    object="$out/$(basename "$source" .cpp).o"
    objects+=("$object")
    # shellcheck disable=SC2046,SC2086
    "$cxx" -std=c++17 -O1 -g -ffp-contract=off -I"$root/csrc" $defines $2 $(isa_flags "$source") -c "$source" -o "$object"
  done
  # shellcheck disable=SC2086
  "$cxx" $2 "${objects[@]}" -o "$out/sanitize" -lpthread
  for isa in generic avx2 avx512 amx amx-emulated; do
    # shellcheck disable=SC2086
    ELMO_FAST_CPU_ISA=$isa "$out/sanitize" $3
  done
  echo "$1: clean"
}

build_and_run address "-fsanitize=address,undefined -fno-sanitize-recover=all" "" &
address=$!
TSAN_OPTIONS=halt_on_error=1 build_and_run thread "-fsanitize=thread" "--no-fork"
wait $address
