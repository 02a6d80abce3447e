// Products of bf16 or int8 on the tiles of AMX: registers of 16 rows of 64 bytes, whose products are sums over the inner
// dimension, 64 bytes at a time. The groups of a panel are laid out as the tiles of the second factor.

#pragma once

#include "product_arguments.h"

#if (defined(__AMX_TILE__) || defined(__AMX_INT8__) || defined(__AMX_BF16__)) && \
    !(defined(__AVX512BF16__) && defined(__AVX512VNNI__))
#error "AMX is used beside AVX-512 with VNNI and bf16 only: the layout of its tiles is that of their panels"
#endif
#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__linux__)
#define SPARSENMT_AMX 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sparsenmt {
namespace {

constexpr int64_t kAmxRows = 16, kAmxGroups = 16, kAmxBytes = 64;  // of a tile
constexpr int64_t kAmxSums = kAmxRows * kAmxGroups;

// Asks Linux for the tiles, which a process may not use before; false if it refuses.
inline bool allow_amx() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return allowed;
}

// The shapes of this thread's tiles, for as long as the object lives: 0 to 3 hold sums, 4 and 5 rows of the first
// factor, 6 and 7 groups of the second one.
class AmxShapes {
 public:
  explicit AmxShapes(int64_t height) {
    struct alignas(64) {
      uint8_t palette, start, reserved[14];
      uint16_t bytes[16];
      uint8_t rows[16];
    } shapes{};
    shapes.palette = 1;
    for (int i = 0; i < 8; i++) {
      shapes.bytes[i] = kAmxBytes;
      shapes.rows[i] = static_cast<uint8_t>(i < 6 ? height : kAmxGroups);
    }
    asm volatile("" : : "r"(&shapes) : "memory");  // GCC's intrinsic names the first bytes only as its input
    _tile_loadconfig(&shapes);
    asm volatile("" ::: "memory");  // GCC's loads do not say that they read memory: what was written before is there
  }
  ~AmxShapes() { _tile_release(); }
  AmxShapes(const AmxShapes&) = delete;
  AmxShapes& operator=(const AmxShapes&) = delete;
};

// The sums of one or two tiles of rows by a panel, whose results are stored while the next ones are computed.
template <Kind kind>
class AmxSums {
 public:
  // Four tiles: of the first rows the left and the right half of the panel, then of the second ones.
  float* tiles() { return tiles_; }

  // New sums are in the tiles: of the panel that begins with this column.
  void begin(const ProductArguments& arguments, int64_t column) {
    left_.emplace(arguments, column);
    right_.reset();
    if (column + kLanes < arguments.columns) right_.emplace(arguments, column + kLanes);
    count_ = tile_ = done_ = 0;
  }

  // A tile's `rows` rows from `top` on, which begin in row `skipped` of it.
  void add(int64_t top, int64_t rows, int64_t skipped) {
    first_[count_] = top;
    rows_[count_] = rows;
    skipped_[count_++] = skipped;
  }

  // Store the results of some rows, as many as are left at most.
  void store(int64_t rows) {
    while (rows > 0 && tile_ < count_) {
      const int64_t here = std::min(rows, rows_[tile_] - done_), top = first_[tile_] + done_;
      const float* from = tiles_ + 2 * tile_ * kAmxSums + (skipped_[tile_] + done_) * kLanes;
      left_->rows(top, here, from);
      if (right_) right_->rows(top, here, from + kAmxSums);
      rows -= here;
      done_ += here;
      if (done_ == rows_[tile_]) tile_++, done_ = 0;
    }
  }

 private:
  alignas(kAmxBytes) float tiles_[4 * kAmxSums];
  std::optional<Finish<kind>> left_, right_;
  int64_t first_[2], rows_[2], skipped_[2];
  int64_t count_ = 0, tile_ = 0, done_ = 0;
};

// The sums of one or two tiles of rows by a panel's two halves. rows: `groups` groups each, `below` the second tile's;
// meanwhile: called for every tile along the inner dimension, with its number.
template <Kind kind, bool two, class Meanwhile>
inline void amx_sums(const char* rows, const char* below, const char* panel, int64_t groups, const Meanwhile& meanwhile,
                     float* out) {
  constexpr int64_t kPanelStep = 4 * kColumns;
  const int64_t step = 4 * groups;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t g = 0; g < groups; g += kAmxGroups, panel += kAmxGroups * kPanelStep) {
    _tile_loadd(6, panel, kPanelStep);
    _tile_loadd(4, rows + 4 * g, step);
    _tile_loadd(7, panel + kAmxBytes, kPanelStep);
    if constexpr (kind == kInt8) {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 4, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (two) {
      _tile_loadd(5, below + 4 * g, step);
      if constexpr (kind == kInt8) {
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
      } else {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    meanwhile(g);
  }
  _tile_stored(0, out, kAmxBytes);
  _tile_stored(1, out + kAmxSums, kAmxBytes);
  if constexpr (two) {
    _tile_stored(2, out + 2 * kAmxSums, kAmxBytes);
    _tile_stored(3, out + 3 * kAmxSums, kAmxBytes);
  }
}

// A part of a product whose inner dimension is a whole number of tiles. The last tile of rows begins early enough, and of
// it only the rows that are new are stored. Results are stored while the next tiles are multiplied.
template <Kind kind>
void multiply_amx(const ProductArguments& arguments, const ProductRange& part) {
  constexpr int64_t kTogether = 16 * kAmxRows;  // rows that go through all panels
  const int64_t height = std::min(kAmxRows, part.bottom - part.top), step = 4 * arguments.groups;
  const int64_t last = std::min(part.last * kColumns, arguments.columns), turns = arguments.groups / kAmxGroups;
  if (height <= 0) return;
  const AmxShapes shapes(height);
  AmxSums<kind> sums;
  const char *rows = reinterpret_cast<const char*>(arguments.rows), *panels = reinterpret_cast<const char*>(arguments.panels);
  for (int64_t block = part.top; block < part.bottom; block += kTogether) {
    const int64_t end = std::min(block + kTogether, part.bottom), pairs = (end - block + 2 * kAmxRows - 1) / (2 * kAmxRows);
    for (int64_t column = part.first * kColumns; column < last; column += kColumns)
      for (int64_t top = block; top < end; top += 2 * kAmxRows) {
        const Fetch fetch(arguments, column, (top - block) / (2 * kAmxRows), pairs);
        const int64_t stored = (2 * kAmxRows + turns - 1) / turns;
        const auto meanwhile = [&](int64_t group) {
          fetch.turn(group);
          sums.store(stored);
        };
        const auto start = [&](int64_t row) { return std::min(row, part.bottom - height); };
        const bool two = top + kAmxRows < end;
        const int64_t first = start(top), second = start(top + kAmxRows);
        const char *from = rows + first * step, *below = rows + second * step, *panel = panels + column * step;
        if (two)
          amx_sums<kind, true>(from, below, panel, arguments.groups, meanwhile, sums.tiles());
        else
          amx_sums<kind, false>(from, below, panel, arguments.groups, meanwhile, sums.tiles());
        sums.begin(arguments, column);
        sums.add(top, std::min(height, end - top), top - first);
        if (two) sums.add(top + kAmxRows, std::min(height, end - top - kAmxRows), top + kAmxRows - second);
      }
  }
  sums.store(2 * kAmxRows);
}

}  // namespace
}  // namespace sparsenmt
#endif
