// Long rows, one at a time: keys are along the vectors, padded with masked keys. Part of native.cpp.

#pragma once

#include <cstdlib>

#include "native_math.h"

namespace {
namespace long_rows {

constexpr int64_t kPad = 16;

// Scratch of a thread. Arrays have a multiple of kPad entries; `d` is null without enough memory.
struct Scratch {
  int64_t width;
  float *d, *c, *p, *w;

  explicit Scratch(int64_t keys) : width((keys + kPad - 1) / kPad * kPad) {
    d = static_cast<float *>(std::aligned_alloc(64, 4 * width * sizeof(float)));
    if (d == nullptr) return;
    c = d + width, p = c + width, w = p + width;
    for (int64_t k = 0; k < width; ++k) c[k] = 1.0f;
  }
  ~Scratch() { std::free(d); }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
};

template <bool kCounted>
Sums<float> entmax15_at(const Scratch &row, float e) {
  const float *__restrict d = row.d, *__restrict c = row.c;
  float *__restrict p = row.p;
  float mass = 0, slope = 0;
#pragma omp simd reduction(+ : mass, slope)
  for (int64_t k = 0; k < row.width; ++k) {
    float u = 0.5f * d[k] + (1.0f - e);
    u = u < 0.0f ? 0.0f : u;
    const float count = kCounted ? c[k] : 1.0f;
    p[k] = u * u;
    mass += count * u * u;
    slope += count * u;
  }
  return {mass, slope};
}

template <bool kCounted>
Sums<float> sparsemax_at(const Scratch &row, float e) {
  const float *__restrict d = row.d, *__restrict c = row.c;
  float *__restrict p = row.p;
  float mass = 0, slope = 0;
#pragma omp simd reduction(+ : mass, slope)
  for (int64_t k = 0; k < row.width; ++k) {
    float u = d[k] + (1.0f - e);
    u = u < 0.0f ? 0.0f : u;
    const float count = kCounted ? c[k] : 1.0f;
    p[k] = u;
    mass += count * u;
    slope += u > 0.0f ? count : 0.0f;
  }
  return {mass, slope};
}

template <bool kCounted>
Sums<float> entmax_at(const Scratch &row, float e, float b) {
  const float *__restrict d = row.d, *__restrict c = row.c;
  float *__restrict p = row.p;
  const float inverse = 1.0f / b;
  float mass = 0, slope = 0;
#pragma omp simd reduction(+ : mass, slope)
  for (int64_t k = 0; k < row.width; ++k) {
    const float y = b * d[k] - e;  // u = 1 + y
    const float u = 1.0f + y;
    const float safe = u <= 0.0f ? 1.0f : u;
    const float log_u = logarithm(safe) + (y - (u - 1.0f)) / safe;  // of 1 + y, whose rounding 1 / b would blow up
    const float raw = exponential(log_u * inverse);
    const float weight = u <= 0.0f ? 0.0f : raw;
    const float count = kCounted ? c[k] : 1.0f;
    p[k] = weight;
    mass += count * weight;
    slope += count * weight / safe;
  }
  return {mass, slope};
}

template <bool kCounted>
float softmax_of(const Scratch &row) {
  const float *__restrict d = row.d, *__restrict c = row.c;
  float *__restrict p = row.p;
  float mass = 0;
#pragma omp simd reduction(+ : mass)
  for (int64_t k = 0; k < row.width; ++k) {
    p[k] = exponential(d[k]);
    mass += (kCounted ? c[k] : 1.0f) * p[k];
  }
  return mass;
}

// Newton on S^b from `e`, kept in a bracket that is halved if a step is NaN. Computes row.p; returns its sum.
template <class At, class Step>
float solve(At at, Step step, float e, float close = kClose, int most = kMost, float *solution = nullptr) {
  float low = 0.0f, high = 1.0f, before = kInfinity;
  Sums<float> sums = at(e);
  for (int i = 0; i < most; ++i) {
    const float off = std::fabs(sums.mass - 1.0f);
    if (!(off > close) || (off < kNoise && off > 0.25f * before)) break;  // also stops at NaN
    before = off;
    (sums.mass > 1.0f ? low : high) = e;
    const float next = e + step(sums);
    e = next < low ? low : next > high ? high : next;
    if (e != e) e = 0.5f * (low + high);
    sums = at(e);
  }
  if (solution != nullptr) *solution = e;
  return sums.mass;
}

// Computes row.p from row.d and row.c; returns its sum.
template <bool kCounted>
float weigh(const Scratch &row, Kind kind, float b) {
  const auto half = [&](float e) { return entmax15_at<kCounted>(row, e); };
  const auto half_step = [](Sums<float> s) { return (s.mass - std::sqrt(s.mass)) / s.slope; };
  const auto whole = [&](float e) { return sparsemax_at<kCounted>(row, e); };
  const auto whole_step = [](Sums<float> s) { return (s.mass - 1.0f) / s.slope; };
  switch (kind) {
    case kSoftmax:
      return softmax_of<kCounted>(row);
    case kEntmax15:
      return solve(half, half_step, 0.0f);
    case kSparsemax:
      return solve(whole, whole_step, 0.0f);
    default: {
      // The threshold, e / b in the scale of the scores, falls as alpha rises. A few steps towards that of 1.5, or of 2
      // above it, need no logarithm and stay left of the root.
      float begin = 0.0f;
      if (b < 0.5f)
        solve(half, half_step, 0.0f, kNear, kCheap, &begin);
      else
        solve(whole, whole_step, 0.0f, kNear, kCheap, &begin);
      begin *= b < 0.5f ? 2.0f * b : b;
      const auto step = [b](Sums<float> s) { return s.mass * (1.0f - exponential(-b * logarithm(s.mass))) / s.slope; };
      return solve([&](float e) { return entmax_at<kCounted>(row, e, b); }, step, begin);
    }
  }
}

// The largest, NaN left out. Not as a reduction of OpenMP: that of clang begins at the least finite number.
float largest_of(const float *x, int64_t count) {
  float most[kPad], top = -kInfinity;
  for (float &each : most) each = -kInfinity;
  int64_t k = 0;
  for (; k + kPad <= count; k += kPad)
#pragma omp simd
    for (int64_t i = 0; i < kPad; ++i) most[i] = x[k + i] > most[i] ? x[k + i] : most[i];
  for (; k < count; ++k) most[0] = x[k] > most[0] ? x[k] : most[0];
  for (const float each : most) top = each > top ? each : top;
  return top;
}

// Fills row.d and, with counts, row.c. Returns false if the row is fully masked.
bool load(const Scratch &row, const float *z, const uint8_t *seen, int64_t stride, const float *counts, int64_t keys) {
  float *__restrict d = row.d;
  if (seen != nullptr && stride == 1) {
#pragma omp simd
    for (int64_t k = 0; k < keys; ++k) d[k] = seen[k] ? z[k] : -kInfinity;
  } else if (seen != nullptr) {
    for (int64_t k = 0; k < keys; ++k) d[k] = seen[k * stride] ? z[k] : -kInfinity;
  } else {
    std::memcpy(d, z, keys * sizeof(float));
  }
  const float top = largest_of(d, keys);
  if (counts != nullptr) std::memcpy(row.c, counts, keys * sizeof(float));
  if (top == -kInfinity) return false;
#pragma omp simd
  for (int64_t k = 0; k < keys; ++k) d[k] = d[k] - top < kNever ? kNever : d[k] - top;
  for (int64_t k = keys; k < row.width; ++k) d[k] = kNever;
  return true;
}

// Writes a fully masked row, or one whose scores are NaN.
void write_masked(float *mass, const float *z, const uint8_t *seen, int64_t stride, int64_t keys) {
  for (int64_t k = 0; k < keys; ++k) {
    const bool lost = (seen == nullptr || seen[k * stride]) && std::isnan(z[k]);
    mass[k] = lost ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
}

template <bool kCounted>
void write(const Scratch &row, float sum, float *mass, int64_t keys) {
  const float scale = 1.0f / sum;
  const float *__restrict p = row.p, *__restrict c = row.c;
#pragma omp simd
  for (int64_t k = 0; k < keys; ++k) mass[k] = weight_or_zero(p[k] * scale) * (kCounted ? c[k] : 1.0f);
}

template <bool kCounted>
inline float weight_at(const Scratch &row, const float *mass, int64_t k) {
  if (!kCounted) return mass[k];
  return mass[k] / (row.c[k] > 0.0f ? row.c[k] : 1.0f);
}

// row.p: c s with s = slope(p).
template <bool kCounted, class Slope>
void fill_slopes(const Scratch &row, const float *mass, int64_t keys, Slope slope) {
  float *__restrict p = row.p;
#pragma omp simd
  for (int64_t k = 0; k < keys; ++k) p[k] = (kCounted ? row.c[k] : 1.0f) * slope(weight_at<kCounted>(row, mass, k));
}

// s = p^(2 - alpha), 0 for 0.
inline float slope_of(float weight, float b) {
  const bool none = weight < kLeast;
  const float raw = exponential((1.0f - b) * logarithm(none ? 1.0f : weight));
  return none ? weight * 0.0f : raw;
}

template <bool kCounted>
void slopes(const Scratch &row, const float *mass, Kind kind, float b, int64_t keys) {
  switch (kind) {
    case kSoftmax:
      return fill_slopes<kCounted>(row, mass, keys, [](float p) { return p; });
    case kEntmax15:
      return fill_slopes<kCounted>(row, mass, keys, [](float p) { return std::sqrt(p); });
    case kSparsemax:
      return fill_slopes<kCounted>(row, mass, keys, [](float p) { return p > 0.0f ? 1.0f : p; });
    default:
      return fill_slopes<kCounted>(row, mass, keys, [b](float p) { return slope_of(p, b); });
  }
}

// row.w: the sum of its product with the gradient of the scores is the gradient of alpha.
template <bool kCounted>
void fill_bends(const Scratch &row, const float *mass, float b, int64_t keys) {
  float *__restrict w = row.w;
#pragma omp simd
  for (int64_t k = 0; k < keys; ++k) {
    const float weight = weight_at<kCounted>(row, mass, k);
    const float l = logarithm(weight < kLeast ? 1.0f : weight);
    w[k] = -l * l * curvature(b * l, exponential(b * l));
  }
}

// Gradient of a row's scores; returns that of its alpha.
template <bool kCounted>
float backward(const Scratch &row, const float *mass, const float *given, float *gradient, Kind kind, float b,
               bool wanted, int64_t keys) {
  slopes<kCounted>(row, mass, kind, b, keys);
  if (wanted) fill_bends<kCounted>(row, mass, b, keys);
  const float *__restrict s = row.p, *__restrict w = row.w;
  float along = 0, total = 0;
#pragma omp simd reduction(+ : along, total)
  for (int64_t k = 0; k < keys; ++k) {
    along += s[k] * given[k];
    total += s[k];
  }
  const float mean = total > 0.0f ? along / total : along;
  float alpha = 0;
  if (wanted) {
#pragma omp simd reduction(+ : alpha)
    for (int64_t k = 0; k < keys; ++k) {
      gradient[k] = s[k] * (given[k] - mean);
      alpha += gradient[k] * w[k];
    }
  } else {
#pragma omp simd
    for (int64_t k = 0; k < keys; ++k) gradient[k] = s[k] * (given[k] - mean);
  }
  return alpha;
}

}  // namespace long_rows
}  // namespace
