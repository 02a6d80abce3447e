// x W' + b with packed weights in fp32, bf16 or int8, for x and results in fp32.
//
// Weights are stored in panels of 32 columns. Along the inner dimension a panel holds groups of 4 bytes (one float, two
// bf16 or four int8), for all of its columns. A tile (`kTileRows` rows by a panel, or by a part of one) stays in registers
// over the whole inner dimension. Rows of x are rounded once for each product; in int8 each row has a scale and an offset of its own:
// x = scale (u - zero), 0 <= u <= kLevels, and the sums of the weights' columns correct for the offset.

#pragma once

#include "amx.h"
#include "product_arguments.h"

namespace sparsenmt {
namespace {

constexpr int64_t kTileColumns = kTileVectors * kLanes;
constexpr int64_t kBlock = 252 / kTileRows * kTileRows;  // rows that go through all panels together

// Add the products of a row's four bytes, in every lane, with a vector of weights. Inline assembly: with intrinsics
// compilers of 2022 copy the sums.
template <Kind kind>
inline void add_products(Floats& sum, Floats row, const float* weights) {
#ifdef __x86_64__
  if constexpr (kind == kFp32) asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(row), "v"(load(weights)));
#else
  if constexpr (kind == kFp32) sum += row * load(weights);
#endif
#ifdef SPARSENMT_BF16
  if constexpr (kind == kBf16) asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(row), "v"(load(weights)));
#endif
#ifdef SPARSENMT_INT8
  if constexpr (kind == kInt8) {
#if defined(__AVX512VNNI__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(row), "v"(load(weights)));
#elif defined(SPARSENMT_AVX_VNNI)
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(row), "x"(load(weights)));
#elif defined(SPARSENMT_INT8_PAIRS)
    // Weights are read where they stand: with 16 registers there is none left for them.
    typedef Ints __attribute__((may_alias, aligned(4))) Weights;
    const Ints ones = Ints{} + 0x00010001;  // of 16 bits
    Ints pairs;
    asm("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
        : "+v"(sum), "=&v"(pairs)
        : "v"(row), "m"(*reinterpret_cast<const Weights*>(weights)), "v"(ones));
#else
    sum = (Floats)vdotq_s32((int32x4_t)sum, (int8x16_t)row, (int8x16_t)load(weights));
#endif
  }
#endif
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
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Floats x = repeat(rows + r * arguments.groups + g);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; v++) add_products<kind>(sums[r][v], x, weights + v * kLanes);
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

// A part of a product, by tiles of equal height, as far as possible.
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
// x (size) -> out (padded) in bf16, with zeros after the last number.
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
#ifdef __ARM_FEATURE_DOTPROD
constexpr int kStoredLess = 128;  // subtracted from levels in memory, as products are of signed bytes
#else
constexpr int kStoredLess = 0;
#endif

// The smallest and the largest of some numbers and 0, lane by lane, and NaN where one of them is not finite.
struct Bounds {
  Floats low{}, high{}, broken{};  // broken: 0 or NaN

  // `low` and `high` take one instruction each, and may lose a NaN.
  void add(Floats least, Floats most) {
#if defined(__AVX512F__)
    low = (Floats)_mm512_min_ps((__m512)low, (__m512)least);
    high = (Floats)_mm512_max_ps((__m512)high, (__m512)most);
#elif defined(__AVX2__)
    low = (Floats)_mm256_min_ps((__m256)low, (__m256)least);
    high = (Floats)_mm256_max_ps((__m256)high, (__m256)most);
#else
    low = low < least ? low : least;
    high = high > most ? high : most;
#endif
  }

  void add(Floats numbers) {
    add(numbers, numbers);
    broken += numbers * 0.0f;
  }

  void add(const Bounds& other) {
    add(other.low, other.high);
    broken += other.broken;
  }
};

// The levels of numbers, already divided by the scale, to the first `count` bytes from `out` on.
inline void store_levels(uint8_t* out, int64_t count, Floats numbers, Ints zero) {
#if defined(__AVX512F__)
  __m512i level = _mm512_max_epi32(_mm512_add_epi32(_mm512_cvtps_epi32((__m512)numbers), (__m512i)zero), _mm512_setzero_si512());
  if constexpr (kLevels < 255) level = _mm512_min_epi32(level, _mm512_set1_epi32(kLevels));
  _mm_mask_storeu_epi8(out, static_cast<__mmask16>((1 << std::min(count, kLanes)) - 1), _mm512_cvtusepi32_epi8(level));
#else
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
#if defined(__AVX2__)
  Ints level = (Ints)_mm256_cvtps_epi32((__m256)numbers) + zero;
#else
  Ints level = (Ints)vcvtnq_s32_f32((float32x4_t)numbers) + zero;
#endif
  level = level > 0 ? level : Ints{};
  level = level < kLevels ? level : Ints{} + kLevels;
  const Bytes found = __builtin_convertvector(level - kStoredLess, Bytes);
  if (count >= kLanes)
    std::memcpy(out, &found, sizeof found);
  else
    std::memcpy(out, &found, count);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// The levels of four vectors, 32 bytes.
inline void store_levels_of_four(uint8_t* out, const float* x, Floats inverse, Ints zero) {
  __m256i level[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++)
    level[j] = (__m256i)((Ints)_mm256_cvtps_epi32((__m256)(load(x + j * kLanes) * inverse)) + zero);
  const __m256i low = _mm256_packs_epi32(level[0], level[1]), high = _mm256_packs_epi32(level[2], level[3]);
  const __m256i bytes = _mm256_min_epu8(_mm256_packus_epi16(low, high), _mm256_set1_epi8(static_cast<char>(kLevels)));
  // Packing leaves the halves of the vectors side by side.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(bytes, order));
}
#endif

// x (size) -> out (padded) levels, with zeros after the last one, the scale and the offset: x = scale (level - zero). A NaN
// anywhere in a row makes its scale NaN, and so all its results.
void round_int8(const float* x, int64_t size, int64_t padded, uint8_t* out, float* scale, float* zero) {
  constexpr int kTogether = 4;  // vectors, so that none waits for the one before
  Bounds bounds[kTogether];
  int64_t i = 0;
  for (; i + kTogether * kLanes <= size; i += kTogether * kLanes)
#pragma GCC unroll 4
    for (int j = 0; j < kTogether; j++) bounds[j].add(load(x + i + j * kLanes));
  for (; i < size; i += kLanes) bounds[0].add(load_part(x + i, size - i, 0.0f));
  for (int j = 1; j < kTogether; j++) bounds[0].add(bounds[j]);
  const float least = -largest(-bounds[0].low), step = (largest(bounds[0].high) - least) / kLevels;
  // The inverse of a step below 3e-39 is infinite: such a row counts as zeros.
  const float inverse = step > 0.0f && std::isfinite(1.0f / step) ? 1.0f / step : 0.0f;
  const float offset = inverse > 0.0f ? std::nearbyint(-least * inverse) : 0.0f;  // `least` may be infinite
  *scale = step + total(bounds[0].broken);
  *zero = offset - kStoredLess;
  const Ints added = Ints{} + static_cast<int32_t>(offset);
  i = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) store_levels_of_four(out + i, x + i, all(inverse), added);
#endif
  for (; i + kLanes <= size; i += kLanes) store_levels(out + i, kLanes, load(x + i) * inverse, added);
  if (i < size) store_levels(out + i, size - i, load_part(x + i, size - i, 0.0f) * inverse, added);
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

  // Round rows `top` to `bottom` - 1 to the kind of the weights.
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

}  // namespace
}  // namespace sparsenmt
