// Softmax attention within a window, and its gradients: successive queries with the keys that they can reach, block by block,
// without copies of the keys. See gradients.py.
//
// There are as many queries as keys, at the same positions. A query that sees no key gets zeros.

#include "attention_head.h"

namespace sparsenmt {
namespace {

// The blocks of a head.
struct Blocks {
  int64_t length, left, right, queries, count;

  explicit Blocks(const Problem& given)
      : length(given.keys), left(std::min(given.left, length)), right(std::min(given.right, length)),
        queries(std::min<int64_t>(left + right < kNarrow ? kFew : kMany, length)),
        count((length + queries - 1) / queries) {}

  Part part(int64_t i) const {
    const int64_t first = i * queries, here = std::min(queries, length - first), from = std::max<int64_t>(0, first - left);
    return {first, here, from, std::min(length, first + here + right) - from};
  }

  Part most() const { return {0, queries, 0, std::min(length, left + queries + right)}; }

 private:
  static constexpr int64_t kNarrow = 48, kFew = 16, kMany = 32;  // keys in reach; queries of a block
};

template <class Number>
void forward(const Problem& given, void* out, int threads) {
  const Blocks blocks(given);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Head<Number> head(given, blocks.most());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads * blocks.count; i++) {
      const int64_t row = i / blocks.count;
      head.forward(row / given.heads, row % given.heads, blocks.part(i % blocks.count), out);
    }
  }
}

// A thread takes whole heads, as the keys of successive blocks overlap.
template <class Number>
void backward(const Problem& given, const void* of, const int64_t* strides, void* of_q, void* of_k, void* of_v,
              int threads) {
  const Blocks blocks(given);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Head<Number> head(given, blocks.most());
    std::vector<float> keys(given.keys * given.size), values(given.keys * given.size);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads; i++) {
      const int64_t b = i / given.heads, h = i % given.heads;
      for (auto* each : {&keys, &values}) std::fill(each->begin(), each->end(), 0.0f);
      for (int64_t j = 0; j < blocks.count; j++) {
        const Part part = blocks.part(j);
        const auto add = [&](std::vector<float>& sums) {
          return [&](const float* found) {
            float* to = sums.data() + part.key * given.size;
            for (int64_t e = 0; e < part.keys * given.size; e += kLanes) store(to + e, load(to + e) + load(found + e));
          };
        };
        head.backward(b, h, part, of, strides, of_q, add(keys), add(values));
      }
      head.write(of_k, keys.data(), given.keys, b, h, 0, given.keys, 1.0f);
      head.write(of_v, values.data(), given.keys, b, h, 0, given.keys, 1.0f);
    }
  }
}

}  // namespace
}  // namespace sparsenmt

// -> out (batch, queries, heads, size)
extern "C" void sparsenmt_window_attention(const void* problem, int bf16, void* out, int threads) {
  using namespace sparsenmt;
  const Problem& given = *static_cast<const Problem*>(problem);
  bf16 ? forward<Bf16>(given, out, threads) : forward<float>(given, out, threads);
}

// of, strided as q -> of_q, of_k and of_v (batch, keys, heads, size)
extern "C" void sparsenmt_window_attention_backward(const void* problem, int bf16, const void* of,
                                                    const int64_t* strides, void* of_q, void* of_k, void* of_v,
                                                    int threads) {
  using namespace sparsenmt;
  const Problem& given = *static_cast<const Problem*>(problem);
  bf16 ? backward<Bf16>(given, of, strides, of_q, of_k, of_v, threads)
       : backward<float>(given, of, strides, of_q, of_k, of_v, threads);
}
