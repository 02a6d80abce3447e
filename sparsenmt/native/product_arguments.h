// The arguments of a product, the step from its sums to its results, and what it reads ahead.
//
// N rows of x, and panels of 32 columns of the weights (products.h).

#pragma once

#include <algorithm>
#include <optional>

#include "vectors.h"

// Each kind by what it needs: Cascade Lake and Ice Lake have no bf16, older processors with AVX-512 neither. int8 is
// everywhere but on ARM processors without products of bytes.
#if defined(__AVX512F__) && defined(__AVX512BF16__)
#define SPARSENMT_BF16 1
#endif
#if defined(__x86_64__) || defined(__ARM_FEATURE_DOTPROD)
#define SPARSENMT_INT8 1
#endif
#if defined(__AVXVNNI__) && !defined(__AVX512F__)
#define SPARSENMT_AVX_VNNI 1  // of vectors of 256 bits: there are none of 512
#elif defined(__x86_64__) && !defined(__AVX512VNNI__)
#define SPARSENMT_INT8_PAIRS 1  // sums of two products in 16 bits, which saturate
#endif

namespace sparsenmt {
namespace {

constexpr int64_t kColumns = 32;  // of a panel

enum Kind { kFp32, kBf16, kInt8 };  // numbered as in packing.py

using Word = int32_t __attribute__((may_alias));  // four bytes of any kind

// In int8 a row of x has the levels 0 to kLevels. Where sums of two products must fit 16 bits, two neighbouring weights of
// the same sign must not be above kMostOfPair together (0: any may), so that kLevels * kMostOfPair < 2^15. Fewer levels cost
// precision of x, a smaller sum that of the weights: of normally distributed ones, the largest sum of two is about
// 1.4 times the largest weight, 127.
#ifdef SPARSENMT_INT8_PAIRS
constexpr int kLevels = 192, kMostOfPair = 170;
static_assert(kLevels * kMostOfPair < 1 << 15, "sums of two products fit 16 bits");
#else
constexpr int kLevels = 255, kMostOfPair = 0;
#endif

struct ProductArguments {
  const Word *rows, *panels;  // (N, groups), rounded as the weights are; (columns / 32, groups, 32)
  int64_t groups;  // of 4 bytes, along the inner dimension
  int64_t columns;  // of the results: rows of the weight
  const float* column_scale;  // (columns), of int8, as the next one
  const int32_t* column_sum;
  const float* row_scale;  // (N), of int8, as the next one
  const float* row_zero;
  const float *bias, *added;  // (columns); (N, columns), added after the ReLU; either may be null
  bool relu;
  float* out;
  int64_t step, origin;  // of the rows of `out` and `added`; their first column

  int64_t at(int64_t row, int64_t column) const { return row * step + column - origin; }
};

// The scales, and the sums over the inner dimension, of a vector of int8 columns.
struct Columns {
  Floats scale, sum;
};

// The value of int8 sums. Whole numbers up to 2^24 are exact in floats, as are their products before they are added.
inline Floats rescaled(Ints sums, const Columns& columns, float row_scale, float row_zero, Floats bias) {
  const Floats centred = __builtin_convertvector(sums, Floats) - columns.sum * row_zero;
  return centred * (columns.scale * row_scale) + bias;
}

// From the sums of a vector of columns, which begins with `column`, to results.
template <Kind kind>
class Finish {
 public:
  Finish(const ProductArguments& arguments, int64_t column)
      : arguments_(arguments), column_(column), left_(arguments.columns - column) {
    if (arguments.bias) bias_ = load_part(arguments.bias + column, left_, 0.0f);
    if constexpr (kind == kInt8) {
      columns_.scale = load_part(arguments.column_scale + column, left_, 0.0f);
      const Floats sum = load_part(reinterpret_cast<const float*>(arguments.column_sum + column), left_, 0.0f);
      columns_.sum = __builtin_convertvector((Ints)sum, Floats);
    }
  }

  // The sums of int8 are whole numbers in the bits of floats.
  void operator()(int64_t row, Floats sums) const {
    const int64_t at = arguments_.at(row, column_);
    Floats value = this->value(row, sums);
    if (arguments_.relu) value = larger(Floats{}, value);  // in this order NaN is kept
    if (arguments_.added) value += load_part(arguments_.added + at, left_, 0.0f);
    store_part(arguments_.out + at, left_, value);
  }

  // `count` rows from `row` on, whose sums follow each other.
  void rows(int64_t row, int64_t count, const float* sums) const {
    if (left_ < kLanes || (arguments_.relu && arguments_.added)) {
      for (int64_t i = 0; i < count; i++) (*this)(row + i, load(sums + i * kLanes));
    } else if (arguments_.relu) {
      whole_rows(row, count, sums, [](Floats value, int64_t) { return larger(Floats{}, value); });
    } else if (arguments_.added) {
      whole_rows(row, count, sums, [&](Floats value, int64_t at) { return value + load(arguments_.added + at); });
    } else {
      whole_rows(row, count, sums, [](Floats value, int64_t) { return value; });
    }
  }

 private:
  Floats value(int64_t row, Floats sums) const {
    if constexpr (kind == kInt8)
      return rescaled((Ints)sums, columns_, arguments_.row_scale[row], arguments_.row_zero[row], bias_);
    else
      return sums + bias_;
  }

  template <class Then>
  void whole_rows(int64_t row, int64_t count, const float* sums, const Then& then) const {
    int64_t at = arguments_.at(row, column_);
    for (int64_t i = 0; i < count; i++, at += arguments_.step)
      store(arguments_.out + at, then(value(row + i, load(sums + i * kLanes)), at));
  }

  const ProductArguments& arguments_;
  const int64_t column_, left_;
  Floats bias_ = {};
  Columns columns_ = {};
};

// A part of a product.
struct ProductRange {
  int64_t top, bottom;  // rows
  int64_t first, last;  // panels
  int64_t width = 0;    // 0: results are those of all columns; otherwise of a row of results, from the first panel on
};

// The next panel, of which each of some tiles fetches its share into the cache, in turns of kTurn groups: panels that come
// from memory would otherwise be waited for.
class Fetch {
 public:
  static constexpr int64_t kTurn = 16;

  Fetch(const ProductArguments& arguments, int64_t column, int64_t tile, int64_t tiles) {
    if (column + kColumns >= arguments.columns) return;
    lines_ = (kLines + tiles - 1) / tiles;
    const int64_t next = (column / kColumns + 1) * kColumns * arguments.groups;  // words
    from_ = reinterpret_cast<const char*>(arguments.panels + next) + tile * lines_ * kLine * (arguments.groups / kTurn);
  }

  // Fetch what belongs to the turn that begins with a group.
  void turn(int64_t group) const {
    const char* line = from_ + group / kTurn * lines_ * kLine;
    for (int64_t i = 0; i < lines_; i++) __builtin_prefetch(line + i * kLine, 0, 2);
  }

 private:
  static constexpr int64_t kLine = 64, kLines = kTurn * kColumns * 4 / kLine;
  const char* from_ = nullptr;
  int64_t lines_ = 0;  // in a turn
};

}  // namespace
}  // namespace sparsenmt
