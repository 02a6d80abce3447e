// Arithmetic on floats and on vectors as wide as the processor's. Part of native.cpp.

#pragma once

#ifdef __clang__
#error "kernels need GCC: the OpenMP of clang is not the one that PyTorch has loaded"
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace {

#if defined(__AVX512F__) && defined(__AVX512DQ__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
constexpr int64_t kLanes = kBytes / 4;
typedef float Vector __attribute__((vector_size(kBytes)));
typedef int32_t Mask __attribute__((vector_size(kBytes)));  // -1 where something holds, or 0
typedef uint32_t Bits __attribute__((vector_size(kBytes)));

constexpr float kNever = -1e30f;        // d of a masked key
constexpr float kClose = 2e-7f;         // largest |S - 1|; the row is normalised afterwards
constexpr float kNoise = 1e-5f;         // below this |S - 1|, no progress means rounding
constexpr int kMost = 64;               // steps; a handful is usual
constexpr float kNear = 0.03f;          // largest |S - 1| of an initial threshold
constexpr int kCheap = 3;               // steps towards an initial threshold
constexpr float kLeast = 0x1p-126f;     // smaller weights are 0: newton.LEAST, the smallest normal number
constexpr float kLn2Hi = 0.693359375f;  // exact in 10 bits
constexpr float kLn2Lo = static_cast<float>(0.69314718055994530942 - 0.693359375);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum Kind { kSoftmax, kEntmax15, kSparsemax, kGeneral, kKinds };

Kind kind_of(float alpha) {
  if (alpha == 1.0f) return kSoftmax;
  if (alpha == 1.5f) return kEntmax15;
  return alpha == 2.0f ? kSparsemax : kGeneral;
}

template <class Number>
struct Sums {
  Number mass, slope;  // S = sum c p, and -b dS/de = sum c p / u
};

// Bits are unsigned: their shifts and sums may run over.
inline Bits bits_of(Vector x) { return (Bits)x; }
inline Vector float_of(Bits bits) { return (Vector)bits; }
inline Vector exponent_of(Bits x) { return __builtin_convertvector((Mask)x >> 23, Vector); }
inline float exponent_of(uint32_t x) { return static_cast<float>(static_cast<int32_t>(x) >> 23); }

inline uint32_t bits_of(float x) {
  uint32_t i;
  std::memcpy(&i, &x, sizeof i);
  return i;
}

inline float float_of(uint32_t i) {
  float x;
  std::memcpy(&x, &i, sizeof x);
  return x;
}

// e^x for x <= 88; 0 below -127.5 ln(2). Taylor to r^7, |r| <= ln(2) / 2.
template <class Number>
inline Number exponential(Number x) {
  x = x < -88.0f ? Number{} - 88.0f : x;
  const Number rounded = x * 1.44269504f + 12582912.0f;  // 2^23 + 2^22: the last bits are the nearest whole number
  const Number n = rounded - 12582912.0f;
  const Number r = (x - n * kLn2Hi) - n * kLn2Lo;
  Number q = r * (1.0f / 5040) + 1.0f / 720;
  q = q * r + 1.0f / 120;
  q = q * r + 1.0f / 24;
  q = q * r + 1.0f / 6;
  q = q * r + 0.5f;
  q = q * r + 1.0f;
  // The bits of 2^n, without a conversion, which NaN does not survive.
  return (q * r + 1.0f) * float_of((bits_of(rounded) << 23) + (127u << 23));
}

// ln x for normal x > 0, as 2 artanh(f / (2 + f)) of a mantissa 1 + f in [sqrt(1/2), sqrt(2)).
template <class Number>
inline Number logarithm(Number x) {
  const auto bits = bits_of(x), above = bits - 0x3f3504f3u;
  const Number f = float_of(bits - (above & 0xff800000u)) - 1.0f, n = exponent_of(above);
  const Number s = f / (2.0f + f), w = s * s;
  Number q = w * (1.0f / 9) + 1.0f / 7;
  q = q * w + 1.0f / 5;
  q = q * w + 1.0f / 3;
  return n * kLn2Hi + (2.0f * s + 2.0f * s * w * q + n * kLn2Lo);
}

// (1 - e^y + y e^y) / y^2 for y <= 0, given e^y: a series where that would cancel.
template <class Number>
inline Number curvature(Number y, Number power) {
  Number q = y * (1.0f / 5760) + 1.0f / 840;
  q = q * y + 1.0f / 144;
  q = q * y + 1.0f / 30;
  q = q * y + 1.0f / 8;
  q = q * y + 1.0f / 3;
  q = q * y + 1.0f / 2;
  const Number far = y > -0.3f ? Number{} + 1.0f : y;
  const Number direct = (1.0f - power + far * power) / (far * far);
  return y > -0.3f ? q : direct;
}

inline Vector splat(float x) { return x - Vector{}; }

inline Vector positive(Vector x) { return x < 0.0f ? Vector{} : x; }

// A weight, or 0 if no normal number holds it; NaN stays.
inline Vector weight_or_zero(Vector p) { return p < kLeast ? Vector{} : p; }
inline float weight_or_zero(float p) { return p < kLeast ? 0.0f : p; }

inline Vector absolute(Vector x) { return (Vector)((Mask)x & 0x7fffffff); }

inline Vector root(Vector x) {
  float lanes[kLanes];
  std::memcpy(lanes, &x, sizeof x);
#pragma omp simd
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = std::sqrt(lanes[i]);
  std::memcpy(&x, lanes, sizeof x);
  return x;
}

inline bool all_of(Mask x) {
  int32_t lanes[kLanes], all = -1;
  std::memcpy(lanes, &x, sizeof x);
#pragma omp simd reduction(& : all)
  for (int64_t i = 0; i < kLanes; ++i) all &= lanes[i];
  return all != 0;
}

// Permutation of the lanes of two vectors that swaps the squares of kHalf lanes beside the diagonal.
template <int kHalf, bool kSecond>
constexpr int swapped(int lane) {
  const int there = lane & kHalf, lanes = static_cast<int>(kLanes);
  return kSecond ? (there ? lanes + lane : lane + kHalf) : (there ? lanes + lane - kHalf : lane);
}

template <int kHalf, bool kSecond, int... kLane>
inline Vector swap(Vector a, Vector b, std::integer_sequence<int, kLane...>) {
  return __builtin_shuffle(a, b, Mask{swapped<kHalf, kSecond>(kLane)...});
}

// Transpose.
template <int kHalf = 1>
inline void transpose(Vector (&lines)[kLanes]) {
  if constexpr (kHalf < kLanes) {
    constexpr std::make_integer_sequence<int, static_cast<int>(kLanes)> all;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & kHalf) continue;
      const Vector a = lines[i], b = lines[i + kHalf];
      lines[i] = swap<kHalf, false>(a, b, all);
      lines[i + kHalf] = swap<kHalf, true>(a, b, all);
    }
    transpose<2 * kHalf>(lines);
  }
}

// The first `wanted` floats, and `rest` in the other lanes; any values there if `readable` floats fill the vector.
inline Vector read_lanes(const float *from, int64_t wanted, int64_t readable, float rest) {
  Vector x = splat(rest);
  if (readable >= kLanes)
    std::memcpy(&x, from, sizeof x);
  else
    std::memcpy(&x, from, wanted * sizeof(float));
  return x;
}

inline void write_lanes(float *to, Vector x, int64_t wanted) {
  if (wanted >= kLanes)
    std::memcpy(to, &x, sizeof x);
  else
    std::memcpy(to, &x, wanted * sizeof(float));
}

}  // namespace
