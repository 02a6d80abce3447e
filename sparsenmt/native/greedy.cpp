// Greedy search with a recurrent decoder and lists of tokens, from the first step to the last, on the CPU. Built by
// kernels.py, checked by greedy.py.
//
// A recurrent decoder keeps a state of one size, wherever a sentence is. So each thread has a few sentences at a time, takes
// all of them a step further, and puts the next of the batch in the place of one that has ended: threads never wait for
// each other, and products have about as many rows in the last steps as in the first ones.
//
// B sentences, D dimension, K entries of the memory, T positions at most, L layers, N sentences of a thread at a time.

#include <atomic>
#include <vector>

#include "memory.h"
#include "step.h"
#include "vocabulary.h"

namespace sparsenmt {
namespace {

// The arguments and results of a call; the same as in greedy.py.
struct Search {
  const void* layers;       // as those of a step
  const LayerCache* caches;  // of every layer: the memory's keys, values and bias (B, K)
  Norm last;
  Sizes sizes;  // without rows and sentences
  const void* table;  // of the output
  TokenLists lists;
  const float *embeddings, *encodings;  // (V, D); (T, D) of positions, or null
  const int64_t *limits, *never;        // (B) steps of each sentence, at least 1; tokens that are never generated
  int64_t layer_count, sentences, steps, together, vocabulary, never_count, begin, end;  // steps: T; together: N
  float scale;       // of embeddings
  int32_t* tokens;   // (B, T)
  int64_t* lengths;  // (B) tokens of each sentence; 0: a logit was not a number, or no token was possible
  float* scores;     // (B) their log-probability
};

// The sentences of one thread, at most N at a time: rows n, each with its sentence's number and list, and its output so far.
class Group {
 public:
  Group(const Search& search, std::atomic<int64_t>& next) : search_(search), next_(next), sizes_(search.sizes) {
    const int64_t N = search.together, D = sizes_.dimension, K = sizes_.entries;
    sizes_.rows = sizes_.sentences = N;
    for (auto* each : {&sentence_, &length_, &last_, &list_first_, &list_count_, &parents_, &indices_, &tokens_})
      each->resize(N);
    for (auto* each : {&score_, &values_, &totals_}) each->resize(N);
    x_.resize(N * D);
    out_.resize(N * D);
    scratch_.resize(sparsenmt_step_scratch(&sizes_));
    caches_.assign(search.caches, search.caches + search.layer_count);
    states_.resize(search.layer_count * N * D);
    biases_.resize(search.layer_count * N * K);
    for (int64_t t = 0; t < search.layer_count; t++) {
      caches_[t].state = states_.data() + t * N * D;
      caches_[t].memory_rows = sentence_.data();
      if (caches_[t].memory_bias) caches_[t].memory_bias = biases_.data() + t * N * K;
    }
  }

  void run() {
    while (fill()) {
      step();
      for (int64_t n = rows_ - 1; n >= 0; n--)
        if (extend(n)) remove(n);
    }
  }

 private:
  // Take further sentences while there is room; false if none are left.
  bool fill() {
    const int64_t D = sizes_.dimension, K = sizes_.entries;
    while (rows_ < search_.together) {
      const int64_t b = next_++, n = rows_;
      if (b >= search_.sentences) break;
      sentence_[n] = b;
      length_[n] = 0;
      last_[n] = search_.begin;
      score_[n] = 0.0f;
      list_first_[n] = search_.lists.first[b];
      list_count_[n] = search_.lists.count[b];
      for (int64_t t = 0; t < search_.layer_count; t++) {
        std::fill_n(caches_[t].state + n * D, D, 0.0f);
        if (caches_[t].memory_bias)
          std::copy_n(search_.caches[t].memory_bias + b * K, K, biases_.data() + (t * search_.together + n) * K);
      }
      rows_++;
    }
    return rows_ > 0;
  }

  // Find the next token of every row.
  void step() {
    const int64_t D = sizes_.dimension;
    for (int64_t n = 0; n < rows_; n++) {
      const float* vector = search_.embeddings + last_[n] * D;
      const float* encoding = search_.encodings ? search_.encodings + length_[n] * D : nullptr;
      for (int64_t i = 0; i < D; i += kLanes) {
        const Floats scaled = load(vector + i) * search_.scale;
        store(x_.data() + n * D + i, encoding ? scaled + load(encoding + i) : scaled);
      }
    }
    sizes_.rows = sizes_.sentences = rows_;
    static const int32_t none = 0;  // slots, which recurrent layers do not read
    demand(sparsenmt_step(search_.layers, caches_.data(), search_.layer_count, search_.last.weight, search_.last.bias,
                          &sizes_, &none, x_.data(), scratch_.data(), out_.data(), 1));
    const Continuations found{rows_, 1, search_.vocabulary, 1, search_.never_count, search_.never, score_.data(), nullptr,
                              values_.data(), indices_.data(), totals_.data(), parents_.data(), tokens_.data()};
    const TokenLists lists{search_.lists.tokens, list_first_.data(), list_count_.data()};
    demand(sparsenmt_next_listed(&found, search_.table, &lists, out_.data(), 1));
  }

  // Write the token that was found for row n; true if its sentence has ended.
  bool extend(int64_t n) {
    const int64_t b = sentence_[n];
    if (!(totals_[n] > kNever)) {  // NaN, too
      search_.lengths[b] = 0;
      return true;
    }
    search_.tokens[b * search_.steps + length_[n]++] = static_cast<int32_t>(tokens_[n]);
    last_[n] = tokens_[n];
    score_[n] = totals_[n];
    if (tokens_[n] != search_.end && length_[n] < search_.limits[b]) return false;
    search_.lengths[b] = length_[n];
    search_.scores[b] = score_[n];
    return true;
  }

  // Put the last row in the place of row n, which has ended.
  void remove(int64_t n) {
    const int64_t D = sizes_.dimension, K = sizes_.entries, from = --rows_;
    if (n == from) return;
    for (auto* each : {&sentence_, &length_, &last_, &list_first_, &list_count_}) (*each)[n] = (*each)[from];
    score_[n] = score_[from];
    for (int64_t t = 0; t < search_.layer_count; t++) {
      std::copy_n(caches_[t].state + from * D, D, caches_[t].state + n * D);
      float* bias = biases_.data() + t * search_.together * K;
      if (caches_[t].memory_bias) std::copy_n(bias + from * K, K, bias + n * K);
    }
  }

  const Search& search_;
  std::atomic<int64_t>& next_;  // sentence of the batch that no thread has taken
  Sizes sizes_;
  int64_t rows_ = 0;
  std::vector<LayerCache> caches_;
  std::vector<int64_t> sentence_, length_, last_, list_first_, list_count_, parents_, indices_, tokens_;
  std::vector<float> score_, values_, totals_, x_, out_, scratch_, states_, biases_;
};

}  // namespace
}  // namespace sparsenmt

// given: `Search`. Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_greedy(const void* given, int threads) {
  using namespace sparsenmt;
  const Search& search = *static_cast<const Search*>(given);
  std::atomic<int64_t> next{0};
  Memory memory;
#pragma omp parallel num_threads(threads) if (threads > 1)
  memory.run([&] {
    Group group(search, next);
    group.run();
  });
  return memory.status();
}
