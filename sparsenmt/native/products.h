// x W' + b with packed weights in fp32, bf16 or int8, for x and results in fp32.
//
// Weights are stored in panels of 32 columns. Along the inner dimension a panel holds groups of 4 bytes (one float, two
// bf16 or four int8), for all of its columns. A tile (`kTileRows` rows by a panel, or by a part of one) stays in registers
// over the whole inner dimension. Rows of x are rounded once for each product; in int8 each row has a scale and an offset of its own:
// x = scale (u - zero), 0 <= u <= 255, and the sums of the weights' columns correct for the offset.

#pragma once

#include "amx.h"
#include "product_arguments.h"

namespace sparsenmt {
namespace {

constexpr int64_t kTileColumns = kTileVectors * kLanes;
constexpr int64_t kBlock = 252 / kTileRows * kTileRows;  // rows that go through all panels together

#ifdef SPARSENMT_PRODUCTS

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

// Four bytes in every lane.
inline Floats repeat(const Word* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return all(x);
}

// The tile of R rows that begins at this row and column.
template <Kind kind, int R>
__attribute__((noinline)) void tile(const ProductArguments& arguments, int64_t row, int64_t column, const Fetch& fetch) {
  Floats sums[R][kTileVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; v++) sums[r][v] = Floats{};
  const Word *rows = arguments.rows + row * arguments.groups;
  const float* weights = reinterpret_cast<const float*>(arguments.panels) +
                         column / kColumns * kColumns * arguments.groups + column % kColumns;
  for (int64_t g = 0; g < arguments.groups; g++, weights += kColumns) {
    if (g % Fetch::kTurn == 0) fetch.turn(g);
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
    if (column >= arguments.columns) break;
    const Finish<kind> finish(arguments, column);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) finish(row + r, sums[r][v]);
  }
}

template <Kind kind>
void multiply(const ProductArguments& arguments, const ProductRange& part) {
#ifdef SPARSENMT_AMX
  if (kind != kFp32 && arguments.groups % kAmxGroups == 0 && allow_amx()) return multiply_amx<kind>(arguments, part);
#endif
  for (int64_t top = part.top; top < part.bottom; top += kBlock) {
    const int64_t here = std::min(kBlock, part.bottom - top), tiles = (here + kTileRows - 1) / kTileRows;
    const int64_t last = std::min(part.last * kColumns, arguments.columns);
    for (int64_t column = part.first * kColumns; column < last; column += kTileColumns)
      for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = here * i / tiles, to = here * (i + 1) / tiles;
        const Fetch fetch(arguments, column, i, tiles);
        by_height(to - from, [&](auto rows) { tile<kind, rows()>(arguments, top + from, column, fetch); });
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
void round_int8(const float* x, int64_t size, int64_t padded, uint8_t* out, float* scale, float* zero) {
  constexpr int kTogether = 4;  // vectors, so that none waits for the one before
  __m512 low[kTogether] = {}, high[kTogether] = {}, sum[kTogether] = {};
  const auto read = [&](int j, __m512 value) {
    low[j] = _mm512_min_ps(low[j], value);
    high[j] = _mm512_max_ps(high[j], value);
    sum[j] = _mm512_add_ps(sum[j], _mm512_sub_ps(value, value));
  };
  const auto mask = [=](int64_t i) { return static_cast<__mmask16>((1 << (size - i)) - 1); };
  int64_t i = 0;
  for (; i + kTogether * kLanes <= size; i += kTogether * kLanes)
#pragma GCC unroll 4
    for (int j = 0; j < kTogether; j++) read(j, _mm512_loadu_ps(x + i + j * kLanes));
  for (; i + kLanes <= size; i += kLanes) read(0, _mm512_loadu_ps(x + i));
  if (i < size) read(0, _mm512_maskz_loadu_ps(mask(i), x + i));
  for (int j = 1; j < kTogether; j++) {
    low[0] = _mm512_min_ps(low[0], low[j]);
    high[0] = _mm512_max_ps(high[0], high[j]);
    sum[0] = _mm512_add_ps(sum[0], sum[j]);
  }
  const float least = _mm512_reduce_min_ps(low[0]), step = (_mm512_reduce_max_ps(high[0]) - least) / 255.0f;
  const float inverse = step > 0.0f && std::isfinite(step) ? 1.0f / step : 0.0f;
  *scale = step + _mm512_reduce_add_ps(sum[0]);
  *zero = inverse > 0.0f ? std::nearbyint(-least * inverse) : 0.0f;  // `least` may be infinite
  const __m512i offset = _mm512_set1_epi32(static_cast<int32_t>(*zero));
  const auto levels = [=](__m512 numbers) {
    const __m512i level = _mm512_cvtps_epi32(_mm512_mul_ps(numbers, _mm512_set1_ps(inverse)));
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(_mm512_add_epi32(level, offset), _mm512_setzero_si512()));
  };
  for (i = 0; i + kLanes <= size; i += kLanes)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), levels(_mm512_loadu_ps(x + i)));
  if (i < size) _mm_mask_storeu_epi8(out + i, mask(i), levels(_mm512_maskz_loadu_ps(mask(i), x + i)));
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
      row_zero_ = row_scale_ + rows;
    }
    const void* from = matrix.kind == kFp32 ? static_cast<const void*>(x) : rounded_;
    arguments_ = {static_cast<const Word*>(from), static_cast<const Word*>(matrix.panels), groups, matrix.outer,
            matrix.column_scale, matrix.column_sum, row_scale_, row_zero_, matrix.bias, added, relu, out,
            matrix.outer, 0};
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
    ProductArguments arguments = arguments_;
    if (part.width) arguments.step = part.width, arguments.origin = part.first * kColumns;
    switch (matrix_.kind) {
#ifdef SPARSENMT_BF16
      case kBf16: return multiply<kBf16>(arguments, part);
#endif
#ifdef SPARSENMT_INT8
      case kInt8: return multiply<kInt8>(arguments, part);
#endif
      default: return multiply<kFp32>(arguments, part);
    }
  }

 private:
  const Matrix& matrix_;
  const float* x_;
  char* rounded_;
  float* row_scale_ = nullptr;
  float* row_zero_ = nullptr;
  ProductArguments arguments_;
};

#endif

}  // namespace
}  // namespace sparsenmt
