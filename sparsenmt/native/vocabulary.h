// Beam search over logits, on the CPU in fp32: the normaliser and the best tokens of a row, the best of a sentence.

#pragma once

#include "best.h"

namespace sparsenmt {
namespace {

constexpr int64_t kStride = 4 * kLanes;
constexpr int64_t kForbidden = 8;  // tokens, at most; MOST_FORBIDDEN in token_lists.py

inline float largest_of(const float* row, int64_t size) {
  Floats most[4] = {all(kNever), all(kNever), all(kNever), all(kNever)};
  int64_t i = 0;
  for (; i + kStride <= size; i += kStride)
    for (int j = 0; j < 4; j++) most[j] = larger(most[j], load(row + i + j * kLanes));
  for (; i < size; i += kLanes) most[0] = larger(most[0], load_part(row + i, size - i, kNever));
  return largest(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

// The sum of the exponentials of a row's numbers less their largest, `peak`.
inline float exponentials(const float* row, int64_t size, float peak) {
  Floats sum[4] = {};
  int64_t i = 0;
  for (; i + kStride <= size; i += kStride)
    for (int j = 0; j < 4; j++) sum[j] += exponential(load(row + i + j * kLanes) - peak);
  for (; i + kLanes <= size; i += kLanes) sum[0] += exponential(load(row + i) - peak);
  float rest = 0.0f;
  for (; i < size; i++) rest += exponential(all(row[i] - peak))[0];
  return total((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

// The normaliser of a softmax, of a part of a row or of all.
struct Normaliser {
  float peak = kNever, sum = 0.0f;  // the largest logit; the sum of exponentials of logits less the peak

  static Normaliser of(const float* row, int64_t size, float peak) {
    const float sum = exponentials(row, size, peak > kNever ? peak : 0.0f);
    return {peak, peak > kNever || std::isnan(sum) ? sum : 0.0f};
  }

  void add(const Normaliser& other) {
    const float most = other.peak > peak ? other.peak : peak;
    sum = share(most) + other.share(most);
    peak = most;
  }

  float log() const { return peak + std::log(sum); }

 private:
  float share(float most) const { return sum == 0.0f ? 0.0f : sum * std::exp(peak - most); }
};

constexpr int64_t kPart = 512;  // tokens that are summed first: those whose logits a search computes at a time

inline float log_sum(const float* row, int64_t size, float peak) {
  return peak + std::log(exponentials(row, size, peak));
}

// The best continuations in a step of beam search; the same as in kernels.py. B sentences, whose H hypotheses are adjacent
// rows; V tokens (`size`); the `width` best of each row and of each sentence. `never` holds `count` forbidden tokens, at
// most kForbidden, all different. Missing continuations have minus infinity, parent 0 and token 0.
struct Continuations {
  int64_t sentences, hypotheses, size, width, count;
  const int64_t* never;
  const float* scores;                       // (B, H) log-probabilities so far
  const float* mask;                         // (B, V) added to logits; null: none
  float* values;                             // (B H, width) scratch: of each row
  int64_t* indices;                          // (B H, width) scratch: their tokens
  float* totals;                             // (B, width) log-probabilities
  int64_t *parents, *tokens;                 // (B, width): hypotheses 0..H-1, tokens

  // Read the logits of `tokens_here` tokens of row n from token `first` on, while they are in the cache: offer them to
  // `best`, and return their normaliser. Masked and forbidden logits are changed.
  Normaliser part(int64_t n, float* logits, int64_t first, int64_t tokens_here, TopList& best) const {
    if (mask) {
      const float* own = mask + n / hypotheses * size + first;
      for (int64_t i = 0; i < tokens_here; i++) logits[i] += own[i];
    }
    const float peak = largest_of(logits, tokens_here);
    const Normaliser found = Normaliser::of(logits, tokens_here, peak);
    if (!(peak > best.least)) return found;
    for (int64_t i = 0; i < count; i++)
      if (never[i] >= first && never[i] < first + tokens_here) logits[never[i] - first] = kNever;
    best.offset = first;
    if (best.least == kNever) best.least = lower_bound(logits, tokens_here, width);
    offer_row(logits, tokens_here, best);
    return found;
  }

  // The logits of the best tokens of row n, found in all parts, to log-probabilities of its continuations.
  void end(int64_t n, const Normaliser& all_tokens) const {
    const float sum = all_tokens.log();
    float* found = values + n * width;
    for (int64_t i = 0; i < width; i++) found[i] = (found[i] - sum) + scores[n];
  }

  // Find the best tokens of row n among the first `size` ones, while its logits, (size), are in the cache. Afterwards,
  // forbidden tokens have minus infinity.
  void row(int64_t n, float* logits, int64_t size) const {
    float kept[kForbidden], *found = values + n * width;
    if (mask) {
      const float* own = mask + n / hypotheses * size;
      for (int64_t i = 0; i < size; i++) logits[i] += own[i];
    }
    for (int64_t i = 0; i < count; i++) {
      kept[i] = logits[never[i]];
      logits[never[i]] = kNever;
    }
    find_best(logits, size, width, found, indices + n * width);
    for (int64_t i = 0; i < count; i++) logits[never[i]] = kept[i];
    Normaliser all_tokens;
    for (int64_t first = 0; first < size; first += kPart) {
      const int64_t here = std::min(kPart, size - first);
      all_tokens.add(Normaliser::of(logits + first, here, largest_of(logits + first, here)));
    }
    for (int64_t i = 0; i < count; i++) logits[never[i]] = kNever;
    end(n, all_tokens);
  }

  // Call after all rows. Totals of a sentence are NaN if a logit of an open hypothesis (its score is above minus infinity)
  // is NaN.
  void finish() const {
    for (int64_t b = 0; b < sentences; b++) {
      const int64_t first = b * hypotheses * width, to = b * width;
      bool sound = true;
      for (int64_t n = b * hypotheses; n < (b + 1) * hypotheses; n++)
        sound &= !(std::isnan(values[n * width]) && scores[n] > kNever);
      std::fill(totals + to, totals + to + width, sound ? kNever : std::numeric_limits<float>::quiet_NaN());
      std::fill(parents + to, parents + to + width, 0);
      TopList best{width, totals + to, parents + to, kNever};
      if (sound) best.offer(values + first, 0, hypotheses * width);
      for (int64_t i = to; i < to + width; i++) {
        tokens[i] = totals[i] > kNever ? indices[first + parents[i]] : 0;
        parents[i] /= width;
      }
    }
  }
};

// The tokens of every sentence, special tokens first; the same as in token_lists.py.
struct TokenLists {
  const int32_t* tokens;  // of all lists
  const int64_t *first, *count;  // (B)
};

}  // namespace
}  // namespace sparsenmt

extern "C" int sparsenmt_next_listed(const void* continuations, const void* table, const void* lists, const float* x,
                                     int threads);
