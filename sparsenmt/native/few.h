// Softmax attention of few queries, over all scores or over the largest, on the CPU in fp32.
//
// A task is one head. Scores are written to a scratch row; keys and values are read once for up to five queries.

#pragma once

#include <algorithm>
#include <vector>

#include "best.h"

namespace sparsenmt {
namespace {

constexpr int kQueries = 4;     // read the keys together
constexpr int kMost = 5;        // of five, the last does not read the keys alone
constexpr int64_t kAhead = 16;  // keys are prefetched
constexpr int kLine = 16;       // floats of a line of the cache

// The keys and values of a head.
struct Head {
  const float *keys, *values;
  int64_t key_step, value_step;  // from one position to the next
  const int32_t* slots;          // null, or the slot of each position
  int64_t key_slot, value_slot;  // from one slot to the next
  const float* bias;             // null, or added to the scores
  int64_t count;
  float scale;
  int64_t largest = 0;  // the softmax is over so many largest scores, and all that tie with the last; 0: over all
  float tolerance = 0;  // scores from t - tolerance (1 + |t|) on tie with t

  bool selects() const { return largest && largest < count; }
  const float* key(int64_t t) const { return keys + t * key_step + (slots ? slots[t] * key_slot : 0); }
  const float* value(int64_t t) const { return values + t * value_step + (slots ? slots[t] * value_slot : 0); }
};

template <int V>
inline void fetch(const float* p) {
  for (int e = 0; e < V * kLanes; e += kLine) __builtin_prefetch(p + e);
}

// Scores of R queries, `width` apart. kLanes / R keys make a block of kLanes scores.
template <int R, int V>
void score(const Head& head, const float* queries, int64_t query_step, float* scores, int64_t width) {
  constexpr int kBlock = kLanes / R;
  for (int64_t t = 0; t < head.count; t += kBlock) {
    Floats products[kLanes] = {};
    const int here = static_cast<int>(std::min<int64_t>(kBlock, head.count - t));
    for (int i = 0; i < here; i++) {
      const float* key = head.key(t + i);
      if (t + i + kAhead < head.count) fetch<V>(head.key(t + i + kAhead));
      for (int r = 0; r < R; r++) {
        const float* query = queries + r * query_step;
        Floats product = load(query) * load(key);
        for (int e = 1; e < V; e++) product += load(query + kLanes * e) * load(key + kLanes * e);
        products[r * kBlock + i] = product;
      }
    }
    const Floats found = sums(products) * head.scale;
    for (int r = 0; r < R; r++)
      for (int i = 0; i < (kLanes % R ? here : kBlock); i++) scores[r * width + t + i] = found[r * kBlock + i];
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

// Vectors of the context whose sums over R queries stay in registers, beside weights and values: a divisor of V.
template <int R, int V>
constexpr int together() {
  int found = V;
  while (found > 1 && (V % found || R * found > kRegisters / 4 * 3)) found--;
  return found;
}

template <int R, int V>
void attend(const Head& head, const float* queries, int64_t query_step, float* out, int64_t out_step, float* scratch) {
  constexpr int kPart = together<R, V>();
  const int64_t width = (head.count + kLanes - 1) / kLanes * kLanes;
  score<R, V>(head, queries, query_step, scratch, width);
  float inverse[R];
  for (int r = 0; r < R; r++) inverse[r] = soften(head, scratch + r * width, width);
  const bool selects = head.selects();
  for (int first = 0; first < V; first += kPart) {
    Floats context[R][kPart] = {};
    for (int64_t t = 0; t < head.count; t++) {
      bool read = !selects;
      for (int r = 0; r < R; r++) read |= scratch[r * width + t] != 0.0f;
      if (!read) continue;
      const float* value = head.value(t) + first * kLanes;
      if (!selects && first == 0 && t + kAhead < head.count) fetch<V>(head.value(t + kAhead));
      for (int r = 0; r < R; r++) {
        const float weight = scratch[r * width + t];
        for (int e = 0; e < kPart; e++) context[r][e] += load(value + kLanes * e) * weight;
      }
    }
    for (int r = 0; r < R; r++)
      for (int e = 0; e < kPart; e++)
        store(out + r * out_step + kLanes * (first + e), context[r][e] * inverse[r]);
  }
}

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

void attend_sized(int64_t size, const Head& head, int64_t queries, const float* from, int64_t query_step, float* out,
                  int64_t out_step, float* scratch) {
  switch (size) {
#define SPARSENMT_SIZE(E) \
  case E: return attend_all<E / kLanes>(head, queries, from, query_step, out, out_step, scratch)
    SPARSENMT_SIZE(16);
    SPARSENMT_SIZE(32);
    SPARSENMT_SIZE(48);
    SPARSENMT_SIZE(64);
    SPARSENMT_SIZE(96);
    SPARSENMT_SIZE(128);
#undef SPARSENMT_SIZE
  }
}

}  // namespace
}  // namespace sparsenmt
