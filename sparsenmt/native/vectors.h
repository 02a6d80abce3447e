// Vectors of 16 floats, in the widest registers of the processor.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sparsenmt {

constexpr int64_t kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));

// Lanes of two vectors by their numbers, 16 and above from the second. GCC before 12 has only the older builtin.
#if defined(__has_builtin) && !defined(SPARSENMT_OLD_SHUFFLE)
#if __has_builtin(__builtin_shufflevector)
#define SPARSENMT_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef SPARSENMT_SHUFFLE
#define SPARSENMT_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

inline Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }

inline Floats all(float x) { return Floats{} + x; }

// The first `count` lanes from memory, `other` in the others.
inline Floats load_part(const float* p, int64_t count, float other) {
  if (count >= kLanes) return load(p);
  Floats x = all(other);
  std::memcpy(&x, p, sizeof(float) * count);
  return x;
}

// NaN in b is preserved.
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Reduce over the lanes: combine lanes 8 apart, then 4, 2 and 1.
#define SPARSENMT_FOLD(x, combine)                                                                            \
  x = combine(x, SPARSENMT_SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));           \
  x = combine(x, SPARSENMT_SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));           \
  x = combine(x, SPARSENMT_SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));           \
  x = combine(x, SPARSENMT_SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))

inline Floats sum_of(Floats a, Floats b) { return a + b; }

inline float largest(Floats x) {
  SPARSENMT_FOLD(x, larger);
  return x[0];
}

inline float total(Floats x) {
  SPARSENMT_FOLD(x, sum_of);
  return x[0];
}

// Sums over the lanes of 16 vectors: lane i of the result is that of vector i.
template <class Vector>
inline Vector sums(const Vector* v) {
  Vector a[8], b[4], c[2];
  for (int i = 0; i < 8; i++)
    a[i] = SPARSENMT_SHUFFLE(v[2 * i], v[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
           SPARSENMT_SHUFFLE(v[2 * i], v[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  for (int i = 0; i < 4; i++)
    b[i] = SPARSENMT_SHUFFLE(a[2 * i], a[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           SPARSENMT_SHUFFLE(a[2 * i], a[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  for (int i = 0; i < 2; i++)
    c[i] = SPARSENMT_SHUFFLE(b[2 * i], b[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           SPARSENMT_SHUFFLE(b[2 * i], b[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  return SPARSENMT_SHUFFLE(c[0], c[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         SPARSENMT_SHUFFLE(c[0], c[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
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
