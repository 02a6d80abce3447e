// Softmax attention of few queries, over all scores or over the largest, on the CPU in fp32.
//
// A task is one head. Scores are written to a scratch row; keys and values are read once for up to five queries.
// R queries at a time, V vectors of a head, E = V kLanes; steps are numbers of floats.

#pragma once

#include <algorithm>
#include <vector>

#include "best.h"

namespace sparsenmt {
namespace {

constexpr int kQueries = 4;     // that read the keys together
constexpr int kMost = 5;        // the same, if the last one of five would read the keys alone
constexpr int64_t kAhead = 16;  // keys ahead that are prefetched
constexpr int kLine = 16;       // floats of a line of the cache

// The keys and values of a head.
struct Head {
  const float *keys, *values;
  int64_t key_step, value_step;  // from one position to the next
  const int32_t* slots;          // null, or the slot of each position
  int64_t key_slot, value_slot;  // from one slot to the next
  const float* bias;             // null, or added to the scores, one for each key
  int64_t count;                 // of keys
  float scale;                   // of the products, before the bias is added
  int64_t largest = 0;  // the number of largest scores that the softmax is over, with all that tie with the last; 0: all
  float tolerance = 0;  // scores from t - tolerance (1 + |t|) on tie with t

  bool selects() const { return largest && largest < count; }
  const float* key(int64_t t) const { return keys + t * key_step + (slots ? slots[t] * key_slot : 0); }
  const float* value(int64_t t) const { return values + t * value_step + (slots ? slots[t] * value_slot : 0); }
};

template <int V>
inline void fetch(const float* p) {
  for (int e = 0; e < V * kLanes; e += kLine) __builtin_prefetch(p + e);
}

// Products of R queries with kKeys keys from t on: vectors, to be summed over their lanes, those of query r from r kBlock
// on. If only `here` < kKeys keys are left, the others stay as they are.
template <int R, int V, int kKeys, int kBlock>
inline void key_products(const Head& head, int64_t t, int64_t here, const float* queries, int64_t query_step, Floats* products) {
  if (here < kKeys) {
    for (int64_t i = 0; i < here; i++)
      for (int r = 0; r < R; r++)
        for (int e = 0; e < V * kLanes; e += kLanes)
          products[r * kBlock + i] += load(queries + r * query_step + e) * load(head.key(t + i) + e);
    return;
  }
  const float* keys[kKeys];
  Floats found[R * kKeys];
#pragma GCC unroll 8
  for (int i = 0; i < kKeys; i++) {
    keys[i] = head.key(t + i);
    if (t + i + kAhead < head.count) fetch<V>(head.key(t + i + kAhead));
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) found[r * kKeys + i] = Floats{};
  }
#pragma GCC unroll 2
  for (int e = 0; e < V * kLanes; e += kLanes) {
    Floats key[kKeys];
#pragma GCC unroll 8
    for (int i = 0; i < kKeys; i++) key[i] = load(keys[i] + e);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Floats query = load(queries + r * query_step + e);
#pragma GCC unroll 8
      for (int i = 0; i < kKeys; i++) found[r * kKeys + i] += query * key[i];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int i = 0; i < kKeys; i++) products[r * kBlock + i] = found[r * kKeys + i];
}

// Scores (R, width) of R queries for all keys. The scores of kLanes / R keys are summed in one vector.
template <int R, int V>
void score(const Head& head, const float* queries, int64_t query_step, float* scores, int64_t width) {
  constexpr int kBlock = kLanes / R, kKeys = std::min(kBlock, 8);
  for (int64_t t = 0; t < head.count; t += kBlock) {
    Floats products[kLanes] = {};
    for (int i = 0; i < kBlock; i += kKeys)
      key_products<R, V, kKeys, kBlock>(head, t + i, head.count - t - i, queries, query_step, products + i);
    float found[kLanes];
    store(found, sums(products) * head.scale);
    // Where blocks end with the width, there is also a place for the scores of keys that are not there.
    if (kLanes % R == 0 || t + kBlock <= head.count)
      for (int r = 0; r < R; r++) std::memcpy(scores + r * width + t, found + r * kBlock, kBlock * sizeof(float));
    else
      for (int r = 0; r < R; r++) std::copy(found + r * kBlock, found + r * kBlock + head.count - t, scores + r * width + t);
  }
}

// The smallest score that gets weight: the last of the largest less the tolerance, so that rounding decides nothing.
inline float threshold(const Head& head, const float* scores) {
  const float last = nth_largest(scores, head.count, head.largest);
  const float slack = head.tolerance > 0 ? head.tolerance * (1.0f + std::fabs(last)) : 0.0f;  // of infinity no NaN
  return std::max(last - slack, -std::numeric_limits<float>::max());
}

// Scores to exponentials, with zeros for scores that are not selected and up to `width`; returns 1 / sum.
float soften(const Head& head, float* scores, int64_t width) {
  Floats most = all(kNever);
  for (int64_t t = 0; t < width; t += kLanes) {
    const int64_t left = head.count - t;
    Floats x = load_part(scores + t, left, kNever);
    if (head.bias) x += load_part(head.bias + t, left, 0.0f);
    store(scores + t, x);
    most = larger(most, x);
  }
  const float peak = largest(most), least = head.selects() ? threshold(head, scores) : kNever;
  Floats sum = {};
  for (int64_t t = 0; t < width; t += kLanes) {
    const Floats x = load(scores + t);
    store(scores + t, x < least ? Floats{} : exponential(x - peak));
    const int64_t left = head.count - t;
    if (left < kLanes) std::fill(scores + t + left, scores + t + kLanes, 0.0f);
    sum += load(scores + t);
  }
  return 1.0f / total(sum);
}

// kPart vectors, from `first` on, of the sums of R queries' weights times values. kSelects: values without weight are not read.
template <int R, int V, int kPart, bool kSelects, bool kFetches>
void mix_part(const Head& head, const float* weights, int64_t width, const float* inverse, int first, float* out,
              int64_t out_step) {
  Floats context[R][kPart];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int e = 0; e < kPart; e++) context[r][e] = Floats{};
  for (int64_t t = 0; t < head.count; t++) {
    if constexpr (kSelects) {
      bool read = false;
      for (int r = 0; r < R; r++) read |= weights[r * width + t] != 0.0f;
      if (!read) continue;
    }
    const float* value = head.value(t) + first * kLanes;
    if (kFetches && t + kAhead < head.count) fetch<V>(head.value(t + kAhead));
    Floats values[kPart];
#pragma GCC unroll 16
    for (int e = 0; e < kPart; e++) values[e] = load(value + kLanes * e);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Floats weight = all(weights[r * width + t]);
#pragma GCC unroll 16
      for (int e = 0; e < kPart; e++) context[r][e] += values[e] * weight;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int e = 0; e < kPart; e++) store(out + r * out_step + kLanes * (first + e), context[r][e] * inverse[r]);
}

// The sums of R queries' weights times values, in parts whose sums stay in registers, beside weights and values.
template <int R, int V, bool kSelects>
void mix(const Head& head, const float* weights, int64_t width, const float* inverse, float* out, int64_t out_step) {
  constexpr int kFit = static_cast<int>(kRegisters) / 4 * 3 / R, kPart = std::min(V, std::max(kFit, 1)), kRest = V % kPart;
  mix_part<R, V, kPart, kSelects, !kSelects>(head, weights, width, inverse, 0, out, out_step);
  for (int first = kPart; first + kPart <= V; first += kPart)
    mix_part<R, V, kPart, kSelects, false>(head, weights, width, inverse, first, out, out_step);
  if constexpr (kRest) mix_part<R, V, kRest, kSelects, false>(head, weights, width, inverse, V - kRest, out, out_step);
}

// R queries, `query_step` apart -> out (R, E), `out_step` apart. scratch: R rows of all keys, up to whole vectors.
template <int R, int V>
void attend(const Head& head, const float* queries, int64_t query_step, float* out, int64_t out_step, float* scratch) {
  const int64_t width = (head.count + kLanes - 1) / kLanes * kLanes;
  score<R, V>(head, queries, query_step, scratch, width);
  float inverse[R];
  for (int r = 0; r < R; r++) inverse[r] = soften(head, scratch + r * width, width);
  if (head.selects())
    mix<R, V, true>(head, scratch, width, inverse, out, out_step);
  else
    mix<R, V, false>(head, scratch, width, inverse, out, out_step);
}

// The same of any number of queries.
template <int V>
void attend_all(const Head& head, int64_t queries, const float* from, int64_t query_step, float* out, int64_t out_step,
                float* scratch) {
  int64_t done = 0;
  if constexpr (kMost <= kLanes)  // a vector has the scores of all queries for one key at least
    if (queries % kQueries == kMost - kQueries && queries >= kMost) {
      attend<kMost, V>(head, from, query_step, out, out_step, scratch);
      done = kMost;
    }
  for (; done + kQueries <= queries; done += kQueries)
    attend<kQueries, V>(head, from + done * query_step, query_step, out + done * out_step, out_step, scratch);
  for (; done < queries; done++)
    attend<1, V>(head, from + done * query_step, query_step, out + done * out_step, out_step, scratch);
}

using HeadSizes = std::integer_sequence<int, 16, 32, 48, 64, 96, 128>;  // the same as in steps.py

// The same of heads of a size (E) that is one of these, not known at compile time.
template <int... kSizes>
void attend_sized(std::integer_sequence<int, kSizes...>, int64_t size, const Head& head, int64_t queries, const float* from,
                  int64_t query_step, float* out, int64_t out_step, float* scratch) {
  ((size == kSizes ? attend_all<kSizes / kLanes>(head, queries, from, query_step, out, out_step, scratch) : void()), ...);
}

}  // namespace
}  // namespace sparsenmt
