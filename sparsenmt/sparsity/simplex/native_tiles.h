// Short rows, as many at a time as a vector has lanes: a tile has a lane for each row, and a vector for each key. Sums
// over keys need no reduction inside vectors, and the rows' steps run in parallel. The result of a row does not depend on
// its neighbours. Part of native.cpp.

#pragma once

#include <algorithm>
#include <cstdlib>

#include "native_math.h"

namespace {
namespace tiles {

// Scratch of a thread: arrays of `keys` vectors, padded to whole squares.
struct Work {
  int64_t keys;
  Vector *d, *c, *p, *w, *x;

  explicit Work(int64_t keys) : keys(keys) {
    const int64_t padded = (keys + kLanes - 1) / kLanes * kLanes;
    d = static_cast<Vector *>(std::aligned_alloc(kBytes, 5 * padded * kBytes));
    if (d == nullptr) return;  // not enough memory
    c = d + padded, p = c + padded, w = p + padded, x = w + padded;
  }
  ~Work() { std::free(d); }
  Work(const Work &) = delete;
  Work &operator=(const Work &) = delete;
};

// Newton on S^b from `e`, in each lane that is not `done`, kept in a bracket that is halved if a step is NaN.
// Returns the masses; `e` becomes the root.
template <class At, class Step>
inline Vector solve(At at, Step step, Vector &e, Mask done, float close = kClose, int most = kMost) {
  Vector low{}, high = splat(1.0f), before = splat(kInfinity);
  Sums<Vector> sums = at(e);
  for (int i = 0; i < most; ++i) {
    const Vector off = absolute(sums.mass - 1.0f);
    done |= ~(off > close) | ((off < kNoise) & (off > 0.25f * before));  // also stops at NaN
    if (all_of(done)) break;
    before = off;
    const Mask over = sums.mass > 1.0f;
    low = over ? e : low;
    high = over ? high : e;
    Vector next = e + step(sums);
    next = next < low ? low : next > high ? high : next;
    next = next != next ? 0.5f * (low + high) : next;
    e = done ? e : next;
    sums = at(e);
  }
  return sums.mass;
}

// The rows in `work`.
template <bool kCounted>
struct Tile {
  const Work &work;

  Vector counted(int64_t k, Vector x) const { return kCounted ? work.c[k] * x : x; }

  Sums<Vector> entmax15_at(Vector e) const {
    const Vector *__restrict d = work.d, rest = 1.0f - e;
    Vector *__restrict p = work.p, mass{}, slope{};
    for (int64_t k = 0; k < work.keys; ++k) {
      const Vector u = positive(0.5f * d[k] + rest), some = counted(k, u);
      p[k] = u * u;
      mass += some * u;
      slope += some;
    }
    return {mass, slope};
  }

  Sums<Vector> sparsemax_at(Vector e) const {
    const Vector *__restrict d = work.d, rest = 1.0f - e;
    Vector *__restrict p = work.p, mass{}, slope{};
    for (int64_t k = 0; k < work.keys; ++k) {
      const Vector u = positive(d[k] + rest);
      p[k] = u;
      mass += counted(k, u);
      slope += u > 0.0f ? counted(k, splat(1.0f)) : Vector{};
    }
    return {mass, slope};
  }

  Sums<Vector> entmax_at(Vector e, Vector b) const {
    const Vector *__restrict d = work.d, inverse = 1.0f / b;
    Vector *__restrict p = work.p, mass{}, slope{};
    for (int64_t k = 0; k < work.keys; ++k) {
      const Vector y = b * d[k] - e, u = 1.0f + y;
      const Mask none = u <= 0.0f;
      const Vector safe = none ? splat(1.0f) : u;
      const Vector log_u = logarithm(safe) + (y - (u - 1.0f)) / safe;  // of 1 + y, whose rounding 1 / b would blow up
      const Vector weight = none ? Vector{} : exponential(log_u * inverse), some = counted(k, weight);
      p[k] = weight;
      mass += some;
      slope += some / safe;
    }
    return {mass, slope};
  }

  Vector softmax() const {
    Vector mass{};
    for (int64_t k = 0; k < work.keys; ++k) {
      work.p[k] = exponential(work.d[k]);
      mass += counted(k, work.p[k]);
    }
    return mass;
  }

  // Computes work.p from work.d and work.c, in the lanes that are not `done`; returns its sum.
  Vector weigh(Kind kind, Vector b, Mask done) const {
    const auto half = [this](Vector e) { return entmax15_at(e); };
    const auto half_step = [](Sums<Vector> s) { return (s.mass - root(s.mass)) / s.slope; };
    const auto whole = [this](Vector e) { return sparsemax_at(e); };
    const auto whole_step = [](Sums<Vector> s) { return (s.mass - 1.0f) / s.slope; };
    Vector e{}, other{};
    if (kind == kSoftmax) return softmax();
    if (kind == kEntmax15) return solve(half, half_step, e, done);
    if (kind == kSparsemax) return solve(whole, whole_step, e, done);
    // The threshold, e / b in the scale of the scores, falls as alpha rises. A few steps towards that of 1.5, or of 2
    // above it, need no logarithm and stay left of the root.
    const Mask soft = b < 0.5f;
    if (!all_of(done | ~soft)) solve(half, half_step, e, done | ~soft, kNear, kCheap);
    if (!all_of(done | soft)) solve(whole, whole_step, other, done | soft, kNear, kCheap);
    e = b * (soft ? 2.0f * e : other);
    const auto step = [b](Sums<Vector> s) { return s.mass * (1.0f - exponential(-b * logarithm(s.mass))) / s.slope; };
    return solve([this, b](Vector at) { return entmax_at(at, b); }, step, e, done);
  }

  // Subtracts from the scores work.d the largest of their row. Returns the lanes of fully masked rows.
  Mask settle() const {
    Vector *__restrict d = work.d, top = splat(-kInfinity);
    for (int64_t k = 0; k < work.keys; ++k) top = d[k] > top ? d[k] : top;
    const Mask fully_masked = top == -kInfinity;
    top = fully_masked ? Vector{} : top;
    for (int64_t k = 0; k < work.keys; ++k) d[k] = d[k] - top < kNever ? splat(kNever) : d[k] - top;
    return fully_masked;
  }

  // work.p: mass c p, of weights p that sum to `mass`.
  void normalise(Vector mass) const {
    const Vector scale = 1.0f / mass;
    for (int64_t k = 0; k < work.keys; ++k) work.p[k] = counted(k, weight_or_zero(work.p[k] * scale));
  }

  // work.p: c s with s = slope(weight, k), of masses work.d.
  template <class Slope>
  void fill_slopes(Slope slope) const {
    for (int64_t k = 0; k < work.keys; ++k) work.p[k] = counted(k, slope(weight_at(k), k));
  }

  Vector weight_at(int64_t k) const {
    return kCounted ? work.d[k] / (work.c[k] > 0.0f ? work.c[k] : splat(1.0f)) : work.d[k];
  }

  // p^b; and in work.x[k], if wanted, the factor of the gradient of the score in that of alpha.
  Vector power(Vector weight, Vector b, int64_t k, bool bend) const {
    const Vector l = logarithm(weight < kLeast ? splat(1.0f) : weight), found = exponential(b * l);
    if (bend) work.x[k] = -l * l * curvature(b * l, found);
    return found;
  }

  // work.p: the gradient of the scores, of masses work.d and their gradient work.w. Returns that of alpha, if wanted.
  Vector backward(Kind kind, Vector b, bool of_alpha) const {
    const bool bend = of_alpha && kind != kGeneral;
    if (kind == kSoftmax) fill_slopes([](Vector p, int64_t) { return p; });
    if (kind == kEntmax15) fill_slopes([](Vector p, int64_t) { return root(p); });
    if (kind == kSparsemax) fill_slopes([](Vector p, int64_t) { return p > 0.0f ? splat(1.0f) : p; });
    if (kind == kGeneral)
      fill_slopes([this, b, of_alpha](Vector p, int64_t k) {
        const Vector raw = p / power(p, b, k, of_alpha);
        return p < kLeast ? Vector{} : raw;  // p^(2 - alpha)
      });
    for (int64_t k = 0; bend && k < work.keys; ++k) power(weight_at(k), b, k, true);
    Vector along{}, total{}, alpha{};
    for (int64_t k = 0; k < work.keys; ++k) {
      along += work.p[k] * work.w[k];
      total += work.p[k];
    }
    const Vector mean = total > 0.0f ? along / total : along;
    for (int64_t k = 0; k < work.keys; ++k) work.p[k] *= work.w[k] - mean;
    for (int64_t k = 0; of_alpha && k < work.keys; ++k) alpha += work.p[k] * work.x[k];
    return alpha;
  }
};

}  // namespace tiles
}  // namespace
