// A batch through all layers of an encoder, on the CPU. Built by kernels.py, checked by encoder.py.
//
// A thread takes a few sentences at a time through all layers, without their padding: their rows stay in its cache from
// one product to the next, and threads never wait for each other.
//
// B sentences, S positions of the longest, N positions of a few sentences together, D dimension, H heads, E = D / H,
// F feed-forward dimension.

#include <atomic>
#include <memory>
#include <vector>

#include "memory.h"
#include "norm.h"
#include "products.h"

extern "C" int sparsenmt_attend_many(const float* queries, const int64_t* query_strides, const float* keys,
                                     const int64_t* key_strides, const float* values, const int64_t* value_strides,
                                     const float* bias, const int64_t* shape, float* out, int threads);

namespace sparsenmt {
namespace {

// The parameters of a layer; the same as in encoder.py.
struct EncoderLayer {
  Matrix own, own_out, inner, outer;  // own: queries, keys and values at once
  Norm own_norm, feed_forward_norm;
};

// The same as in encoder.py.
struct Batch {
  int64_t sentences, width, dimension, feed_forward, heads, pre_norm;  // width: S
  int64_t together, block;  // rows of a thread at a time, about; of its feed-forward network at a time, at most
  double epsilon;
  const int64_t* lengths;  // (B)
  const float* x;          // (B, S, D)
  float* out;              // (B, S, D): zeros where a sentence has no position
};

// Sentences that go through all layers together, the last one excluded, and their positions.
struct Part {
  int64_t first, last, rows;
};

std::vector<Part> parts_of(const Batch& batch) {
  std::vector<Part> parts;
  for (int64_t b = 0; b < batch.sentences; b++) {
    const int64_t length = batch.lengths[b];
    if (parts.empty() || (parts.back().rows && parts.back().rows + length > batch.together)) parts.push_back({b, b, 0});
    parts.back().last = b + 1;
    parts.back().rows += length;
  }
  return parts;
}

// The work of one thread, and its memory, for parts of up to `most` positions.
class Worker {
 public:
  Worker(const Batch& batch, int64_t most)
      : batch_(batch), x_(new float[most * batch.dimension]), normed_(new float[most * batch.dimension]),
        wide_(new float[std::max(most * 3 * batch.dimension, std::min(most, batch.block) * batch.feed_forward)]),
        context_(new float[most * batch.dimension]),
        rounded_(new float[std::max(most * (batch.dimension + 2), std::min(most, batch.block) * (batch.feed_forward + 2))]) {}

  // Take a part through the first `count` layers.
  void run(const Part& part, const EncoderLayer* layers, int64_t count) {
    const int64_t D = batch_.dimension, S = batch_.width;
    rows_ = part.rows;
    float* row = x_.get();
    for (int64_t b = part.first; b < part.last; b++) row = std::copy_n(batch_.x + b * S * D, batch_.lengths[b] * D, row);
    for (int64_t t = 0; t < count; t++) pass(part, layers[t]);
    const float* from = x_.get();
    for (int64_t b = part.first; b < part.last; b++) {
      const int64_t length = batch_.lengths[b];
      std::copy_n(from, length * D, batch_.out + b * S * D);
      std::fill(batch_.out + (b * S + length) * D, batch_.out + (b + 1) * S * D, 0.0f);
      from += length * D;
    }
  }

 private:
  void pass(const Part& part, const EncoderLayer& layer) {
    const int64_t D = batch_.dimension;
    float* x = x_.get();
    project(layer.own, before(layer.own_norm), rows_, nullptr, false, wide_.get());
    attend(part);
    project(layer.own_out, context_.get(), rows_, x, false, x);
    after(layer.own_norm);
    const float* from = before(layer.feed_forward_norm);
    const int64_t blocks = (rows_ + batch_.block - 1) / batch_.block;
    for (int64_t i = 0; i < blocks; i++) {
      const int64_t top = rows_ * i / blocks, here = rows_ * (i + 1) / blocks - top;
      project(layer.inner, from + top * D, here, nullptr, true, wide_.get());
      project(layer.outer, wide_.get(), here, x + top * D, false, x + top * D);
    }
    after(layer.feed_forward_norm);
  }

  const float* before(const Norm& norm) {
    if (!batch_.pre_norm) return x_.get();
    normalize_all(norm, normed_.get());
    return normed_.get();
  }

  void after(const Norm& norm) {
    if (!batch_.pre_norm) normalize_all(norm, x_.get());
  }

  void normalize_all(const Norm& norm, float* out) {
    const int64_t D = batch_.dimension;
    for (int64_t n = 0; n < rows_; n++)
      normalize(x_.get() + n * D, norm, static_cast<float>(batch_.epsilon), D, out + n * D);
  }

  void project(const Matrix& matrix, const float* from, int64_t rows, const float* added, bool relu, float* out) {
    const Product product(matrix, from, rows, added, relu, out, rounded_.get());
    product.round(0, rows);
    product.run({0, rows, 0, matrix.count()});
  }

  void attend(const Part& part) {
    const int64_t D = batch_.dimension, H = batch_.heads, E = D / H, strides[] = {0, E, 3 * D};
    int64_t first = 0;
    for (int64_t b = part.first; b < part.last; b++) {
      const int64_t length = batch_.lengths[b], shape[] = {1, H, length, length, E};
      const float* wide = wide_.get() + first * 3 * D;
      demand(sparsenmt_attend_many(wide, strides, wide + D, strides, wide + 2 * D, strides, nullptr, shape,
                                   context_.get() + first * D, 1));
      first += length;
    }
  }

  const Batch& batch_;
  const std::unique_ptr<float[]> x_, normed_, wide_, context_;  // (N, D), (N, D), (N, 3 D) or (block, F), (N, D)
  const std::unique_ptr<float[]> rounded_;                      // scratch of products
  int64_t rows_ = 0;
};

}  // namespace
}  // namespace sparsenmt

// layers: `EncoderLayer`, of which the first `count` run; given: `Batch`. Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_encode(const void* layers, int64_t count, const void* given, int threads) {
  using namespace sparsenmt;
  const Batch& batch = *static_cast<const Batch*>(given);
  Memory memory;
  std::vector<Part> parts;
  memory.run([&] { parts = parts_of(batch); });
  int64_t most = 0;
  for (const Part& part : parts) most = std::max(most, part.rows);
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  memory.run([&] {
    Worker worker(batch, most);
    for (int64_t i = next++; i < static_cast<int64_t>(parts.size()); i = next++)
      worker.run(parts[i], static_cast<const EncoderLayer*>(layers), count);
  });
  return memory.status();
}
