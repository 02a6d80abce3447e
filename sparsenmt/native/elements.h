// Vectors of numbers that are stored in fp32 or in bf16, and computed with in fp32.

#pragma once

#include "vectors.h"

namespace sparsenmt {

using Bf16 = uint16_t;
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

inline Floats load_from(const float* p) { return load(p); }

inline Floats load_from(const Bf16* p) {
  Halves halves;
  std::memcpy(&halves, p, sizeof halves);
  const Bits bits = __builtin_convertvector(halves, Bits) << 16;
  Floats x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline void store_to(float* p, Floats x) { store(p, x); }

// Rounded to the nearest bf16, of two the even one; NaN stays NaN.
inline void store_to(Bf16* p, Floats x) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof bits);
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Bits kept = (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded;
  const Halves halves = __builtin_convertvector(kept, Halves);
  std::memcpy(p, &halves, sizeof halves);
}

inline float number(float x) { return x; }

inline float number(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

}  // namespace sparsenmt
