// Normaliser and best tokens of logits, on the CPU in fp32. Built and checked by kernels.py.

#include "vocabulary.h"

// logits (N, V), rows `stride` apart -> out (N)
extern "C" void sparsenmt_log_sums(const float* logits, int64_t stride, int64_t rows, int64_t size, float* out,
                                   int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < rows; n++) {
    const float* row = logits + n * stride;
    out[n] = sparsenmt::log_sum(row, size, sparsenmt::largest_of(row, size));
  }
}

// logits (N, V), rows `stride` apart -> values and indices (N, width)
extern "C" void sparsenmt_best(const float* logits, int64_t stride, int64_t rows, int64_t size, int64_t width,
                               float* values, int64_t* indices, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < rows; n++)
    sparsenmt::find_best(logits + n * stride, size, width, values + n * width, indices + n * width);
}

// logits (B H, V), rows `stride` apart -> the results of `continuations`, a `Continuations`.
extern "C" void sparsenmt_candidates(const void* continuations, float* logits, int64_t stride, int threads) {
  const sparsenmt::Continuations& found = *static_cast<const sparsenmt::Continuations*>(continuations);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < found.sentences * found.hypotheses; n++) found.row(n, logits + n * stride, found.size);
  found.finish();
}
