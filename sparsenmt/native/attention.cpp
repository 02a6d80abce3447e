// Softmax attention of training and its gradients, one head of one sentence at a time. See gradients.py.
//
// Where queries see all keys, a head is one part. Within a window, successive queries are a part with the keys that they
// can reach, without copies of the keys. A query that sees no key gets zeros.

#include "attention_head.h"
#include "memory.h"

namespace sparsenmt {
namespace {

// The parts of a head: `length` queries, `keys` keys, `left` and `right` of which a query sees beside its own position.
struct Parts {
  int64_t length, keys, left, right, queries, count;  // queries: of a part; count: of parts

  explicit Parts(const Problem& given)
      : length(given.queries), keys(given.keys), left(std::min(given.left, std::max(length, keys))),
        right(std::min(given.right, std::max(length, keys))) {
    const bool whole = std::min(left, right) == std::max(length, keys);
    queries = whole ? length : std::min<int64_t>(left + right < kNarrow ? kFew : kMany, length);
    count = (length + queries - 1) / queries;
  }

  Part part(int64_t i) const {
    const int64_t first = i * queries, here = std::min(queries, length - first), from = std::max<int64_t>(0, first - left);
    return {first, here, from, std::min(keys, first + here + right) - from};
  }

  // The most queries and keys of a part.
  Part most() const { return {0, queries, 0, std::min(keys, left + queries + right)}; }

 private:
  static constexpr int64_t kNarrow = 48, kFew = 16, kMany = 32;  // keys in reach; queries of a part
};

template <class Number>
int forward(const Problem& given, void* out, int threads) {
  const Parts parts(given);
  Memory memory;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const auto head = memory.make<Head<Number>>(given, parts.most());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads * parts.count; i++) {
      const int64_t row = i / parts.count;
      if (head) head->forward(row / given.heads, row % given.heads, parts.part(i % parts.count), out);
    }
  }
  return memory.status();
}

// The gradients of a head's keys or values. Those of a single part are written at once; parts of a window have keys in
// common, whose gradients are added up.
template <class Number>
class KeyGradients {
 public:
  KeyGradients(const Head<Number>& head, const Problem& given, const Parts& parts, void* to)
      : head_(head), given_(given), single_(parts.count == 1), to_(to), sums_(single_ ? 0 : given.keys * given.size) {}

  void begin() { std::fill(sums_.begin(), sums_.end(), 0.0f); }

  // found: of the part's keys (keys of the part, size).
  void take(int64_t b, int64_t h, const Part& part, const float* found) {
    if (single_) return write(b, h, found);
    float* sums = sums_.data() + part.key * given_.size;
    for (int64_t e = 0; e < part.keys * given_.size; e += kLanes) store(sums + e, load(sums + e) + load(found + e));
  }

  void end(int64_t b, int64_t h) {
    if (!single_) write(b, h, sums_.data());
  }

 private:
  void write(int64_t b, int64_t h, const float* from) { head_.write(to_, from, given_.keys, b, h, 0, given_.keys, 1.0f); }

  const Head<Number>& head_;
  const Problem& given_;
  const bool single_;
  void* to_;
  std::vector<float> sums_;  // (keys, size)
};

// The gradients of one head at a time, with a thread's memory for them.
template <class Number>
class Gradients {
 public:
  Gradients(const Problem& given, const Parts& parts, void* of_k, void* of_v)
      : parts_(parts), head_(given, parts.most()), keys_(head_, given, parts, of_k), values_(head_, given, parts, of_v) {}

  void find(int64_t b, int64_t h, const void* of, const int64_t* strides, void* of_q) {
    keys_.begin(), values_.begin();
    for (int64_t j = 0; j < parts_.count; j++) {
      const Part part = parts_.part(j);
      head_.backward(
          b, h, part, of, strides, of_q, [&](const float* found) { keys_.take(b, h, part, found); },
          [&](const float* found) { values_.take(b, h, part, found); });
    }
    keys_.end(b, h), values_.end(b, h);
  }

 private:
  const Parts& parts_;
  Head<Number> head_;
  KeyGradients<Number> keys_, values_;
};

// `sparsenmt_attention_backward`; a thread takes whole heads, as successive parts have keys in common.
template <class Number>
int backward(const Problem& given, const void* of, const int64_t* strides, void* of_q, void* of_k, void* of_v,
             int threads) {
  const Parts parts(given);
  Memory memory;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const auto own = memory.make<Gradients<Number>>(given, parts, of_k, of_v);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads; i++)
      if (own) own->find(i / given.heads, i % given.heads, of, strides, of_q);
  }
  return memory.status();
}

}  // namespace
}  // namespace sparsenmt

// problem: `Problem`, of bf16 or fp32 -> out (batch, queries, heads, size). Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_attention(const void* problem, int bf16, void* out, int threads) {
  using namespace sparsenmt;
  const Problem& given = *static_cast<const Problem*>(problem);
  return bf16 ? forward<Bf16>(given, out, threads) : forward<float>(given, out, threads);
}

// of: the gradient of the output, with its strides over sentences, heads and positions -> of_q (batch, queries, heads, size),
// of_k and of_v (batch, keys, heads, size). Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_attention_backward(const void* problem, int bf16, const void* of, const int64_t* strides,
                                            void* of_q, void* of_k, void* of_v, int threads) {
  using namespace sparsenmt;
  const Problem& given = *static_cast<const Problem*>(problem);
  return bf16 ? backward<Bf16>(given, of, strides, of_q, of_k, of_v, threads)
              : backward<float>(given, of, strides, of_q, of_k, of_v, threads);
}
