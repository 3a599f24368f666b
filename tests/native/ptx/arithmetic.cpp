// Instructions that compute: a value in each thread, or products of matrices in a warp.
#include <limits>

#include "machine.h"

namespace ptx {
namespace {

// `length` bits from `from` on; those beyond the last bit are that of the sign.
template <class T>
T extracted(T a, uint32_t from, uint32_t length) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  const uint32_t cut = 64 - std::min(length & 255, 64u);
  return cut == 64 ? T(0) : T(Wide(uint64_t(Wide(a) >> std::min(from & 255, 63u)) << cut) >> cut);
}

// b with `length` bits of a from `from` on.
template <class T>
T inserted(T a, T b, uint32_t from, uint32_t length) {
  from &= 255, length &= 255;
  const uint64_t ones = length < 64 ? (1ull << length) - 1 : ~0ull, field = from < 64 ? ones << from : 0;
  return T((uint64_t(a) << from % 64 & field) | (b & ~field));
}

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

template <class T>
void add_choices(Table& t, const std::string& type) {
  const auto add = [&](const char* name, auto f) { t[name + ("." + type)] = lanes(f); };
  add("setp.eq", [](T a, T b) { return a == b; });
  add("setp.ne", [](T a, T b) { return a < b || a > b; });
  add("setp.lt", [](T a, T b) { return a < b; });
  add("setp.le", [](T a, T b) { return a <= b; });
  add("setp.gt", [](T a, T b) { return a > b; });
  add("setp.ge", [](T a, T b) { return a >= b; });
  add("selp", [](T a, T b, bool first) { return first ? a : b; });
  add("mov", [](T a) { return a; });
}

template <class T>
void add_integers(Table& t, const std::string& type) {
  const auto add = [&](const char* name, auto f) { t[name + ("." + type)] = lanes(f); };
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t size = 8 * sizeof(T);
  add_choices<T>(t, type);
  // Sums and products wrap around.
  add("add", [](U a, U b) { return U(a + b); });
  add("sub", [](U a, U b) { return U(a - b); });
  add("mul.lo", [](U a, U b) { return U(1u * a * b); });
  add("mad.lo", [](U a, U b, U c) { return U(1u * a * b + c); });
  // Division by zero and its overflow give some value on the device.
  add("div", [](T a, T b) { return !b ? T(~T(0)) : std::is_signed_v<T> && b == T(-1) ? T(U(0) - U(a)) : T(a / b); });
  add("rem", [](T a, T b) { return !b ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b); });
  add("min", [](T a, T b) { return std::min(a, b); });
  add("max", [](T a, T b) { return std::max(a, b); });
  add("neg", [](U a) { return U(0 - a); });
  add("and", [](T a, T b) { return T(a & b); });
  add("or", [](T a, T b) { return T(a | b); });
  add("xor", [](T a, T b) { return T(a ^ b); });
  add("not", [](T a) { return T(~a); });
  add("shl", [](U a, uint32_t by) { return by < size ? U(a << by) : U(0); });
  add("shr", [](T a, uint32_t by) { return by < size ? T(a >> by) : std::is_signed_v<T> ? T(a >> (size - 1)) : T(0); });
  if constexpr (sizeof(T) == 4) {
    using W = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    add("mul.wide", [](T a, T b) { return W(a) * W(b); });
    add("mad.wide", [](T a, T b, W c) { return uint64_t(W(a) * W(b)) + uint64_t(c); });
    add("bfe", extracted<T>);
  }
}

void add_floats(Table& t, const std::string& type) {
  const auto add = [&](const char* name, auto f) { t[name + ("." + type)] = lanes(f); };
  add_choices<float>(t, type);
  add("neg", [](float a) { return -a; });
  add("abs", [](float a) { return std::fabs(a); });
  add("ex2", [](float a) { return std::exp2(a); });
  add("ex2.ftz", [](float a) { return flushed(std::exp2(flushed(a))); });
  add("rcp.ftz", [](float a) { return flushed(1 / flushed(a)); });
  add("add", [](float a, float b) { return a + b; });
  add("sub", [](float a, float b) { return a - b; });
  add("mul", [](float a, float b) { return a * b; });
  add("div", [](float a, float b) { return a / b; });
  add("max.NaN", [](float a, float b) { return a != a || (a == b ? std::signbit(b) : a > b) ? a : b; });
  add("fma", [](float a, float b, float c) { return std::fma(a, b, c); });
}

float from_half(uint16_t pattern) { return __builtin_bit_cast(_Float16, pattern); }
uint16_t to_half(float value) { return __builtin_bit_cast(uint16_t, _Float16(value)); }
float from_bfloat(uint16_t pattern) { return __builtin_bit_cast(float, uint32_t(pattern) << 16); }
uint16_t to_bfloat(float value) {
  const uint32_t b = __builtin_bit_cast(uint32_t, value);
  return std::isnan(value) ? 0x7fff : uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

template <float from(uint16_t), uint16_t to(float)>
void add_half(Table& t, const std::string& type) {
  t["cvt.f32." + type] = lanes([](uint16_t a) { return from(a); });
  t["cvt." + type + ".f32"] = lanes([](float a) { return to(a); });
  t["cvt." + type + "x2.f32"] = lanes([](float high, float low) { return uint32_t(to(high)) << 16 | to(low); });
}

// Matrix instructions: mma.sync, ldmatrix, stmatrix and wgmma. A wgmma is computed at once, but nobody may touch its
// accumulators or overwrite its operands before the wait that completes it.

enum class Format { f16, bf16, tf32 };

// 8 rows of 16 bytes as numbers: of 8 columns, of which those of tf32 are 4 and zeros.
using Tile = float[64];

// From the 32 words of the rows: what lies in a register of a warp, or in shared memory.
void widen(const uint32_t* words, Format format, Tile to) {
  uint16_t halves[64];
  memcpy(halves, words, sizeof halves);
  for (int i = 0; i < 64 && format == Format::tf32; ++i)
    to[i] = i % 8 < 4 ? __builtin_bit_cast(float, words[i / 8 * 4 + i % 4] & ~0x1fffu) : 0;
  for (int i = 0; i < 64 && format != Format::tf32; ++i)
    to[i] = format == Format::f16 ? from_half(halves[i]) : from_bfloat(halves[i]);
}

// What thread t has in register i of the four that hold [16, 8].
float& accumulator(float (*c)[8], size_t i, int t) { return c[t / 4 + 8 * int(i / 2)][2 * (t % 4) + int(i % 2)]; }

// The sums [16, 8] in the four registers `to` become those in `from`, or zeros where it is null, plus a [16, 16] times
// b [16, 8]: a in tiles of its upper left, lower left, upper right and lower right quarter; b, transposed, in tiles of
// its halves.
void add_product(const Warp& warp, const Operand* from, const Tile* a, const Tile* b, const Operand* to) {
  alignas(64) float sum[16][8] = {}, transposed[8][8];
  for (size_t i = 0; i < 4 && from; ++i)
    for (int t = 0; t < warp_threads; ++t) accumulator(sum, i, t) = warp.lanes<float>(from[i])[t];
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 64; ++i) transposed[i % 8][i / 8] = b[half][i];
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 8; ++k)
        for (int n = 0; n < 8; ++n) sum[row][n] += a[2 * half + row / 8][row % 8 * 8 + k] * transposed[k][n];
  }
  for (size_t i = 0; i < 4; ++i)
    for (int t = 0; t < warp_threads; ++t) warp.lanes<float>(to[i])[t] = accumulator(sum, i, t);
}

// mma.sync m16n8: "d[4], a[4], b[2], c[4]"
Binder mma(Format format) {
  return [format](Parser& s) {
    s.in.run = [format, to = s.vector(0, 4, 4, true), from = s.vector(4, 10, 4, false)](Warp& warp, Mask) {
      alignas(64) Tile tiles[6];
      for (size_t i = 0; i < 6; ++i) widen(warp.lanes<uint32_t>(from[i]), format, tiles[i]);
      add_product(warp, &from[6], tiles, tiles + 4, to.data());
    };
  };
}

// ldmatrix x4: matrices of 8 rows of 16 bytes, whose addresses 8 threads have for each.
Binder load_matrices(bool transposes) {
  return [transposes](Parser& s) {
    s.in.run = [=, to = s.vector(0, 4, 4, true), from = s.address(4, Space::shared, 16)](Warp& warp, Mask) {
      uint16_t rows[warp_threads][8];
      for (int lane = 0; lane < warp_threads; ++lane) {
        const Place place = place_of(warp, from, lane);
        place.read(16, warp, whole_warp);
        memcpy(rows[lane], place.at, 16);
      }
      for (int i = 0; i < 256; ++i)
        warp.lanes<uint16_t>(to.at(size_t(i) / 64))[i % 64] =
            transposes ? rows[i / 64 * 8 + i % 8][i / 8 % 8] : rows[i / 8][i % 8];
    };
  };
}

// stmatrix: as ldmatrix x1, x2 or x4, the other way.
Binder store_matrices(size_t number) {
  return [number](Parser& s) {
    s.in.run = [to = s.address(0, Space::shared, 16), from = s.vector(2, number, 4, false)](Warp& warp, Mask) {
      const int rows = 8 * int(from.size());
      warp.acts = true;
      for (int lane = 0; lane < rows; ++lane) {
        const uint16_t* row = warp.lanes<uint16_t>(from[size_t(lane) / 8]) + lane % 8 * 8;
        const Place place = place_of(warp, to, lane);
        place.write(16, warp, several, memcmp(place.at, row, 16) ? Use::plain : Use::same);
        memcpy(place.at, row, 16);
      }
    };
  };
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

// 8 rows of a matrix in shared memory, which nobody may write before the product is complete.
void read_tile(Warp& warp, uint64_t descriptor, uint32_t row, uint32_t half, Format format, Tile to,
               std::vector<Place>& operands) {
  uint32_t words[32];
  for (uint32_t r = 0; r < 8; ++r) {
    operands.push_back(warp.machine->place(warp, Space::shared, described(descriptor, row + r, 16 * half), 16));
    operands.back().read(16, warp, whole_warp, Use::starts);
    memcpy(words + 4 * r, operands.back().at, 16);
  }
  widen(words, format, to);
}

// wgmma m64: "d[columns / 2], descriptor, descriptor, whether to add to d, 1, 1[, 0, 0]"
Binder product(Format format, size_t columns) {
  return [=](Parser& s) {
    const std::vector<Operand> d = s.vector(0, columns / 2, 4, true);
    const size_t next = d.size();
    for (size_t i = next + 3; i < s.arguments.size(); ++i)
      if (s.number(i) != (i < next + 5)) throw Trap("a wgmma that negates or transposes");
    s.in.writes.clear();  // products in order may share accumulators
    s.in.run = [=, a = s.read(next, 8), b = s.read(next + 1, 8), adds = s.read(next + 2)](Warp& warp, Mask) {
      const uint64_t left_at = *warp.lanes<uint64_t>(a), right_at = *warp.lanes<uint64_t>(b);
      std::vector<Place> operands;
      alignas(64) Tile left[4], right[2];
      for (uint32_t i = 0; i < 4; ++i)
        read_tile(warp, left_at, warp.number % 4 * 16 + i % 2 * 8, i / 2, format, left[i], operands);
      for (uint32_t column = 0; column < columns; column += 8) {
        for (uint32_t i = 0; i < 2; ++i) read_tile(warp, right_at, column, i, format, right[i], operands);
        const Operand* sums = &d[column / 2];
        add_product(warp, *warp.lanes<uint32_t>(adds) ? sums : nullptr, left, right, sums);
      }
      for (const Operand& o : d) {
        ++warp.accumulating[o.at / slot_bytes];
        if (warp.unfenced[o.at / slot_bytes]) throw Trap("registers of a wgmma written with no wgmma.fence since");
      }
      warp.products.open.push_back([d, operands, &warp] {
        for (const Operand& o : d) --warp.accumulating[o.at / slot_bytes];
        for (const Place& place : operands) place.read(16, warp, whole_warp, Use::ends);
      });
    };
  };
}

}  // namespace

void add_arithmetic(Table& t) {
  for (const char* type : {"u32", "b32"}) add_integers<uint32_t>(t, type);
  for (const char* type : {"u64", "b64"}) add_integers<uint64_t>(t, type);
  for (const char* type : {"u16", "b16"}) add_integers<uint16_t>(t, type);
  add_integers<int32_t>(t, "s32"), add_integers<int64_t>(t, "s64"), add_choices<int16_t>(t, "s16");
  add_floats(t, "f32");
  add_half<from_half, to_half>(t, "f16"), add_half<from_bfloat, to_bfloat>(t, "bf16");
  t["cvt.u16.u32"] = lanes([](uint32_t a) { return uint16_t(a); });
  t["cvt.u32.u16"] = lanes([](uint16_t a) { return uint32_t(a); });
  t["cvt.u32.u64"] = lanes([](uint64_t a) { return uint32_t(a); });
  t["cvt.u64.u32"] = lanes([](uint32_t a) { return uint64_t(a); });
  t["cvt.s64.s32"] = lanes([](int32_t a) { return int64_t(a); });
  t["bfi.b32"] = lanes(inserted<uint32_t>);
  t["bfi.b64"] = lanes(inserted<uint64_t>);
  t["pack.b32"] = lanes([](uint16_t low, uint16_t high) { return low | uint32_t(high) << 16; });
  t["pack.b64"] = lanes([](uint32_t low, uint32_t high) { return low | uint64_t(high) << 32; });
  t["cvta.to.global.u64"] = t["mov.b64"];
  for (const std::string name : {"and", "or", "xor", "mov"}) t[name + ".pred"] = t[name + ".b32"];  // of 0 and 1
  t["not.pred"] = lanes([](bool a) { return !a; });
  t["mapa.shared::cluster.u32"] =
      lanes([](uint32_t address, uint32_t rank) { return (address & 0xffffff) | (rank + 1) << 24; });
  for (const auto& [name, format] : {std::pair("f16", Format::f16), {"bf16", Format::bf16}, {"tf32", Format::tf32}}) {
    const std::string inner = format == Format::tf32 ? "k8" : "k16", types = std::string(".") + name + "." + name;
    t["mma.sync.m16n8" + inner + ".row.col.f32" + types + ".f32"] = mma(format);
    for (size_t n = 8; n <= 256; n += 8)
      t["wgmma.mma_async.sync.m64n" + std::to_string(n) + inner + ".f32" + types] = product(format, n);
  }
  t["ldmatrix.sync.m8n8.x4.shared.b16"] = load_matrices(false);
  t["ldmatrix.sync.m8n8.x4.trans.shared.b16"] = load_matrices(true);
  for (size_t n : {1, 2, 4}) t["stmatrix.sync.m8n8.x" + std::to_string(n) + ".shared.b16"] = store_matrices(n);
  t["wgmma.fence.sync"] = action([](Warp& warp, Mask) { warp.unfenced.assign(warp.unfenced.size(), 0); });
  t["wgmma.commit_group.sync"] = action([](Warp& warp, Mask) { warp.products.commit(); });
  t["wgmma.wait_group.sync"] = wait_for(&Warp::products);
}

}  // namespace ptx
