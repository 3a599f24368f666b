// Matrix instructions: mma.sync, ldmatrix and wgmma. A wgmma is computed at once, but its accumulators hold NaN until
// the wait that completes it, and nobody may touch them or overwrite its operands before.
#include <algorithm>

#include "lanes.h"
#include "module.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace ptx {
namespace {

// The 64 values in a register of the warp: of thread t those at 2 t and 2 t + 1.
void widen(const uint32_t* slots, Type type, float* to) {
#ifdef __AVX512F__
  if (type == Type::f16) {
    const __m256i* from = reinterpret_cast<const __m256i*>(slots);
    for (int i = 0; i < 4; ++i) _mm512_storeu_ps(to + 16 * i, _mm512_cvtph_ps(_mm256_loadu_si256(from + i)));
    return;
  }
#endif
  for (int i = 0; i < 2 * warp_threads; ++i) {
    const uint32_t slot = slots[i / 2] >> 16 * (i % 2) & 0xffff;
    to[i] = type == Type::f16 ? float(Half(slot)) : bits<float>(slot << 16);
  }
}

// c [16, 8] += a b: a in two tiles of 8 rows, b given by columns, all tiles `inner` wide.
template <int inner>
void multiply(const float* top, const float* bottom, const float* columns, float (*c)[8]) {
  float b[inner][8];
  for (int n = 0; n < 8; ++n)
    for (int k = 0; k < inner; ++k) b[k][n] = columns[n * inner + k];
  for (int row = 0; row < 16; ++row) {
    const float* a = row < 8 ? top + row * inner : bottom + (row - 8) * inner;
    for (int k = 0; k < inner; ++k)
      for (int n = 0; n < 8; ++n) c[row][n] += a[k] * b[k][n];
  }
}

void cut_tf32(const uint32_t* slots, float* to) {
  for (int i = 0; i < warp_threads; ++i) to[i] = float(TFloat(slots[i]));
}

// list: d[4], a[4], b[2], c[4]
void mma(Warp& warp, const Instruction& in, Mask) {
  alignas(64) float parts[6][64], sum[16][8] = {};
  for (size_t i = 0; i < 6; ++i) {
    const uint32_t* slots = warp.lanes<uint32_t>(in.list[4 + i]);
    in.source == Type::tf32 ? cut_tf32(slots, parts[i]) : widen(slots, in.source, parts[i]);
  }
  for (int half = 0; half < 2; ++half)
    (in.source == Type::tf32 ? multiply<4> : multiply<8>)(parts[2 * half], parts[2 * half + 1], parts[4 + half], sum);
  for (size_t i = 0; i < 4; ++i) {
    const float* c = warp.lanes<float>(in.list[10 + i]);
    float* d = warp.lanes<float>(in.list[i]);
    for (int t = 0; t < warp_threads; ++t) d[t] = c[t] + sum[t / 4 + 8 * (i / 2)][2 * (t % 4) + int(i % 2)];
  }
}

void load_matrix(Warp& warp, const Instruction& in, Mask) {
  uint32_t addresses[warp_threads];
  memcpy(addresses, warp.lanes<uint32_t>(in.a), sizeof addresses);
  Counts& counts = warp.machine->counts(warp);
  for (size_t m = 0; m < in.list.size(); ++m) {
    uint16_t tile[8][8];
    int used[8] = {};
    for (size_t row = 0; row < 8; ++row) {
      Block* block;
      const uint32_t address = addresses[8 * m + row] + uint32_t(in.offset);
      const char* from = warp.machine->shared(warp, in, address, 16, &block);
      if (warp.machine->settings.checks) block->shadow.read(address, 16, warp);
      memcpy(tile[row], from, 16);
      ++used[address / 16 % 8];
    }
    counts.bytes += 128;
    counts.wavefronts += uint64_t(*std::max_element(used, used + 8));
    ++counts.ideal;
    uint32_t* to = warp.lanes<uint32_t>(in.list[m]);
    for (int t = 0; t < warp_threads; ++t) {
      const int row = t / 4, pair = 2 * (t % 4);
      const uint16_t low = in.mode ? tile[pair][row] : tile[row][pair];
      to[t] = low | uint32_t(in.mode ? tile[pair + 1][row] : tile[row][pair + 1]) << 16;
    }
  }
}

// Where row `row` of a matrix whose rows run along K has its byte `byte`, after the descriptor of the matrix.
uint32_t described(uint64_t descriptor, uint32_t row, uint32_t byte) {
  const uint32_t start = uint32_t(descriptor & 0x3fff) << 4, leading = uint32_t(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = uint32_t(descriptor >> 32 & 0x3fff) << 4, swizzle = uint32_t(descriptor >> 62);
  if (descriptor >> 49 & 7) throw Trap("a matrix descriptor with a base offset");
  const uint32_t group = start + row / 8 * stride;
  if (!swizzle) return group + row % 8 * 16 + byte / 16 * leading + byte % 16;
  const uint32_t width = swizzle == 1 ? 128 : swizzle == 2 ? 64 : 32, at = group + row % 8 * width + byte;
  return at ^ ((at >> 7 & (width / 16 - 1)) << 4);
}

// 32 bytes of a row in shared memory as numbers: 16 of 16 bits or 8 of tf32.
void read_row(Warp& warp, const Instruction& in, uint64_t descriptor, uint32_t row, float* to, Product* product) {
  for (uint32_t part = 0; part < 2; ++part) {
    const uint32_t at = described(descriptor, row, 16 * part);
    Block* block;
    const char* from = warp.machine->shared(warp, in, at, 16, &block);
    if (warp.machine->settings.checks) block->shadow.begin_operand(at, 16, warp);
    product->operands.push_back(at);
    uint32_t words[4];
    memcpy(words, from, 16);
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t half = words[i / 2] >> 16 * (i % 2) & 0xffff;
      if (in.source == Type::tf32)
        to[4 * part + i % 4] = float(TFloat(words[i % 4]));
      else
        to[8 * part + i] = in.source == Type::f16 ? float(Half(half)) : bits<float>(half << 16);
    }
  }
}

size_t register_of(const Operand& o) { return o.at / slot_bytes; }

// list: the accumulators, then 4 registers of a if they hold it; a, b: descriptors; c: whether to add to what was there
void wgmma(Warp& warp, const Instruction& in, Mask) {
  ProductState& state = *warp.product_state;
  const size_t columns = size_t(in.count), accumulators = columns / 2;
  const int inner = in.source == Type::tf32 ? 8 : 16;
  for (const Operand& o : in.list)
    if (state.unfenced[register_of(o)]) throw Trap("registers of a wgmma written with no wgmma.fence since");
  Product product = {&in, {}};
  alignas(64) float a[16][16];
  if (in.list.size() > accumulators) {
    float part[64];
    for (size_t i = 0; i < 4; ++i) {
      const Operand& o = in.list[accumulators + i];
      if (state.accumulating[register_of(o)]) throw Trap("an operand of a wgmma that another has not completed");
      ++state.reading[register_of(o)];
      const uint32_t* slots = warp.lanes<uint32_t>(o);
      inner == 8 ? cut_tf32(slots, part) : widen(slots, in.source, part);
      for (int j = 0; j < 4 * inner; ++j)
        a[j / (inner / 2) + 8 * int(i % 2)][j % (inner / 2) + inner / 2 * int(i / 2)] = part[j];
    }
  } else {
    for (uint32_t row = 0; row < 16; ++row)
      read_row(warp, in, *warp.lanes<uint64_t>(in.a), warp.number % 4 * 16 + row, a[row], &product);
  }
  static thread_local float b[16][256], c[16][256];
  const bool keep = warp.predicates[in.c.at] & 1;
  for (uint32_t n = 0; n < columns; ++n) {
    float row[16];
    read_row(warp, in, *warp.lanes<uint64_t>(in.b), n, row, &product);
    for (int k = 0; k < inner; ++k) b[k][n] = row[k];
  }
  for (size_t i = 0; i < accumulators; ++i) {
    const bool under_way = state.accumulating[register_of(in.list[i])]++;
    char* registers = under_way ? state.values.data() : warp.banks[Operand::registers];
    const float* from = reinterpret_cast<const float*>(registers + in.list[i].at);
    for (size_t t = 0; t < size_t(warp_threads); ++t)
      c[t / 4 + 8 * (i / 2 % 2)][i / 4 * 8 + 2 * (t % 4) + i % 2] = keep ? from[t] : 0.0f;
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < inner; ++k)
      for (size_t n = 0; n < columns; ++n) c[row][n] += a[row][k] * b[k][n];
  for (size_t i = 0; i < accumulators; ++i) {
    float* to = reinterpret_cast<float*>(state.values.data() + in.list[i].at);
    for (size_t t = 0; t < size_t(warp_threads); ++t)
      to[t] = c[t / 4 + 8 * (i / 2 % 2)][i / 4 * 8 + 2 * (t % 4) + i % 2];
    memset(warp.lanes<char>(in.list[i]), 0xff, slot_bytes);
  }
  warp.products.push_back(std::move(product));
}

void complete(Warp& warp, const Product& product) {
  ProductState& state = *warp.product_state;
  const size_t accumulators = size_t(product.instruction->count) / 2;
  for (size_t i = 0; i < product.instruction->list.size(); ++i) {
    const Operand& o = product.instruction->list[i];
    if (i >= accumulators)
      --state.reading[register_of(o)];
    else if (--state.accumulating[register_of(o)] == 0)
      memcpy(warp.lanes<char>(o), state.values.data() + o.at, slot_bytes);
  }
  if (!warp.machine->settings.checks) return;
  for (uint32_t at : product.operands) warp.block->shadow.end_operand(at, 16, warp);
}

void fence_products(Warp& warp, const Instruction&, Mask) {
  std::fill(warp.product_state->unfenced.begin(), warp.product_state->unfenced.end(), uint8_t(0));
}

void commit_products(Warp& warp, const Instruction&, Mask) {
  warp.product_groups.push_back(std::move(warp.products));
  warp.products.clear();
}

void wait_for_products(Warp& warp, const Instruction& in, Mask) {
  for (; warp.product_groups.size() > size_t(in.count); warp.product_groups.pop_front())
    for (const Product& product : warp.product_groups.front()) complete(warp, product);
}

bool bind_mma(Statement& s) {
  s.take("sync");
  const bool halves = s.take("m16n8k16"), tf32 = !halves && s.take("m16n8k8");
  if (!s.take("row") || !s.take("col") || s.types.size() != 4 || s.types[0] != Type::f32 || s.types[3] != Type::f32)
    return false;
  s.in.source = s.types[1];
  if (halves ? s.in.source != Type::f16 && s.in.source != Type::bf16 : !tf32 || s.in.source != Type::tf32) return false;
  s.expect(4, 4);
  for (size_t i = 0; i < 4; ++i)
    for (const Operand& o : s.vector(i, 4, i == 0)) s.in.list.push_back(o);
  if (s.in.list.size() != 14) throw Trap("fragments of another size");
  s.in.run = mma;
  return true;
}

bool bind_ldmatrix(Statement& s) {
  s.take("sync");
  if (!s.take("m8n8")) return false;
  s.ignore({"shared", "shared::cta"});
  const int count = 1 << s.take_one({"x1", "x2", "x4"}, 0);
  s.in.mode = s.take("trans");
  s.in.space = Space::shared;
  s.in.list = s.vector(0, 4, true);
  s.in.a = s.address(1, &s.in.offset);
  s.in.run = load_matrix;
  return int(s.in.list.size()) == count;
}

bool bind_products(Statement& s) {
  s.take("sync");
  if (!s.take("mma_async")) return false;
  s.in.count = 0;
  for (int n = 8; n <= 256; n += 8)
    if (s.take("m64n" + std::to_string(n) + "k16") || s.take("m64n" + std::to_string(n) + "k8")) s.in.count = n;
  if (!s.in.count || s.types.size() != 3 || s.types[0] != Type::f32) return false;
  s.in.list = s.vector(0, 4, true);
  s.in.writes.clear();  // these are looked after by the wgmma itself
  if (int(s.in.list.size()) != s.in.count / 2) throw Trap("accumulators of another size");
  if (s.arguments.at(1)[0] == '{')
    for (const Operand& o : s.vector(1, 4, false)) s.in.list.push_back(o);
  else
    s.in.a = s.read(1, 8);
  s.in.b = s.read(2, 8);
  s.in.c = s.read(3, 0);
  s.expect(6, 8);
  for (size_t i = 4; i < s.arguments.size(); ++i)
    if (s.number(i) != (i < 6)) throw Trap("a wgmma that negates or transposes");
  s.in.space = Space::shared;
  s.in.run = wgmma;
  return true;
}

}  // namespace

void Warp::check_registers(const Instruction& in) {
  ProductState& state = *product_state;
  for (uint32_t at : in.reads)
    if (state.accumulating[at / slot_bytes]) throw Trap("reading an accumulator of a wgmma that is not complete");
  for (uint32_t at : in.writes) {
    const size_t i = at / slot_bytes;
    if (state.accumulating[i] || state.reading[i]) throw Trap("writing a register of a wgmma that is not complete");
    state.unfenced[i] = 1;
  }
}

bool bind_tensor(Statement& s) {
  if (s.opcode != "mma" && s.opcode != "ldmatrix" && s.opcode != "wgmma") return false;
  s.take("aligned");
  s.in.convergent = true;
  if (s.opcode == "mma") return bind_mma(s);
  if (s.opcode == "ldmatrix") return bind_ldmatrix(s);
  const bool fences = s.take("fence");
  if (!fences && !s.take("commit_group") && !s.take("wait_group")) return bind_products(s);
  s.take("sync");
  const bool waits = !s.arguments.empty();
  s.in.count = waits ? int(s.number(0)) : 0;
  s.in.run = waits ? wait_for_products : fences ? fence_products : commit_products;
  return true;
}

}  // namespace ptx
