// The cell states of one thread's tiles, [tiles, lanes, vector], the unused cells of the last tile zero. Include after
// lstm_layout.h.
#pragma once

namespace {

class CellTiles {
 public:
  CellTiles(const LstmPlan& plan, const LstmDirection& direction, Share tiles, float* cells)
      : plan_(plan), d_(direction), dim_(plan.shape.dim), tiles_(tiles), cells_(cells) {}

  float* at(int64_t tile, int64_t lane) const { return cells_ + (tile * plan_.lanes + lane) * Vec::width; }
  int64_t count(int64_t tile) const { return smaller(Vec::width, dim_ - tile * Vec::width); }

  // c [lanes, 2D] to the tiles.
  void load() const {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile)
      for (int64_t lane = 0; lane < plan_.lanes; ++lane) put(tile, lane, d_.c + lane * 2 * dim_);
  }

  void store() const {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile)
      for (int64_t lane = 0; lane < plan_.lanes; ++lane)
        std::memcpy(d_.c + lane * 2 * dim_ + tile * Vec::width, at(tile, lane), bytes(tile));
  }

  void reset(int64_t lane) const {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) put(tile, lane, d_.reset_c);
  }

 private:
  size_t bytes(int64_t tile) const { return sizeof(float) * static_cast<size_t>(count(tile)); }

  // `from` [D], or null for zeros.
  void put(int64_t tile, int64_t lane, const float* from) const {
    Vec::store(at(tile, lane), Vec::set1(0.0f));
    if (from) std::memcpy(at(tile, lane), from + tile * Vec::width, bytes(tile));
  }

  const LstmPlan& plan_;
  const LstmDirection& d_;
  const int64_t dim_;
  const Share tiles_;
  float* const cells_;
};

}  // namespace
