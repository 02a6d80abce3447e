// What a search needs of the logits, on the CPU in fp32: the normaliser, and the best few. Built and checked by
// kernels.py.

#include "best.h"

namespace sparsenmt {
namespace {

constexpr int64_t kStride = 4 * kLanes;
constexpr int64_t kForbidden = 8;  // that a row can be without, at most

float largest_of(const float* row, int64_t size) {
  Floats most[4] = {all(kNever), all(kNever), all(kNever), all(kNever)};
  int64_t i = 0;
  for (; i + kStride <= size; i += kStride)
    for (int j = 0; j < 4; j++) most[j] = larger(most[j], load(row + i + j * kLanes));
  for (; i < size; i += kLanes) most[0] = larger(most[0], load_part(row + i, size - i, kNever));
  return largest(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

// peak: the largest of the row.
float log_sum(const float* row, int64_t size, float peak) {
  Floats sum[4] = {};
  int64_t i = 0;
  for (; i + kStride <= size; i += kStride)
    for (int j = 0; j < 4; j++) sum[j] += exponential(load(row + i + j * kLanes) - peak);
  for (; i + kLanes <= size; i += kLanes) sum[0] += exponential(load(row + i) - peak);
  float rest = 0.0f;
  for (; i < size; i++) rest += exponential(all(row[i] - peak))[0];
  return peak + std::log(total((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest);
}

}  // namespace
}  // namespace sparsenmt

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

// The `width` best continuations of each of B sentences, whose H hypotheses are rows beside each other: what both
// functions above find, while a row is in the cache, then the best of a sentence's rows. What is not there has minus
// infinity, parent 0 and piece 0. Totals are no numbers where the row of a hypothesis that is open (its score is above
// minus infinity) holds one that is none. `never` (count <= kForbidden, no two the same) numbers what may not come: it
// is minus infinity afterwards.
// logits (B H, V), rows `stride` apart, scores (B, H), room for (B H, width) values and indices -> totals, parents and
// pieces (B, width)
extern "C" void sparsenmt_candidates(float* logits, int64_t stride, const int64_t* sizes, const int64_t* never,
                                     const float* scores, float* values, int64_t* indices, float* totals,
                                     int64_t* parents, int64_t* pieces, int threads) {
  using namespace sparsenmt;
  const int64_t sentences = sizes[0], hypotheses = sizes[1], size = sizes[2], width = sizes[3], count = sizes[4];
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < sentences * hypotheses; n++) {
    float *row = logits + n * stride, *found = values + n * width;
    float kept[kForbidden], peak = kNever;
    for (int64_t i = 0; i < count; i++) {
      kept[i] = row[never[i]];
      peak = kept[i] > peak ? kept[i] : peak;
      row[never[i]] = kNever;
    }
    find_best(row, size, width, found, indices + n * width);
    for (int64_t i = 0; i < count; i++) row[never[i]] = kept[i];
    const float sum = log_sum(row, size, found[0] > peak ? found[0] : peak);
    for (int64_t i = 0; i < count; i++) row[never[i]] = kNever;
    for (int64_t i = 0; i < width; i++) found[i] = (found[i] - sum) + scores[n];
  }
  for (int64_t b = 0; b < sentences; b++) {
    const int64_t first = b * hypotheses * width, to = b * width;
    bool sound = true;
    for (int64_t n = b * hypotheses; n < (b + 1) * hypotheses; n++)
      sound &= !(std::isnan(values[n * width]) && scores[n] > kNever);
    std::fill(totals + to, totals + to + width, sound ? kNever : std::numeric_limits<float>::quiet_NaN());
    std::fill(parents + to, parents + to + width, 0);
    Best best{width, totals + to, parents + to, kNever};
    if (sound) best.offer(values + first, 0, hypotheses * width);
    for (int64_t i = to; i < to + width; i++) {
      pieces[i] = totals[i] > kNever ? indices[first + parents[i]] : 0;
      parents[i] /= width;
    }
  }
}
