// Vectors of floats, as wide as the registers of the instruction set that is compiled for, and tiles that fill them.

#pragma once

#ifdef __clang__
#error "kernels need GCC: the OpenMP of clang is not the one that PyTorch has loaded"
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#error "kernels need AVX2 with FMA, or 64-bit ARM"
#endif

namespace sparsenmt {

// A tile of a product is kTileRows rows by kTileVectors vectors: its sums stay in registers, beside a row of the other
// factor. It is small where there are 16 registers (AVX2), larger where there are 32 (AVX-512, NEON).
#if defined(__AVX512F__)
constexpr int64_t kLanes = 16, kTileRows = 14, kTileVectors = 2, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8, kTileRows = 6, kTileVectors = 2, kRegisters = 16;
#else
constexpr int64_t kLanes = 4, kTileRows = 6, kTileVectors = 4, kRegisters = 32;
#endif
constexpr int kBytes = 4 * kLanes;
typedef float Floats __attribute__((vector_size(kBytes)));
typedef int32_t Ints __attribute__((vector_size(kBytes)));
typedef uint32_t Bits __attribute__((vector_size(kBytes)));

inline Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }

inline Floats all(float x) { return x - Floats{}; }  // of a difference with 0, unlike of a sum, no instruction is left

// The first `count` lanes from memory, `other` in the others.
inline Floats load_part(const float* p, int64_t count, float other) {
  if (count >= kLanes) return load(p);
  Floats x = all(other);
  std::memcpy(&x, p, sizeof(float) * count);
  return x;
}

// The first `count` lanes to memory.
inline void store_part(float* p, int64_t count, Floats x) {
  if (count >= kLanes) return store(p, x);
#ifdef __AVX512F__
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1 << count) - 1), x);
#else
  std::memcpy(p, &x, sizeof(float) * count);
#endif
}

// The larger of each two lanes; NaN in b is preserved.
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Lanes of two vectors by their numbers, kLanes and above from the second; `kPick` maps a lane of the result to a number.
template <int (*kPick)(int), class Vector, int... kLane>
inline Vector pick(Vector a, Vector b, std::integer_sequence<int, kLane...>) {
  return __builtin_shuffle(a, b, Ints{kPick(kLane)...});
}

template <int (*kPick)(int), class Vector>
inline Vector pick(Vector a, Vector b) {
  return pick<kPick>(a, b, std::make_integer_sequence<int, static_cast<int>(kLanes)>());
}

template <int kApart>
constexpr int across(int lane) {
  return lane ^ kApart;
}

// Combine lanes that are half a vector apart, then a quarter, and so on: every lane has the result of all.
template <int kApart = kLanes / 2, class Combine>
inline Floats fold(Floats x, Combine combine) {
  x = combine(x, pick<across<kApart>>(x, x));
  if constexpr (kApart > 1) x = fold<kApart / 2>(x, combine);
  return x;
}

inline float largest(Floats x) { return fold(x, larger)[0]; }

inline float total(Floats x) {
  return fold(x, [](Floats a, Floats b) { return a + b; })[0];
}

// Lane numbers for `pick`: of every four lanes of two vectors one half (kSecond: the other), in turns of kTurn lanes.
template <int kTurn, bool kSecond>
constexpr int quarters(int lane) {
  const int within = lane % 4, of_b = within / kTurn % 2, at = within / (2 * kTurn) * kTurn + within % kTurn;
  return lane / 4 * 4 + at + (kSecond ? 2 : 0) + of_b * static_cast<int>(kLanes);
}

// Lane numbers for `pick`: of two vectors the even (kSecond: the odd) groups of four lanes.
template <bool kSecond>
constexpr int alternate(int lane) {
  const int lanes = static_cast<int>(kLanes), group = lane / 4 * 2 + kSecond;
  return group * 4 % lanes + lane % 4 + (group * 4 / lanes) * lanes;
}

// Add pairs of kCount vectors, lanes of one to lanes of the other, until one vector is left.
template <int kCount, class Vector>
inline Vector add_pairs(const Vector* v) {
  Vector found[kCount / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kCount / 2; i++) {
    const Vector a = v[2 * i], b = v[2 * i + 1];
    if constexpr (kCount == kLanes)
      found[i] = pick<quarters<1, false>>(a, b) + pick<quarters<1, true>>(a, b);
    else if constexpr (2 * kCount == kLanes)
      found[i] = pick<quarters<2, false>>(a, b) + pick<quarters<2, true>>(a, b);
    else
      found[i] = pick<alternate<false>>(a, b) + pick<alternate<true>>(a, b);
  }
  if constexpr (kCount > 2)
    return add_pairs<kCount / 2>(found);
  else
    return found[0];
}

// Sums over the lanes of kLanes vectors: lane i of the result is that of vector i.
template <class Vector>
inline Vector sums(const Vector* v) {
  return add_pairs<static_cast<int>(kLanes)>(v);
}

// Call a template with the number of rows of a tile, 1 to kTileRows, as a constant.
template <int kRows = kTileRows, class Call>
inline void by_height(int64_t height, const Call& call) {
  if constexpr (kRows == 1)
    call(std::integral_constant<int, 1>());
  else if (height == kRows)
    call(std::integral_constant<int, kRows>());
  else
    by_height<kRows - 1>(height, call);
}

// e^x for x <= 88; e^-87 below -87; NaN of NaN. Taylor to r^7, |r| <= ln(2) / 2.
inline Floats exponential(Floats x) {
  constexpr float high = 0.693359375f;  // exact in 10 bits
  constexpr float low = static_cast<float>(0.69314718055994530942 - 0.693359375);
  x = larger(all(-87.0f), x);
  const Floats rounded = x * 1.44269504f + 12582912.0f;  // 2^23 + 2^22: the last bits are the nearest whole number
  const Floats n = rounded - 12582912.0f;
  const Floats r = (x - n * high) - n * low;
  Floats q = all(1.0f / 5040);
  q = q * r + 1.0f / 720;
  q = q * r + 1.0f / 120;
  q = q * r + 1.0f / 24;
  q = q * r + 1.0f / 6;
  q = q * r + 0.5f;
  q = q * r + 1.0f;
  q = q * r + 1.0f;
  Bits bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  bits = (bits << 23) + (127u << 23);  // the bits of 2^n; without a conversion, which NaN does not survive
  Floats scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return q * scale;
}

}  // namespace sparsenmt
