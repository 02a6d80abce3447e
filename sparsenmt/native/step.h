// The parameters of a decoding step, step.cpp.
//
// N rows, B sentences, D dimension, H heads, E = D / H, T positions so far, the new one included, K entries of the memory,
// S slots.

#pragma once

#include "norm.h"
#include "products.h"

namespace sparsenmt {
namespace {

// The parameters of a layer; the same as in steps.py.
struct Layer {
  Matrix own, own_out, query, cross_out, inner, outer;  // own: queries, keys and values at once
  Norm own_norm, cross_norm, feed_forward_norm;
  int64_t own_largest, cross_largest;  // see Head
  int64_t recurrent;                   // own: both projections of a recurrent cell; there is no own_out
  float own_tolerance, cross_tolerance;
};

// The keys and values that a layer reads; the same as in steps.py.
struct LayerCache {
  float *keys, *values;                      // (T, S, H, E): position T - 1 is written here
  float* state;                              // (N, D): of a recurrent layer; it is overwritten
  const float *memory_keys, *memory_values;  // (..., H, K, E)
  const int64_t* memory_rows;                // (B) the row of each sentence, or null: all, in order
  const float* memory_bias;                  // (B, K), or null
  int64_t slots;
};

// The sizes of a step; the same as in steps.py. length: T, entries: K.
struct Sizes {
  int64_t rows, sentences, dimension, feed_forward, heads, length, entries, slot_stride;
  int64_t pre_norm;
  double epsilon;
  const int64_t* starts;  // (B) the first position of each sentence, or null: all 0
};

}  // namespace
}  // namespace sparsenmt

extern "C" int64_t sparsenmt_step_scratch(const void* sizes);
extern "C" int sparsenmt_step(const void* layers, const void* caches, int64_t count, const float* norm_weight,
                              const float* norm_bias, const void* sizes, const int32_t* slots, float* x, float* scratch,
                              float* out, int threads);
