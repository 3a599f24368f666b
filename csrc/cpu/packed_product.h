// Packing of whole matrices and products over all blocks of rows, shared by the LSTM and the plain product.
// Include after the file that defines the product.
#pragma once

namespace {

using namespace elmo_fast;
using namespace elmo_fast::cpu;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline size_t aligned64(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

// Part `rank` of `size` of [0, count).
struct Share {
  int64_t begin, end;
  Share(int64_t count, int rank, int size) : begin(count * rank / size), end(count * (rank + 1) / size) {}
};

template <class P>
int64_t panel_bytes(int64_t k) {
  return P::padded(k) * P::bytes_per_k;
}

// Where unit `u` of a panel of k rows begins, and how many bytes it has.
template <class P>
int64_t unit_bytes(int64_t k, int64_t u) {
  return P::padded(smaller(P::unit, k - u * P::unit)) * P::bytes_per_k;
}

template <class P>
void pack_panel(const PanelSource& source, int64_t k, char* packed) {
  for (int64_t k0 = 0; k0 < k; k0 += P::unit) {
    const int64_t count = smaller(P::unit, k - k0);
    P::pack_right(source, k0, count, packed);
    packed += unit_bytes<P>(k, k0 / P::unit);
  }
}

// A left operand: blocks of rows [rows, k] one after the other.
template <class P>
struct Left {
  char* data;
  int64_t k;
  char* block(const Blocks& blocks, int64_t b) const { return data + blocks.begin(b) * P::row_bytes(k); }
};

template <class P>
size_t left_bytes(int64_t rows, int64_t k) {
  return aligned64(rows * P::row_bytes(k));
}

// What runs between the parts of a product when nothing does.
struct Nothing {
  void operator()() const {}
};

// c [rows, panel_width, row stride ldc] = start + left x the unit of k that begins at k0. A product that interleaves
// calls `between` as often as P::parts says.
template <class P, class Between = const Nothing>
void multiply_unit(const P& product, const Left<P>& left, const Blocks& blocks, int64_t k0, const char* right,
                   Start start, float* c, size_t ldc, Between& between = {}) {
  const int64_t k = smaller(P::unit, left.k - k0);
  for (int64_t b = 0; b < blocks.count; ++b)
    product.multiply(left.block(blocks, b), left.k, blocks.size(b), k0, k, right, start.from(blocks.begin(b)),
                     c + blocks.begin(b) * ldc, ldc, b, blocks.count, between);
}

// The same over a whole panel, units in order.
template <class P, class Between = const Nothing>
void multiply_panel(const P& product, const Left<P>& left, const Blocks& blocks, const char* right, Start start,
                    float* c, size_t ldc, Between& between = {}) {
  for (int64_t u = 0; u * P::unit < left.k; ++u) {
    multiply_unit(product, left, blocks, u * P::unit, right, u ? Start{c, ldc} : start, c, ldc, between);
    right += unit_bytes<P>(left.k, u);
  }
}

}  // namespace
