// A program that compares the kernels of decoding with naive twins, in double precision. It prints a line for each and ends
// with 1 if one deviates: for processors that only an emulator can show, where PyTorch does not run.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

extern "C" {
int sparsenmt_has_products(int64_t kind);
int sparsenmt_int8_most_of_pair();
void sparsenmt_product(const void* packed, const float* x, int64_t rows, const float* added, int relu, float* out,
                       void* scratch, int threads);
int sparsenmt_attend(const float*, const int64_t*, const float*, const int64_t*, const float*, const int64_t*,
                     const int32_t*, int64_t, const float*, const int64_t*, float*, int);
int sparsenmt_attend_many(const float*, const int64_t*, const float*, const int64_t*, const float*, const int64_t*,
                          const float*, const int64_t*, float*, int);
void sparsenmt_log_sums(const float*, int64_t, int64_t, int64_t, float*, int);
void sparsenmt_best(const float*, int64_t, int64_t, int64_t, int64_t, float*, int64_t*, int);
int sparsenmt_next(const void*, const void*, const float*, int);
}

namespace {

using Numbers = std::vector<float>;

constexpr double kTolerance = 2e-5;
constexpr int64_t kColumns = 32;  // of a panel of weights
bool failed = false;

Numbers numbers(int64_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Numbers found(count);
  for (float& x : found) x = normal(random);
  return found;
}

void report(const char* what, double deviation) {
  const bool right = deviation <= kTolerance;
  std::printf("%-40s deviation %.1e %s\n", what, deviation, right ? "" : "WRONG");
  failed |= !right;
}

// As in native/packing.py.
struct Matrix {
  const void* panels;
  const float* scales;
  const int32_t* sums;
  const float* bias;
  int64_t inner, outer, kind;
};

Numbers packed(const Numbers& weight, int64_t outer, int64_t inner) {
  Numbers panels((outer + kColumns - 1) / kColumns * kColumns * inner);
  for (int64_t n = 0; n < outer; n++)
    for (int64_t k = 0; k < inner; k++)
      panels[(n / kColumns * inner + k) * kColumns + n % kColumns] = weight[n * inner + k];
  return panels;
}

void products() {
  if (!sparsenmt_has_products(0)) return;
  double worst = 0;
  for (const int64_t rows : {1, 2, 5, 6, 7, 13, 40})
    for (const int64_t outer : {5, 32, 75})
      for (const int threads : {1, 3}) {
        const int64_t inner = 70;
        const Numbers x = numbers(rows * inner), weight = numbers(outer * inner), bias = numbers(outer);
        const Numbers added = numbers(rows * outer), panels = packed(weight, outer, inner);
        const Matrix matrix{panels.data(), nullptr, nullptr, bias.data(), inner, outer, 0};
        Numbers out(rows * outer);
        sparsenmt_product(&matrix, x.data(), rows, added.data(), 1, out.data(), nullptr, threads);
        for (int64_t m = 0; m < rows; m++)
          for (int64_t n = 0; n < outer; n++) {
            double sum = bias[n];
            for (int64_t k = 0; k < inner; k++) sum += double(x[m * inner + k]) * weight[n * inner + k];
            worst = std::max(worst, std::fabs(std::max(sum, 0.0) + added[m * outer + n] - out[m * outer + n]));
          }
      }
  report("products in fp32", worst);
}

// Levels and weights that int8 holds as they are, next to the largest sums of two weights that a processor adds: exact.
void products_of_bytes() {
  if (!sparsenmt_has_products(2)) return;
  const int most = sparsenmt_int8_most_of_pair() ? sparsenmt_int8_most_of_pair() / 2 : 127;
  const int levels = sparsenmt_int8_most_of_pair() ? 32767 / sparsenmt_int8_most_of_pair() : 255;
  static std::mt19937 random(2);
  double worst = 0;
  for (const int64_t rows : {1, 2, 5, 6, 7, 13, 40})
    for (const int64_t inner : {8, 70, 256})
      for (const int threads : {1, 3}) {
        const int64_t outer = 75, groups = (inner + 3) / 4, panels = (outer + kColumns - 1) / kColumns, shift = levels / 3;
        Numbers x(rows * inner), scales(outer, 1.0f);
        std::vector<int> weight(outer * inner);
        std::vector<int8_t> bytes(panels * groups * kColumns * 4);
        std::vector<int32_t> sums(outer), scratch(rows * (groups + 2));
        for (float& each : x) each = static_cast<float>(static_cast<int>(random() % (levels + 1)) - shift);
        for (int64_t m = 0; m < rows; m++) x[m * inner] = levels - shift, x[m * inner + 1] = levels - shift, x[m * inner + 2] = -shift;
        for (int& each : weight) each = random() % 4 ? most : static_cast<int>(random() % (2 * most + 1)) - most;
        for (int64_t n = 0; n < outer; n++)
          for (int64_t k = 0; k < inner; k++) {
            bytes[((n / kColumns * groups + k / 4) * kColumns + n % kColumns) * 4 + k % 4] = static_cast<int8_t>(weight[n * inner + k]);
            sums[n] += weight[n * inner + k];
          }
        const Matrix matrix{bytes.data(), scales.data(), sums.data(), nullptr, inner, outer, 2};
        Numbers out(rows * outer);
        sparsenmt_product(&matrix, x.data(), rows, nullptr, 0, out.data(), scratch.data(), threads);
        for (int64_t m = 0; m < rows; m++)
          for (int64_t n = 0; n < outer; n++) {
            double sum = 0;
            for (int64_t k = 0; k < inner; k++) sum += double(x[m * inner + k]) * weight[n * inner + k];
            worst = std::max(worst, std::fabs(sum - out[m * outer + n]) / std::max(1.0, std::fabs(sum)));
          }
      }
  report("products in int8", worst);
}

void attention(int64_t queries, int64_t keys, int64_t size) {
  const int64_t B = 2, H = 3, shape[] = {B, H, queries, keys, size};
  const Numbers q = numbers(B * H * queries * size), k = numbers(B * H * keys * size), v = numbers(B * H * keys * size);
  Numbers bias = numbers(B * keys), out(B * queries * H * size);
  bias[1] = -std::numeric_limits<float>::infinity();
  const int64_t of_queries[] = {H * queries * size, queries * size, size}, of_keys[] = {H * keys * size, keys * size, size};
  if (queries <= 7)
    sparsenmt_attend(q.data(), of_queries, k.data(), of_keys, v.data(), of_keys, nullptr, 0, bias.data(), shape,
                     out.data(), 2);
  else
    sparsenmt_attend_many(q.data(), of_queries, k.data(), of_keys, v.data(), of_keys, bias.data(), shape, out.data(), 2);
  double worst = 0;
  for (int64_t b = 0; b < B; b++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t i = 0; i < queries; i++) {
        std::vector<double> scores(keys);
        for (int64_t t = 0; t < keys; t++) {
          double sum = 0;
          for (int64_t e = 0; e < size; e++)
            sum += double(q[((b * H + h) * queries + i) * size + e]) * k[((b * H + h) * keys + t) * size + e];
          scores[t] = sum / std::sqrt(double(size)) + bias[b * keys + t];
        }
        const double most = *std::max_element(scores.begin(), scores.end());
        for (double& score : scores) score = std::exp(score - most);
        const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
        for (int64_t e = 0; e < size; e++) {
          double sum = 0;
          for (int64_t t = 0; t < keys; t++) sum += scores[t] / total * v[((b * H + h) * keys + t) * size + e];
          worst = std::max(worst, std::fabs(sum - out[((b * queries + i) * H + h) * size + e]));
        }
      }
  char name[64];
  std::snprintf(name, sizeof name, "attention of %d queries, %d keys, %d", int(queries), int(keys), int(size));
  report(name, worst);
}

double log_sum(const float* row, int64_t size) {
  const double most = *std::max_element(row, row + size);
  double sum = 0;
  for (int64_t i = 0; i < size; i++) sum += std::exp(row[i] - most);
  return most + std::log(sum);
}

void vocabulary() {
  for (const int64_t size : {3, 37, 1037}) {
    const int64_t rows = 3, width = std::min<int64_t>(7, size);
    const Numbers logits = numbers(rows * size);
    Numbers sums(rows), values(rows * width);
    std::vector<int64_t> where(rows * width);
    sparsenmt_log_sums(logits.data(), size, rows, size, sums.data(), 2);
    sparsenmt_best(logits.data(), size, rows, size, width, values.data(), where.data(), 2);
    double worst = 0;
    for (int64_t n = 0; n < rows; n++) {
      const float* row = logits.data() + n * size;
      worst = std::max(worst, std::fabs(log_sum(row, size) - sums[n]));
      Numbers sorted(row, row + size);
      std::sort(sorted.rbegin(), sorted.rend());
      for (int64_t i = 0; i < width; i++)
        if (values[n * width + i] != sorted[i] || row[where[n * width + i]] != sorted[i]) worst = 1;
    }
    report("the best of a vocabulary", worst);
  }
}

// As in native/vocabulary.h.
struct Continuations {
  int64_t sentences, hypotheses, size, width, count;
  const int64_t* never;
  const float *scores, *mask;
  float* values;
  int64_t* indices;
  float* totals;
  int64_t *parents, *tokens;
};

void continuations() {
  if (!sparsenmt_has_products(0)) return;
  const int64_t sentences = 40, hypotheses = 4, rows = sentences * hypotheses, size = 1203, inner = 24, width = 6, never = 2;
  const Numbers x = numbers(rows * inner), weight = numbers(size * inner), panels = packed(weight, size, inner);
  const Numbers scores = numbers(rows);
  const Matrix matrix{panels.data(), nullptr, nullptr, nullptr, inner, size, 0};
  Numbers values(rows * width), totals(sentences * width);
  std::vector<int64_t> indices(rows * width), parents(sentences * width), tokens(sentences * width);
  const Continuations found{sentences, hypotheses, size, width, 1, &never, scores.data(), nullptr, values.data(),
                            indices.data(), totals.data(), parents.data(), tokens.data()};
  sparsenmt_next(&found, &matrix, x.data(), 3);
  double worst = 0;
  for (int64_t b = 0; b < sentences; b++) {
    std::vector<double> all;
    for (int64_t j = 0; j < hypotheses; j++) {
      const int64_t n = b * hypotheses + j;
      Numbers logits(size);
      for (int64_t i = 0; i < size; i++) {
        double sum = 0;
        for (int64_t k = 0; k < inner; k++) sum += double(x[n * inner + k]) * weight[i * inner + k];
        logits[i] = float(sum);
      }
      const double normaliser = log_sum(logits.data(), size);
      for (int64_t i = 0; i < size; i++)
        if (i != never) all.push_back(logits[i] - normaliser + scores[n]);
    }
    std::sort(all.rbegin(), all.rend());
    for (int64_t i = 0; i < width; i++) worst = std::max(worst, std::fabs(all[i] - totals[b * width + i]));
  }
  report("the best continuations", worst);
}

}  // namespace

int main() {
  products();
  products_of_bytes();
  for (const int64_t queries : {1, 2, 4, 5, 7, 9, 30})
    for (const int64_t size : {16, 64, 96}) attention(queries, 33, size);
  vocabulary();
  continuations();
  return failed;
}
