// One more position of every hypothesis through all layers of a decoder, on the CPU. Built by kernels.py, checked by steps.py.
//
// With many rows each thread takes its own sentences through all layers, without barriers. With few rows most of the time
// goes into reading weights: each thread multiplies all rows with a part of the columns and computes a part of the heads,
// with barriers in between.
//
// Shapes as in step.h; F feed-forward dimension. The hypotheses of a sentence, N / B, are adjacent rows.

#include <vector>

#include "few.h"
#include "memory.h"
#include "step.h"

namespace sparsenmt {
namespace {

constexpr int64_t kManyRows = 14;  // rows of each thread from which on it works on its own sentences

// A row of the widest result of a product, in floats; a row of the scratch of a product.
int64_t widest(const Sizes& sizes) { return std::max(3 * sizes.dimension, sizes.feed_forward); }
int64_t rounded_bytes(const Sizes& sizes) { return 4 * std::max(sizes.dimension, sizes.feed_forward) + 8; }

// Intermediate results of a step, in the caller's memory: as many floats as `floats` says.
struct Scratch {
  float *normed, *wide, *context;  // (N, D), (N, max(3 D, F)), (N, D)
  char* rounded;                   // (N, max(4 D, 4 F) + 8)

  static int64_t floats(const Sizes& sizes) {
    return sizes.rows * (2 * sizes.dimension + widest(sizes) + rounded_bytes(sizes) / 4);
  }

  static Scratch in(float* storage, const Sizes& sizes) {
    float *wide = storage + sizes.rows * sizes.dimension, *context = wide + sizes.rows * widest(sizes);
    return {storage, wide, context, reinterpret_cast<char*>(context + sizes.rows * sizes.dimension)};
  }
};

// The work of one thread. Rows are numbered from the first of its region: with few rows, the region is all rows; with
// many, the thread's own. Every product lays out scratch anew, so threads without barriers must not share any of it.
class Worker {
 public:
  Worker(const Sizes& sizes, const Scratch& scratch, const int32_t* slots, float* x, int64_t thread, int64_t threads)
      : sizes_(sizes), thread_(thread), threads_(threads),
        few_(threads > 1 && (sizes.rows < threads * kManyRows || sizes.sentences < threads)) {
    const int64_t sentences = sizes.sentences, D = sizes.dimension;
    hypotheses_ = sizes.rows / sentences;
    first_ = sentences * thread / threads;
    last_ = sentences * (thread + 1) / threads;
    const int64_t own = first_ * hypotheses_, end = last_ * hypotheses_;
    start_ = few_ ? 0 : own;
    rows_ = few_ ? sizes.rows : end - own;
    top_ = own - start_;
    bottom_ = end - start_;
    x_ = x + start_ * D;
    slots_ = slots + start_ * sizes.slot_stride;
    normed_ = scratch.normed + start_ * D;
    wide_ = scratch.wide + start_ * widest(sizes);
    context_ = scratch.context + start_ * D;
    rounded_ = scratch.rounded + start_ * rounded_bytes(sizes);
    const int64_t most = std::max(sizes.length, sizes.entries);
    scores_.resize(kMost * (most + kLanes));
    copies().reserve(most);  // nothing is allocated between barriers
  }

  // Take x through a layer.
  void pass(const Layer& layer, const LayerCache& cache) {
    project(layer.own, before(layer.own_norm), nullptr, false, wide_);
    if (layer.recurrent) {
      advance(cache.state);
    } else {
      attend_own(cache, layer.own_largest, layer.own_tolerance);
      project(layer.own_out, context_, x_, false, x_);
    }
    after(layer.own_norm);
    project(layer.query, before(layer.cross_norm), nullptr, false, wide_);
    attend_memory(cache, layer.cross_largest, layer.cross_tolerance);
    project(layer.cross_out, context_, x_, false, x_);
    after(layer.cross_norm);
    project(layer.inner, before(layer.feed_forward_norm), nullptr, true, wide_);
    project(layer.outer, wide_, x_, false, x_);
    after(layer.feed_forward_norm);
  }

  // Write the thread's rows of x, normalised unless there are no parameters, to out (N, D).
  void finish(const Norm& norm, float* out) const {
    const int64_t D = sizes_.dimension;
    for (int64_t n = top_; n < bottom_; n++) {
      float* row = out + (start_ + n) * D;
      if (norm.weight)
        normalize(x_ + n * D, norm, sizes_.epsilon, D, row);
      else
        std::copy(x_ + n * D, x_ + (n + 1) * D, row);
    }
  }

 private:
  // Wait for the other threads' rows, where threads share rows.
  void barrier() const {
    if (few_) {
#pragma omp barrier
    }
  }

  // The input of a part of a layer: x, normalised with pre-norm. Of the thread's own rows, as `after`.
  const float* before(const Norm& norm) const {
    if (!sizes_.pre_norm) return x_;
    const int64_t D = sizes_.dimension;
    for (int64_t n = top_; n < bottom_; n++) normalize(x_ + n * D, norm, sizes_.epsilon, D, normed_ + n * D);
    return normed_;
  }

  void after(const Norm& norm) const {
    if (sizes_.pre_norm) return;
    const int64_t D = sizes_.dimension;
    for (int64_t n = top_; n < bottom_; n++) normalize(x_ + n * D, norm, sizes_.epsilon, D, x_ + n * D);
  }

  // out = relu(from matrix' + bias) + added, of all rows of the region.
  void project(const Matrix& matrix, const float* from, const float* added, bool relu, float* out) const {
    const Product product(matrix, from, rows_, added, relu, out, rounded_);
    product.round(top_, bottom_);
    barrier();
    const int64_t count = matrix.count();
    if (few_)
      product.run({0, rows_, count * thread_ / threads_, count * (thread_ + 1) / threads_});
    else
      product.run({0, rows_, 0, count});
    barrier();
  }

  // The recurrent cell of the thread's own rows: states (N, D) get c = z + f (c - z) with f = sigmoid(g), and x its ReLU.
  void advance(float* states) const {
    const int64_t D = sizes_.dimension;
    for (int64_t n = top_; n < bottom_; n++) {
      const float *candidate = wide_ + n * 2 * D, *forget = candidate + D;
      float *state = states + (start_ + n) * D, *x = x_ + n * D;
      for (int64_t i = 0; i < D; i += kLanes) {
        const Floats z = load(candidate + i), factor = 1.0f / (1.0f + exponential(-larger(all(-88.0f), load(forget + i))));
        const Floats c = z + factor * (load(state + i) - z);
        store(state + i, c);
        store(x + i, load(x + i) + larger(Floats{}, c));
      }
    }
  }

  // Heads of rows or sentences, numbered row * H + head, the last one excluded: with few rows the thread's share of all,
  // otherwise those of its own.
  struct Tasks {
    int64_t first, last;
  };

  Tasks tasks(int64_t all, int64_t first, int64_t last) const {
    const int64_t H = sizes_.heads;
    if (few_) return {all * H * thread_ / threads_, all * H * (thread_ + 1) / threads_};
    return {first * H, last * H};
  }

  // Write the new keys and values to the cache, and attend to all so far: the heads' outputs are in the context.
  void attend_own(const LayerCache& cache, int64_t largest, float tolerance) {
    const int64_t D = sizes_.dimension, H = sizes_.heads, E = D / H, step = cache.slots * D, last = sizes_.length - 1;
    const Tasks own = tasks(rows_, top_, bottom_);
    for (int64_t task = own.first; task < own.last; task++) {
      const int64_t n = task / H, h = task % H, written = last * step + (start_ + n) * D + h * E;
      const int64_t from = sizes_.starts ? sizes_.starts[(start_ + n) / hypotheses_] : 0, seen = from * step + h * E;
      const float* row = wide_ + n * 3 * D + h * E;
      std::copy(row + D, row + D + E, cache.keys + written);
      std::copy(row + 2 * D, row + 2 * D + E, cache.values + written);
      const Head head{cache.keys + seen, cache.values + seen, step, step, slots_ + n * sizes_.slot_stride + from, D, D,
                      nullptr, sizes_.length - from, scale(E), largest, tolerance};
      attend_sized(HeadSizes(), E, head, 1, row, 3 * D, context_ + n * D + h * E, D, scores_.data());
    }
    barrier();
  }

  void attend_memory(const LayerCache& cache, int64_t largest, float tolerance) {
    const int64_t D = sizes_.dimension, H = sizes_.heads, E = D / H, K = sizes_.entries;
    const Tasks own = tasks(sizes_.sentences, first_, last_);
    for (int64_t task = own.first; task < own.last; task++) {
      const int64_t b = task / H, h = task % H, row = (b * hypotheses_ - start_) * D + h * E;
      const int64_t offset = ((cache.memory_rows ? cache.memory_rows[b] : b) * H + h) * K * E;
      const Head head{cache.memory_keys + offset, cache.memory_values + offset, E, E, nullptr, 0, 0,
                      cache.memory_bias ? cache.memory_bias + b * K : nullptr, K, scale(E), largest, tolerance};
      attend_sized(HeadSizes(), E, head, hypotheses_, wide_ + row, D, context_ + row, D, scores_.data());
    }
    barrier();
  }

  static float scale(int64_t size) { return 1.0f / std::sqrt(static_cast<float>(size)); }

  const Sizes& sizes_;
  const int64_t thread_, threads_;
  const bool few_;                     // too few rows or sentences for each thread to have its own
  int64_t first_, last_, hypotheses_;  // own sentences
  int64_t start_, rows_;               // first row of the region, and how many it has
  int64_t top_, bottom_;               // own rows
  const int32_t* slots_;
  float *x_, *normed_, *wide_, *context_;
  char* rounded_;
  std::vector<float> scores_;
};

}  // namespace
}  // namespace sparsenmt

// The number of floats of scratch that a step needs.
extern "C" int64_t sparsenmt_step_scratch(const void* sizes) {
  return sparsenmt::Scratch::floats(*static_cast<const sparsenmt::Sizes*>(sizes));
}

// x (N, D): embedded tokens; it is overwritten. slots (N, T), rows `slot_stride` apart -> out (N, D). Returns 0,
// or 1 without enough memory.
extern "C" int sparsenmt_step(const void* layers, const void* caches, int64_t count, const float* norm_weight,
                              const float* norm_bias, const void* sizes, const int32_t* slots, float* x, float* scratch,
                              float* out, int threads) {
  using namespace sparsenmt;
  const Sizes& given = *static_cast<const Sizes*>(sizes);
  const Scratch parts = Scratch::in(scratch, given);
  const Layer* layer = static_cast<const Layer*>(layers);
  const LayerCache* cache = static_cast<const LayerCache*>(caches);
  Memory memory;
  share_among(threads, [&](int64_t thread, int64_t team) {
    const auto worker = memory.make<Worker>(given, parts, slots, x, thread, team);
    if (team > 1) {
#pragma omp barrier
    }
    if (memory.is_missing()) return;  // all threads, or none: they wait for each other
    for (int64_t t = 0; t < count; t++) worker->pass(layer[t], cache[t]);
    worker->finish({norm_weight, norm_bias}, out);
  });
  return memory.status();
}
