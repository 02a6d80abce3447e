// Layer normalisation of a row, on the CPU in fp32. D dimension.

#pragma once

#include "vectors.h"

namespace sparsenmt {
namespace {

// The parameters; the same as in steps.py.
struct Norm {
  const float *weight, *bias;  // (D)
};

// x (D) -> out (D), which may be x; size: D, a whole number of vectors.
inline void normalize(const float* x, const Norm& norm, float epsilon, int64_t size, float* out) {
  Floats sum = {};
  for (int64_t i = 0; i < size; i += kLanes) sum += load(x + i);
  const float mean = total(sum) / size;
  Floats squares = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats off = load(x + i) - mean;
    squares += off * off;
  }
  const float scale = 1.0f / std::sqrt(total(squares) / size + epsilon);
  for (int64_t i = 0; i < size; i += kLanes)
    store(out + i, (load(x + i) - mean) * scale * load(norm.weight + i) + load(norm.bias + i));
}

}  // namespace
}  // namespace sparsenmt
