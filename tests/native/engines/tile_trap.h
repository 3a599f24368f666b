// AMX tile instructions on a CPU that has none: there they raise SIGILL, and a handler carries them out by the
// instruction set reference. So the instructions that run are the ones that were compiled, operand sizes, strides and
// register numbers included. Whatever the reference faults on ends the program with a message.
#pragma once

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tile_trap {
namespace {

constexpr int kTiles = 8, kRows = 16, kBytes = 64;

struct Tile {
  int rows, bytes;  // configured; bytes of a row
  unsigned char data[kRows][kBytes];
};

thread_local Tile tiles[kTiles];
thread_local bool configured = false;
std::atomic<long> loads{0}, stores{0}, products{0};  // carried out so far, by all threads
std::atomic<long> in_use{0};  // threads that have configured their tiles and not released them

[[noreturn]] void fault(const char* why) {
  char line[128];
  const int size = std::snprintf(line, sizeof line, "tile instruction: %s\n", why);
  (void)!write(STDERR_FILENO, line, static_cast<size_t>(size));
  _exit(3);
}

void require(bool holds, const char* why) {
  if (!holds) fault(why);
}

// One three-byte VEX instruction of map 0F38: prefix 0 none, 1 66, 2 F3, 3 F2.
struct Instruction {
  unsigned char opcode, prefix;
  bool memory;
  int reg, rm, vvvv;
  uint64_t base, stride;  // of a memory operand
  int64_t length;
};

uint64_t general(const ucontext_t* context, int number) {
  static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(context->uc_mcontext.gregs[order[number]]);
}

template <class Number>
uint64_t displacement(const unsigned char*& at) {
  Number value;
  std::memcpy(&value, at, sizeof value);
  at += sizeof value;
  return static_cast<uint64_t>(int64_t{value});
}

// Address of a memory operand without an index, or with the index as the rows' stride; `at` goes past it.
void read_memory(const ucontext_t* context, int mod, int x, int b, const unsigned char*& at, Instruction* one) {
  int base = one->rm;
  if (base == 4) {
    const int sib = *at++, index = (sib >> 3 & 7) + x;
    base = sib & 7;
    if (index != 4) one->stride = general(context, index) << (sib >> 6);
  }
  const bool no_base = mod == 0 && base == 5;
  require(!no_base || one->rm == 4, "an address relative to the instruction is not expected");
  if (!no_base) one->base = general(context, base + b);
  if (mod == 1) one->base += displacement<int8_t>(at);
  else if (mod == 2 || no_base) one->base += displacement<int32_t>(at);
}

// Whether it is one of those below.
bool decode(const ucontext_t* context, Instruction* one) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(context->uc_mcontext.gregs[REG_RIP]);
  if (begin[0] != 0xc4 || (begin[1] & 0x1f) != 2 || begin[2] & 0x84) return false;
  const int r = begin[1] & 0x80 ? 0 : 8, x = begin[1] & 0x40 ? 0 : 8, b = begin[1] & 0x20 ? 0 : 8;
  const unsigned char *at = begin + 5, modrm = begin[4];
  *one = {begin[3],
          static_cast<unsigned char>(begin[2] & 3),
          modrm < 0xc0,
          (modrm >> 3 & 7) + r,
          modrm & 7,
          ~(begin[2] >> 3) & 15,
          0,
          0,
          0};
  if (one->opcode != 0x49 && one->opcode != 0x4b && one->opcode != 0x5c && one->opcode != 0x5e) return false;
  if (!one->memory) one->rm += b;
  else read_memory(context, modrm >> 6, x, b, at, one);
  one->length = at - begin;
  return true;
}

// LDTILECFG: palette 1 and what it allows.
void configure(const unsigned char* memory) {
  unsigned char all[64];
  std::memcpy(all, memory, sizeof all);
  require(all[0] == 1, "the palette is not 1");
  require(all[1] == 0, "the first row is not 0");
  for (int k = 2; k < 16; ++k) require(all[k] == 0, "reserved bytes are not 0");
  for (int k = 0; k < 16; ++k) {
    uint16_t bytes;
    std::memcpy(&bytes, all + 16 + 2 * k, sizeof bytes);
    const int rows = all[48 + k];
    if (k >= kTiles) {
      require(bytes == 0 && rows == 0, "there are eight tiles");
      continue;
    }
    require(bytes <= kBytes && rows <= kRows, "a tile has at most 16 rows of 64 bytes");
    require((bytes == 0) == (rows == 0), "a tile has rows and columns, or neither");
    tiles[k] = Tile{rows, bytes, {}};
  }
  if (!configured) ++in_use;
  configured = true;
}

Tile& tile(int number) {
  require(configured, "no tile is configured");
  require(number < kTiles && tiles[number].rows > 0, "the tile is not configured");
  return tiles[number];
}

void load(int number, const unsigned char* from, uint64_t stride) {
  Tile& to = tile(number);
  std::memset(to.data, 0, sizeof to.data);
  for (int r = 0; r < to.rows; ++r)
    std::memcpy(to.data[r], from + static_cast<uint64_t>(r) * stride, static_cast<size_t>(to.bytes));
  ++loads;
}

void store(int number, unsigned char* to, uint64_t stride) {
  const Tile& from = tile(number);
  for (int r = 0; r < from.rows; ++r)
    std::memcpy(to + static_cast<uint64_t>(r) * stride, from.data[r], static_cast<size_t>(from.bytes));
  ++stores;
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

float bf16(const unsigned char* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return flushed(x);
}

// Three tiles that may be multiplied.
void check_operands(int sum_number, int left_number, int right_number) {
  require(sum_number != left_number && sum_number != right_number && left_number != right_number,
          "the three tiles are not distinct");
  const Tile &sum = tile(sum_number), &left = tile(left_number), &right = tile(right_number);
  require(sum.bytes % 4 == 0 && left.bytes % 4 == 0 && right.bytes % 4 == 0, "a row is not whole");
  require(sum.rows == left.rows, "rows of the sum and of the left operand differ");
  require(sum.bytes == right.bytes, "columns of the sum and of the right operand differ");
  require(left.bytes / 4 == right.rows, "columns of the left and rows of the right operand differ");
}

// TDPBF16PS: for each row m and column n of `sum`, the even and the odd products of a row in two fused chains from
// zero; denormals are zero, rounding to nearest even.
__attribute__((target("avx2,fma"))) void multiply(int sum_number, int left_number, int right_number) {
  check_operands(sum_number, left_number, right_number);
  Tile& sum = tile(sum_number);
  const Tile &left = tile(left_number), &right = tile(right_number);
  for (int m = 0; m < sum.rows; ++m)
    for (int n = 0; n < sum.bytes / 4; ++n) {
      float even = 0.0f, odd = 0.0f, before;
      for (int k = 0; k < left.bytes / 4; ++k) {
        even = flushed(std::fma(bf16(left.data[m] + 4 * k), bf16(right.data[k] + 4 * n), even));
        odd = flushed(std::fma(bf16(left.data[m] + 4 * k + 2), bf16(right.data[k] + 4 * n + 2), odd));
      }
      std::memcpy(&before, sum.data[m] + 4 * n, sizeof before);
      const float after = flushed(flushed(before) + flushed(even + odd));
      std::memcpy(sum.data[m] + 4 * n, &after, sizeof after);
    }
  ++products;
}

// TDPBSSD: signed bytes, four products at a time, sums int32.
void multiply_bytes(int sum_number, int left_number, int right_number) {
  check_operands(sum_number, left_number, right_number);
  Tile& sum = tile(sum_number);
  const Tile &left = tile(left_number), &right = tile(right_number);
  for (int m = 0; m < sum.rows; ++m)
    for (int n = 0; n < sum.bytes / 4; ++n) {
      int32_t all;
      std::memcpy(&all, sum.data[m] + 4 * n, sizeof all);
      for (int k = 0; k < left.bytes; ++k)
        all += static_cast<int8_t>(left.data[m][k]) * static_cast<int8_t>(right.data[k / 4][4 * n + k % 4]);
      std::memcpy(sum.data[m] + 4 * n, &all, sizeof all);
    }
  ++products;
}

void release() {
  std::memset(tiles, 0, sizeof tiles);
  if (configured) --in_use;
  configured = false;
}

bool carry_out(const Instruction& one) {
  auto* memory = reinterpret_cast<unsigned char*>(one.base);
  if (one.opcode == 0x5c && one.prefix == 2 && !one.memory) {
    multiply(one.reg, one.rm, one.vvvv);
  } else if (one.opcode == 0x5e && one.prefix == 3 && !one.memory) {
    multiply_bytes(one.reg, one.rm, one.vvvv);
  } else if (one.opcode == 0x49 && one.prefix == 0 && one.memory && one.reg == 0) {
    require(one.stride == 0, "an index in the address of a configuration is not expected");
    configure(memory);
  } else if (one.opcode == 0x49 && one.prefix == 0 && !one.memory && one.reg == 0 && one.rm == 0) {
    release();
  } else if (one.opcode == 0x49 && one.prefix == 3 && !one.memory && one.rm == 0) {
    std::memset(tile(one.reg).data, 0, sizeof tiles[0].data);
  } else if (one.opcode == 0x4b && one.memory && one.rm == 4 && (one.prefix == 3 || one.prefix == 1)) {
    load(one.reg, memory, one.stride);
  } else if (one.opcode == 0x4b && one.memory && one.rm == 4 && one.prefix == 2) {
    store(one.reg, memory, one.stride);
  } else {
    return false;
  }
  return true;
}

void handle(int, siginfo_t*, void* raw) {
  auto* context = static_cast<ucontext_t*>(raw);
  Instruction one = {};
  if (!decode(context, &one) || !carry_out(one)) fault("an instruction that is none of AMX's tiles, bf16 and bytes");
  context->uc_mcontext.gregs[REG_RIP] += one.length;
}

// Installs the handler for the process.
void install() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGILL, &action, nullptr) != 0) {
    std::perror("sigaction");
    std::exit(2);
  }
}

}  // namespace
}  // namespace tile_trap
