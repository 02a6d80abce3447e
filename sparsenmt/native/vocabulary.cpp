// What a search needs of the logits, on the CPU in fp32: the normaliser, and the best few. Built and checked by
// kernels.py.

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

// Of every sentence's logits (B H, V), rows `stride` apart, the best continuations.
extern "C" void sparsenmt_candidates(const void* choice, float* logits, int64_t stride, int threads) {
  const sparsenmt::Choice& given = *static_cast<const sparsenmt::Choice*>(choice);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < given.sentences * given.hypotheses; n++) given.row(n, logits + n * stride);
  given.finish();
}
