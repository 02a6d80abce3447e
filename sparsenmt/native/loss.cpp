// The softmax of rows of logits in place, less the target's share: the gradient of a cross-entropy. See gradients.py.

#include <vector>

#include "elements.h"
#include "memory.h"

namespace sparsenmt {
namespace {

// logits (V) -> p - share e_target, in their place; returns the log of the normalizer. scratch: V + kLanes floats.
template <class Number>
float solve(Number* logits, int64_t size, int64_t target, float share, float* scratch) {
  const int64_t whole = size - size % kLanes;
  Floats most = all(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < whole; i += kLanes) most = larger(load_from(logits + i), most);
  float top = largest(most);
  for (int64_t i = whole; i < size; i++) top = number(logits[i]) > top ? number(logits[i]) : top;
  Floats sum = all(0.0f);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Floats e = exponential(load_from(logits + i) - top);
    store(scratch + i, e);
    sum += e;
  }
  float normalizer = total(sum);
  for (int64_t i = whole; i < size; i++) {
    scratch[i] = exponential(all(number(logits[i]) - top))[0];
    normalizer += scratch[i];
  }
  const float scale = 1.0f / normalizer;
  scratch[target] -= share * normalizer;
  for (int64_t i = 0; i < whole; i += kLanes) store_to(logits + i, load(scratch + i) * scale);
  if (whole < size) {
    Number last[kLanes];
    store_to(last, load_part(scratch + whole, size - whole, 0.0f) * scale);
    std::memcpy(logits + whole, last, sizeof(Number) * (size - whole));
  }
  return top + std::log(normalizer);
}

template <class Number>
int rows(Number* logits, int64_t count, int64_t size, const int64_t* targets, float share, float* own, float* logs,
         int threads) {
  Memory memory;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<float> scratch;
    memory.run([&] { scratch.resize(size + kLanes); });
#pragma omp for schedule(static)
    for (int64_t n = 0; n < count; n++) {
      if (scratch.empty()) continue;
      own[n] = number(logits[n * size + targets[n]]);
      logs[n] = solve(logits + n * size, size, targets[n], share, scratch.data());
    }
  }
  return memory.status();
}

}  // namespace
}  // namespace sparsenmt

// logits (N, V), targets (N) -> logits: p - share e_target; own (N): the targets' logits; logs (N): log normalizers.
// Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_loss(void* logits, int bf16, int64_t count, int64_t size, const int64_t* targets, float share,
                              float* own, float* logs, int threads) {
  using namespace sparsenmt;
  if (bf16) return rows(static_cast<Bf16*>(logits), count, size, targets, share, own, logs, threads);
  return rows(static_cast<float*>(logits), count, size, targets, share, own, logs, threads);
}
