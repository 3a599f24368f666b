#!/usr/bin/env bash
# Builds the CPU engine with amx_trapped.cpp in the place of its CPU detection and runs it: AMX's instructions on a
# CPU that has none but has AVX-512. No Python, no CMake. Usage: run_amx_trapped.sh BUILD_FOLDER
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
build="$1"
cxx="${CXX:-g++}"
avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma"
mkdir -p "$build"

objects=()
for source in "$root"/csrc/cpu/*.cpp "$root"/tests/native/{amx_trapped,tile_trap}.cpp; do
  case "$source" in
    */cpu_features.cpp) continue ;;
    *_avx2.cpp) flags="-mavx2 -mfma" ;;
    *_avx512.cpp | */tile_trap.cpp) flags="$avx512" ;;
    *_amx.cpp) flags="$avx512 -mamx-tile -mamx-bf16 -mavx512bf16" ;;
    *) flags="" ;;
  esac
  object="$build/$(basename "$source" .cpp).o"
  objects+=("$object")
  # shellcheck disable=SC2086
  "$cxx" -std=c++17 -O2 -ffp-contract=off -I"$root/csrc" -DELMO_FAST_HAS_AVX2 -DELMO_FAST_HAS_AVX512 \
    -DELMO_FAST_HAS_AMX $flags -c "$source" -o "$object"
done
"$cxx" "${objects[@]}" -o "$build/amx_trapped" -lpthread
"$build/amx_trapped"
