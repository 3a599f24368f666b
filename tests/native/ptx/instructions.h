// PTX as the interpreter runs it: kernels of decoded instructions whose operands are places in a warp's registers.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

struct Warp;
struct Instruction;
using Mask = uint32_t;  // a bit for each thread of a warp
constexpr int warp_threads = 32;
constexpr Mask all_threads = ~Mask(0);

// What a program does that the hardware leaves undefined or refuses.
struct Trap : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Type : uint8_t {
  none, pred, b8, u8, s8, b16, u16, s16, f16, bf16, b32, u32, s32, f32, tf32, f16x2, bf16x2, b64, u64, s64, f64
};
int size_of(Type type);
Type type_named(const std::string& name);  // Type::none if there is none
const char* name_of(Type type);

enum class Space : uint8_t { global, shared, cluster, param, local };
enum class Order : uint8_t { weak, relaxed, acquire, release, acquire_release };
enum class Compare : uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };
enum class Rounding : uint8_t { nearest, down, up, zero };

// What the scheduler does itself; everything else is `Instruction::run`.
enum class Kind : uint8_t { plain, branch, leave, barrier, arrive, cluster_arrive, cluster_wait, pause };

// Registers and constants: 32 slots of `width` 4 or 8 bytes (a value of 8 or 16 bits takes 4). Predicates: one Mask.
struct Operand {
  enum Bank : uint8_t { none, registers, constants, predicates } bank = none;
  uint8_t width = 0;
  uint32_t at = 0;  // a byte offset; of a predicate its index
};

struct Instruction {
  void (*run)(Warp&, const Instruction&, Mask) = nullptr;
  Kind kind = Kind::plain;
  Type type = Type::none, source = Type::none;
  Space space = Space::global;
  Order order = Order::weak;
  Compare compare = Compare::eq;
  Rounding rounding = Rounding::nearest;
  bool flush = false, saturate = false, convergent = false, guarded = false, guard_negated = false;
  uint8_t mode = 0;    // which of an opcode's variants
  uint32_t guard = 0;  // predicate
  uint32_t target = 0;
  int32_t count = 1;  // elements of a vector, bytes of a copy, columns of a wgmma
  int64_t offset = 0, offset2 = 0;
  Operand d, a, b, c, e;
  std::vector<Operand> list;    // data of loads and stores, fragments
  std::vector<uint32_t> reads, writes;  // registers, for kernels with wgmma
  int line = 0;
};

// What the executions of one instruction came to.
struct Counts {
  uint64_t executed = 0, threads = 0, bytes = 0;
  uint64_t sectors = 0;                // of 32 bytes, of global memory
  uint64_t wavefronts = 0, ideal = 0;  // of shared memory; `ideal` without bank conflicts
};

struct Parameter {
  uint32_t at, size;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<std::string> mnemonics, texts;
  std::vector<Counts> counts;
  std::vector<Parameter> parameters;
  std::vector<char> constants;  // 32 slots each
  uint32_t parameter_bytes = 0, register_bytes = 0, predicates = 0, static_shared = 0, local_bytes = 0;
  uint32_t most_threads = 1024;
  bool has_wgmma = false;
};

using Module = std::vector<std::shared_ptr<Kernel>>;
Module parse(const std::string& text);

// Registers that every warp begins with.
constexpr const char* special_names[] = {
    "%tid.x",     "%tid.y",     "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z",   "%ctaid.x", "%ctaid.y", "%ctaid.z",
    "%nctaid.x",  "%nctaid.y",  "%nctaid.z", "%laneid",   "%warpid",   "%cluster_ctarank", "%cluster_nctarank",
    "%cluster_ctaid.x", "%clusterid.x", "%lanemask_lt"};
constexpr int specials = sizeof(special_names) / sizeof(*special_names);
constexpr uint32_t slot_bytes = 4 * warp_threads;

}  // namespace ptx
