// Softmax attention of few queries (a decoding step), on the CPU in fp32. Built and checked by kernels.py.

#include <vector>

#include "few.h"
#include "memory.h"

// queries (B, H, Q, E), keys and values (B, H, K, E) or, with slots (B, K), (K, slots, H, E); bias (B, K) or null;
// out (B, Q, H, E) contiguous. Strides in floats: of queries B, H, Q; of keys and of values B or slot, H, K. Returns 0,
// or 1 without enough memory.
extern "C" int sparsenmt_attend(const float* queries, const int64_t* query_strides, const float* keys,
                                 const int64_t* key_strides, const float* values, const int64_t* value_strides,
                                const int32_t* slots, int64_t slots_stride, const float* bias, const int64_t* shape,
                                float* out, int threads) {
  using namespace sparsenmt;
  const int64_t B = shape[0], H = shape[1], Q = shape[2], K = shape[3], E = shape[4];
  const float scale = 1.0f / std::sqrt(static_cast<float>(E));
  const auto attend = [&](int64_t i, float* scratch) {
    const int64_t b = i / H, h = i % H, row = slots ? 0 : b;
    const float* own_keys = keys + row * key_strides[0] + h * key_strides[1];
    const float* own_values = values + row * value_strides[0] + h * value_strides[1];
    const Head head{own_keys, own_values, key_strides[2], value_strides[2], slots ? slots + b * slots_stride : nullptr,
                    key_strides[0], value_strides[0], bias ? bias + b * K : nullptr, K, scale};
    attend_sized(HeadSizes(), E, head, Q, queries + b * query_strides[0] + h * query_strides[1], query_strides[2],
                 out + (b * Q * H + h) * E, H * E, scratch);
  };
  Memory memory;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<float> scratch;
    memory.run([&] { scratch.resize(kMost * (K + kLanes)); });
#pragma omp for schedule(static)
    for (int64_t i = 0; i < B * H; i++) memory.run([&] { attend(i, scratch.data()); });
  }
  return memory.status();
}
