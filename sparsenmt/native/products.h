// x W' + b with packed weights in fp32, bf16 or int8, for x and results in fp32.
//
// Weights are stored in panels of 32 columns. Along the inner dimension a panel holds groups of 4 bytes (one float, two
// bf16 or four int8), for all of its columns. A tile (`kTileRows` rows by a panel, or by a part of one) stays in registers
// over the whole inner dimension. Rows of x are rounded once for each product; in int8 each row has a scale and an offset of its own:
// x = scale (u - zero), 0 <= u <= 255, and the sums of the weights' columns correct for the offset.

#pragma once

#include <algorithm>

#include "vectors.h"

// Each kind by what it needs: Cascade Lake and Ice Lake have no bf16, older processors with AVX-512 neither. With AVX2
// alone int8 would need more instructions than fp32: its products of bytes saturate.
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
#define SPARSENMT_PRODUCTS 1
#endif
#ifdef __AVX512F__
#ifdef __AVX512BF16__
#define SPARSENMT_BF16 1
#endif
#ifdef __AVX512VNNI__
#define SPARSENMT_INT8 1
#endif
#endif

namespace sparsenmt {
namespace {

constexpr int64_t kColumns = 32;  // of a panel
constexpr int64_t kTileColumns = kTileVectors * kLanes;
constexpr int64_t kBlock = 252 / kTileRows * kTileRows;  // rows that go through all panels together

#ifdef SPARSENMT_PRODUCTS

enum Kind { kFp32, kBf16, kInt8 };  // numbered as in packing.py

using Word = int32_t __attribute__((may_alias));  // four bytes of any kind

struct ProductArguments {
  const Word *rows, *panels;
  int64_t groups;  // of 4 bytes, along the inner dimension
  int64_t columns;
  const float* column_scale;
  const int32_t* column_sum;
  const float* row_scale;
  const int32_t* row_zero;
  const float *bias, *added;  // either may be null
  bool relu;
  float* out;
};

template <Kind kind>
inline Floats step(Floats sum, Floats row, Floats weights) {
#ifdef __x86_64__
  // Inline assembly: with intrinsics compilers of 2022 copy the sums.
  if constexpr (kind == kFp32) asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(row), "v"(weights));
#else
  if constexpr (kind == kFp32) sum += row * weights;
#endif
#ifdef SPARSENMT_BF16
  if constexpr (kind == kBf16) asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(row), "v"(weights));
#endif
#ifdef SPARSENMT_INT8
  if constexpr (kind == kInt8) asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(row), "v"(weights));
#endif
  return sum;
}

// The scales and offsets of int8 columns.
struct Columns {
  Floats scale;
  Ints sum;
};

// The value of int8 sums.
inline Floats rescaled(Ints sums, const Columns& columns, float row_scale, int32_t row_zero, Floats bias) {
  return __builtin_convertvector(sums - columns.sum * row_zero, Floats) * (columns.scale * row_scale) + bias;
}

// Four bytes in every lane.
inline Floats repeat(const Word* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return all(x);
}

// The tile of R rows that begins at this row and column.
template <Kind kind, int R>
__attribute__((noinline)) void tile(const ProductArguments& arguments, int64_t row, int64_t column) {
  Floats sums[R][kTileVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; v++) sums[r][v] = Floats{};
  const Word *rows = arguments.rows + row * arguments.groups;
  const float* weights = reinterpret_cast<const float*>(arguments.panels) +
                         column / kColumns * kColumns * arguments.groups + column % kColumns;
  for (int64_t g = 0; g < arguments.groups; g++, weights += kColumns) {
    Floats own[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; v++) own[v] = load(weights + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Floats x = repeat(rows + r * arguments.groups + g);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; v++) sums[r][v] = step<kind>(sums[r][v], x, own[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; v++, column += kLanes) {
    const int64_t left = arguments.columns - column;
    if (left <= 0) break;
    const Floats bias = arguments.bias ? load_part(arguments.bias + column, left, 0.0f) : Floats{};
    Columns columns{};
    if constexpr (kind == kInt8) {
      columns.scale = load_part(arguments.column_scale + column, left, 0.0f);
      columns.sum = (Ints)load_part(reinterpret_cast<const float*>(arguments.column_sum + column), left, 0.0f);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const int64_t at = (row + r) * arguments.columns + column;
      Floats value;
      if constexpr (kind == kInt8)
        value = rescaled((Ints)sums[r][v], columns, arguments.row_scale[row + r], arguments.row_zero[row + r], bias);
      else
        value = sums[r][v] + bias;
      if (arguments.relu) value = larger(Floats{}, value);  // in this order NaN is kept
      if (arguments.added) value += load_part(arguments.added + at, left, 0.0f);
      store_part(arguments.out + at, left, value);
    }
  }
}

// A part of a product.
struct ProductRange {
  int64_t top, bottom;  // rows
  int64_t first, last;  // panels
};

template <Kind kind>
void multiply(const ProductArguments& arguments, const ProductRange& part) {
  for (int64_t top = part.top; top < part.bottom; top += kBlock) {
    const int64_t here = std::min(kBlock, part.bottom - top), tiles = (here + kTileRows - 1) / kTileRows;
    const int64_t last = std::min(part.last * kColumns, arguments.columns);
    for (int64_t column = part.first * kColumns; column < last; column += kTileColumns)
      for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = here * i / tiles, to = here * (i + 1) / tiles;
        by_height(to - from, [&](auto rows) { tile<kind, rows()>(arguments, top + from, column); });
      }
  }
}

#ifdef SPARSENMT_BF16
void round_bf16(const float* x, int64_t size, int64_t padded, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    std::memcpy(out + i, &rounded, sizeof rounded);
  }
  if (i < size) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps((1 << (size - i)) - 1, x + i));
    std::memcpy(out + i, &rounded, sizeof *out * (size - i));
  }
  std::fill(out + size, out + padded, 0);
}

#endif

#ifdef SPARSENMT_INT8
// A NaN anywhere in a row makes its scale NaN, and so all its results.
void round_int8(const float* x, int64_t size, int64_t padded, uint8_t* out, float* scale, int32_t* zero) {
  __m512 low = _mm512_setzero_ps(), high = low, sum = low;
  for (int64_t i = 0; i < size; i += kLanes) {
    const __mmask16 mask = size - i >= kLanes ? 0xffff : static_cast<__mmask16>((1 << (size - i)) - 1);
    const __m512 value = _mm512_maskz_loadu_ps(mask, x + i);
    low = _mm512_min_ps(low, value);
    high = _mm512_max_ps(high, value);
    sum = _mm512_add_ps(sum, _mm512_sub_ps(value, value));
  }
  const float least = _mm512_reduce_min_ps(low), step = (_mm512_reduce_max_ps(high) - least) / 255.0f;
  const float inverse = step > 0.0f && std::isfinite(step) ? 1.0f / step : 0.0f;
  *scale = step + _mm512_reduce_add_ps(sum);
  *zero = inverse > 0.0f ? static_cast<int32_t>(std::lrint(-least * inverse)) : 0;  // `least` may be infinite
  const __m512i offset = _mm512_set1_epi32(*zero);
  for (int64_t i = 0; i < size; i += kLanes) {
    const __mmask16 mask = size - i >= kLanes ? 0xffff : static_cast<__mmask16>((1 << (size - i)) - 1);
    const __m512 steps = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(inverse));
    const __m512i level = _mm512_max_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(steps), offset), _mm512_setzero_si512());
    _mm512_mask_cvtusepi32_storeu_epi8(out + i, mask, level);
  }
  std::fill(out + size, out + padded, 0);
}

#endif

// A packed matrix; the same as in packing.py.
struct Matrix {
  const void* panels;
  const float* column_scale;    // (outer), of int8
  const int32_t* column_sum;    // (outer), of int8
  const float* bias;            // (outer), or null
  int64_t inner, outer, kind;

  int64_t groups() const { return kind == kFp32 ? inner : kind == kBf16 ? (inner + 1) / 2 : (inner + 3) / 4; }
  int64_t count() const { return (outer + kColumns - 1) / kColumns; }  // of panels
};

// x (M, inner) W' + bias, (M, outer). `round` the rows first, then `run` the parts.
class Product {
 public:
  // scratch: M (4 groups + 8) bytes, aligned to 4; none for fp32.
  Product(const Matrix& matrix, const float* x, int64_t rows, const float* added, bool relu, float* out, void* scratch)
      : matrix_(matrix), x_(x) {
    const int64_t groups = matrix.groups();
    rounded_ = static_cast<char*>(scratch);
    if (matrix.kind == kInt8) {
      row_scale_ = reinterpret_cast<float*>(rounded_ + rows * groups * 4);
      row_zero_ = reinterpret_cast<int32_t*>(row_scale_ + rows);
    }
    const void* from = matrix.kind == kFp32 ? static_cast<const void*>(x) : rounded_;
    arguments_ = {static_cast<const Word*>(from), static_cast<const Word*>(matrix.panels), groups, matrix.outer,
            matrix.column_scale, matrix.column_sum, row_scale_, row_zero_, matrix.bias, added, relu, out};
  }

  void round(int64_t top, int64_t bottom) const {
    if (matrix_.kind == kFp32) return;
    [[maybe_unused]] const int64_t inner = matrix_.inner;
    for (int64_t m = top; m < bottom; m++) {
      [[maybe_unused]] char* row = rounded_ + m * arguments_.groups * 4;
#ifdef SPARSENMT_BF16
      if (matrix_.kind == kBf16)
        round_bf16(x_ + m * inner, inner, arguments_.groups * 2, reinterpret_cast<uint16_t*>(row));
#endif
#ifdef SPARSENMT_INT8
      if (matrix_.kind == kInt8)
        round_int8(x_ + m * inner, inner, arguments_.groups * 4, reinterpret_cast<uint8_t*>(row), row_scale_ + m,
                   row_zero_ + m);
#endif
    }
  }

  void run(const ProductRange& part) const {
    switch (matrix_.kind) {
#ifdef SPARSENMT_BF16
      case kBf16: return multiply<kBf16>(arguments_, part);
#endif
#ifdef SPARSENMT_INT8
      case kInt8: return multiply<kInt8>(arguments_, part);
#endif
      default: return multiply<kFp32>(arguments_, part);
    }
  }

 private:
  const Matrix& matrix_;
  const float* x_;
  char* rounded_;
  float* row_scale_ = nullptr;
  int32_t* row_zero_ = nullptr;
  ProductArguments arguments_;
};

#endif

}  // namespace
}  // namespace sparsenmt
