// Softmax attention of short sentences and its gradients, one head of one sentence at a time. See gradients.py.

#include "attention_head.h"

namespace sparsenmt {
namespace {

template <class Number>
void forward(const Problem& given, void* out, int threads) {
  const Part whole{0, given.queries, 0, given.keys};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Head<Number> head(given, whole);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads; i++) head.forward(i / given.heads, i % given.heads, whole, out);
  }
}

template <class Number>
void backward(const Problem& given, const void* of, const int64_t* strides, void* of_q, void* of_k, void* of_v,
              int threads) {
  const Part whole{0, given.queries, 0, given.keys};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Head<Number> head(given, whole);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads; i++) {
      const int64_t b = i / given.heads, h = i % given.heads;
      const auto write = [&](void* to) {
        return [&, to](const float* found) { head.write(to, found, given.keys, b, h, 0, given.keys, 1.0f); };
      };
      head.backward(b, h, whole, of, strides, of_q, write(of_k), write(of_v));
    }
  }
}

}  // namespace
}  // namespace sparsenmt

// -> out (batch, queries, heads, size)
extern "C" void sparsenmt_short_attention(const void* problem, int bf16, void* out, int threads) {
  using namespace sparsenmt;
  const Problem& given = *static_cast<const Problem*>(problem);
  bf16 ? forward<Bf16>(given, out, threads) : forward<float>(given, out, threads);
}

// of, strided as q -> of_q (batch, queries, heads, size), of_k and of_v (batch, keys, heads, size)
extern "C" void sparsenmt_short_attention_backward(const void* problem, int bf16, const void* of,
                                                   const int64_t* strides, void* of_q, void* of_k, void* of_v,
                                                   int threads) {
  using namespace sparsenmt;
  const Problem& given = *static_cast<const Problem*>(problem);
  bf16 ? backward<Bf16>(given, of, strides, of_q, of_k, of_v, threads)
       : backward<float>(given, of, strides, of_q, of_k, of_v, threads);
}
