// Rows of scores to alpha-entmax weights and back, on the CPU in fp32. Built and checked by native.py.
//
// A row has keys k with score z, count c and weight p >= 0; sum_k c p = 1. With b = alpha - 1, d = z - max z and
//     u = max(0, 1 + b d - e),   p = u^(1/b),
// the row is solved for e in [0, 1). S(e) = sum c p. S^b is the norm of u with exponent 1/b >= 1, weighed by c: convex
// and falling in e, so that Newton's method on it rises to the root from the left and never passes it; it needs one
// step where all scores are equal, and for b -> 0. One row at a time stays in the cache; loops run over whole vectors,
// as rows are padded with keys that are never seen.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace {

constexpr int64_t kLanes = 16;
constexpr float kNever = -1e30f;  // d of a key that is not seen
constexpr float kClose = 2e-7f;   // |S - 1| that is good enough: the row is normalised afterwards
constexpr float kNoise = 1e-5f;   // below this no progress means rounding
constexpr int kMost = 64;         // steps; a handful is usual
constexpr float kNear = 0.03f;    // |S - 1| that is good enough for a threshold to begin with
constexpr int kCheap = 3;
constexpr float kTiny = 1.2e-38f;  // normal numbers end here
constexpr float kLn2Hi = 0.693359375f;  // exact in 10 bits
constexpr float kLn2Lo = static_cast<float>(0.69314718055994530942 - 0.693359375);

enum Kind { kSoftmax, kEntmax15, kSparsemax, kGeneral };

Kind kind_of(float alpha) {
  if (alpha == 1.0f) return kSoftmax;
  if (alpha == 1.5f) return kEntmax15;
  return alpha == 2.0f ? kSparsemax : kGeneral;
}

inline int32_t bits_of(float x) {
  int32_t i;
  std::memcpy(&i, &x, sizeof i);
  return i;
}

inline float float_of(int32_t i) {
  float x;
  std::memcpy(&x, &i, sizeof x);
  return x;
}

// e^x for x <= 88; below -87 what e^-87 is. Taylor to r^7, |r| <= ln(2) / 2.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // to the nearest whole number
  const float r = (x - n * kLn2Hi) - n * kLn2Lo;
  float q = 1.0f / 5040;
  q = q * r + 1.0f / 720;
  q = q * r + 1.0f / 120;
  q = q * r + 1.0f / 24;
  q = q * r + 1.0f / 6;
  q = q * r + 0.5f;
  q = q * r + 1.0f;
  return (q * r + 1.0f) * float_of((static_cast<int32_t>(n) + 127) << 23);
}

// ln x for normal x > 0, as 2 artanh(f / (2 + f)) of a mantissa 1 + f in [sqrt(1/2), sqrt(2)).
inline float logarithm(float x) {
  const int32_t bits = bits_of(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float f = float_of(bits - (exponent << 23)) - 1.0f;
  const float s = f / (2.0f + f), w = s * s;
  float q = 1.0f / 9;
  q = q * w + 1.0f / 7;
  q = q * w + 1.0f / 5;
  q = q * w + 1.0f / 3;
  const float n = static_cast<float>(exponent);
  return n * kLn2Hi + (2.0f * s + 2.0f * s * w * q + n * kLn2Lo);
}

struct Sums {
  float mass, slope;  // S = sum c p, and -b dS/de = sum c p / u
};

// What a thread works in. Arrays have a multiple of kLanes entries.
struct Scratch {
  int64_t width;
  float *d, *c, *p, *w;

  explicit Scratch(int64_t keys) : width((keys + kLanes - 1) / kLanes * kLanes) {
    d = static_cast<float *>(std::aligned_alloc(64, 4 * width * sizeof(float)));
    c = d + width, p = c + width, w = p + width;
    for (int64_t k = 0; k < width; ++k) c[k] = 1.0f;
  }
  ~Scratch() { std::free(d); }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
};

template <bool kCounted>
Sums entmax15_at(const Scratch &row, float e) {
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
Sums sparsemax_at(const Scratch &row, float e) {
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
Sums entmax_at(const Scratch &row, float e, float b) {
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
    const float raw = exponential(d[k]);
    const float weight = d[k] <= -87.0f ? 0.0f : raw;
    p[k] = weight;
    mass += (kCounted ? c[k] : 1.0f) * weight;
  }
  return mass;
}

// Newton on S^b from `e`, kept in a bracket that is halved where a step is no number; at the end row.p and its sum.
template <class At, class Step>
float solve(At at, Step step, float e, float close = kClose, int most = kMost, float *solution = nullptr) {
  float low = 0.0f, high = 1.0f, before = std::numeric_limits<float>::infinity();
  Sums sums = at(e);
  for (int i = 0; i < most; ++i) {
    const float off = std::fabs(sums.mass - 1.0f);
    if (!(off > close) || (off < kNoise && off > 0.25f * before)) break;  // NaN ends it too
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

// row.p and its sum, from row.d and row.c.
template <bool kCounted>
float weigh(const Scratch &row, Kind kind, float b) {
  const auto half = [&](float e) { return entmax15_at<kCounted>(row, e); };
  const auto half_step = [](Sums s) { return (s.mass - std::sqrt(s.mass)) / s.slope; };
  const auto whole = [&](float e) { return sparsemax_at<kCounted>(row, e); };
  const auto whole_step = [](Sums s) { return (s.mass - 1.0f) / s.slope; };
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
      const auto step = [b](Sums s) { return s.mass * (1.0f - exponential(-b * logarithm(s.mass))) / s.slope; };
      return solve([&](float e) { return entmax_at<kCounted>(row, e, b); }, step, begin);
    }
  }
}

// Fills row.d and, with counts, row.c. Returns whether anything is seen.
bool load(const Scratch &row, const float *z, const uint8_t *seen, int64_t stride, const float *counts, int64_t keys) {
  float *__restrict d = row.d;
  float top = -std::numeric_limits<float>::infinity();
  if (seen != nullptr && stride == 1) {
#pragma omp simd reduction(max : top)
    for (int64_t k = 0; k < keys; ++k) {
      d[k] = seen[k] ? z[k] : kNever;
      const float candidate = seen[k] ? z[k] : -std::numeric_limits<float>::infinity();
      top = candidate > top ? candidate : top;
    }
  } else if (seen != nullptr) {
    for (int64_t k = 0; k < keys; ++k) {
      d[k] = seen[k * stride] ? z[k] : kNever;
      if (seen[k * stride] && z[k] > top) top = z[k];
    }
  } else {
#pragma omp simd reduction(max : top)
    for (int64_t k = 0; k < keys; ++k) {
      d[k] = z[k];
      top = z[k] > top ? z[k] : top;
    }
  }
  if (counts != nullptr) std::memcpy(row.c, counts, keys * sizeof(float));
  if (top == -std::numeric_limits<float>::infinity()) return false;
#pragma omp simd
  for (int64_t k = 0; k < keys; ++k) d[k] = d[k] - top < kNever ? kNever : d[k] - top;
  for (int64_t k = keys; k < row.width; ++k) d[k] = kNever;
  return true;
}

// A row of which nothing is seen, or whose scores are not numbers.
void write_blind(float *mass, const float *z, const uint8_t *seen, int64_t stride, int64_t keys) {
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
  for (int64_t k = 0; k < keys; ++k) mass[k] = p[k] * scale * (kCounted ? c[k] : 1.0f);
}

// (1 - e^y + y e^y) / y^2 for y <= 0, given e^y: a series where that would cancel.
inline float curvature(float y, float power) {
  float q = 1.0f / 5760;
  q = q * y + 1.0f / 840;
  q = q * y + 1.0f / 144;
  q = q * y + 1.0f / 30;
  q = q * y + 1.0f / 8;
  q = q * y + 1.0f / 3;
  q = q * y + 1.0f / 2;
  const float far = y > -0.3f ? 1.0f : y;
  const float direct = (1.0f - power + far * power) / (far * far);
  return y > -0.3f ? q : direct;
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

// s = p^(2 - alpha) for what is not 0.
inline float slope_of(float weight, float b) {
  const bool none = weight < kTiny;
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

// row.w: what the gradient of the scores, times it, sums to the gradient of alpha.
template <bool kCounted>
void fill_bends(const Scratch &row, const float *mass, float b, int64_t keys) {
  float *__restrict w = row.w;
#pragma omp simd
  for (int64_t k = 0; k < keys; ++k) {
    const float weight = weight_at<kCounted>(row, mass, k);
    const float l = logarithm(weight < kTiny ? 1.0f : weight);
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

}  // namespace

// Scores and masses are (batch, heads, queries, keys), contiguous. `strides` are those of `seen` over the four axes, in
// bytes. `counts` is (batch, keys), contiguous, or null; so may `seen` be. `alphas` is (heads).
extern "C" void sparsenmt_simplex_forward(const float *scores, const uint8_t *seen, const int64_t *strides,
                                          const float *counts, const float *alphas, float *mass, const int64_t *sizes,
                                          int threads) {
  const int64_t heads = sizes[1], queries = sizes[2], keys = sizes[3], rows = sizes[0] * heads * queries;
#pragma omp parallel num_threads(threads)
  {
    const Scratch row(keys);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t batch = i / (heads * queries), head = i / queries % heads, query = i % queries;
      const uint8_t *visible =
          seen == nullptr ? nullptr : seen + batch * strides[0] + head * strides[1] + query * strides[2];
      const float *z = scores + i * keys, *c = counts == nullptr ? nullptr : counts + batch * keys;
      if (!load(row, z, visible, strides[3], c, keys)) {
        write_blind(mass + i * keys, z, visible, strides[3], keys);
        continue;
      }
      const Kind kind = kind_of(alphas[head]);
      if (c == nullptr)
        write<false>(row, weigh<false>(row, kind, alphas[head] - 1.0f), mass + i * keys, keys);
      else
        write<true>(row, weigh<true>(row, kind, alphas[head] - 1.0f), mass + i * keys, keys);
    }
  }
}

// `given` is the gradient of the masses; `of_alpha`, one a row, may be null.
extern "C" void sparsenmt_simplex_backward(const float *mass, const float *given, const float *counts,
                                           const float *alphas, float *gradient, float *of_alpha, const int64_t *sizes,
                                           int threads) {
  const int64_t heads = sizes[1], queries = sizes[2], keys = sizes[3], rows = sizes[0] * heads * queries;
  const bool wanted = of_alpha != nullptr;
#pragma omp parallel num_threads(threads)
  {
    const Scratch row(keys);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const float alpha = alphas[i / queries % heads], b = alpha - 1.0f;
      const Kind kind = kind_of(alpha);
      const float *p = mass + i * keys, *g = given + i * keys;
      float *result = gradient + i * keys;
      float found;
      if (counts == nullptr) {
        found = backward<false>(row, p, g, result, kind, b, wanted, keys);
      } else {
        std::memcpy(row.c, counts + i / (heads * queries) * keys, keys * sizeof(float));
        found = backward<true>(row, p, g, result, kind, b, wanted, keys);
      }
      if (wanted) of_alpha[i] = found;
    }
  }
}
