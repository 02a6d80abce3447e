// What a search needs of the logits, on the CPU in fp32: the normaliser, and the best few. Built and checked by
// kernels.py.

#include <algorithm>

#include "vectors.h"

namespace sparsenmt {
namespace {

constexpr int64_t kStride = 4 * kLanes;
const float kNever = -std::numeric_limits<float>::infinity();

float log_sum(const float* row, int64_t size) {
  Floats most[4] = {all(kNever), all(kNever), all(kNever), all(kNever)};
  int64_t i = 0;
  for (; i + kStride <= size; i += kStride)
    for (int j = 0; j < 4; j++) most[j] = larger(most[j], load(row + i + j * kLanes));
  for (; i < size; i += kLanes) most[0] = larger(most[0], load_part(row + i, size - i, kNever));
  const float peak = largest(larger(larger(most[0], most[1]), larger(most[2], most[3])));
  Floats sum[4] = {};
  i = 0;
  for (; i + kStride <= size; i += kStride)
    for (int j = 0; j < 4; j++) sum[j] += exponential(load(row + i + j * kLanes) - peak);
  for (; i + kLanes <= size; i += kLanes) sum[0] += exponential(load(row + i) - peak);
  float rest = 0.0f;
  for (; i < size; i++) rest += exponential(all(row[i] - peak))[0];
  return peak + std::log(total((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest);
}

// The `width` best of a row so far, in falling order, the first of equals first.
struct Best {
  int64_t width;
  float* values;
  int64_t* where;
  float least = kNever;  // what the next one must be above

  // What is no number is never among them.
  void offer(const float* row, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
      const float value = row[i];
      if (!(value > least)) continue;
      int64_t j = width - 1;
      for (; j > 0 && values[j - 1] < value; j--) {
        values[j] = values[j - 1];
        where[j] = where[j - 1];
      }
      values[j] = value;
      where[j] = i;
      least = values[width - 1];
    }
  }
};

void find_best(const float* row, int64_t size, int64_t width, float* values, int64_t* where) {
  constexpr int kVectors = 16;
  constexpr int64_t kStride = kVectors * kLanes;
  std::fill(values, values + width, kNever);
  std::fill(where, where + width, 0);
  Best best{width, values, where};
  int64_t first = 0;
  for (; first + kStride <= size; first += kStride) {
    Floats most[4] = {all(kNever), all(kNever), all(kNever), all(kNever)};
    for (int j = 0; j < kVectors; j++) most[j % 4] = larger(load(row + first + j * kLanes), most[j % 4]);
    if (!(largest(larger(larger(most[0], most[1]), larger(most[2], most[3]))) > best.least)) continue;
    for (int j = 0; j < kVectors; j++) {
      const int64_t from = first + j * kLanes;
      if (largest(larger(load(row + from), all(kNever))) > best.least) best.offer(row, from, from + kLanes);
    }
  }
  best.offer(row, first, size);
}

}  // namespace
}  // namespace sparsenmt

// logits (N, V), rows `stride` apart -> out (N)
extern "C" void sparsenmt_log_sums(const float* logits, int64_t stride, int64_t rows, int64_t size, float* out,
                                   int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < rows; n++) out[n] = sparsenmt::log_sum(logits + n * stride, size);
}

// logits (N, V), rows `stride` apart -> values and indices (N, width)
extern "C" void sparsenmt_best(const float* logits, int64_t stride, int64_t rows, int64_t size, int64_t width,
                               float* values, int64_t* indices, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < rows; n++)
    sparsenmt::find_best(logits + n * stride, size, width, values + n * width, indices + n * width);
}
