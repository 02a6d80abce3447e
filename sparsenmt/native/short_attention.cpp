// Softmax attention of short sentences and its gradients, one head of one sentence at a time. See gradients.py.
//
// The weights are computed anew in the backward pass: for sentences this takes less time than reading them.

#include <algorithm>
#include <vector>

#include "elements.h"

namespace sparsenmt {
namespace {

struct Problem {
  int64_t batch, heads, queries, keys, size;
  const void *q, *k, *v;
  const int64_t* strides;  // of q, k and v, each over sentences, heads and positions
  const float* bias;       // (batch, keys); null: none
  int64_t causal;
};

// The lanes of a after an exchange with b of the lanes `step` apart: its own, and from b those that are `step` before.
template <int step>
constexpr int lower(int lane) {
  return lane & step ? static_cast<int>(kLanes) + lane - step : lane;
}

// The lanes of b after it.
template <int step>
constexpr int upper(int lane) {
  return lane & step ? static_cast<int>(kLanes) + lane : lane + step;
}

// Lane i of vector j becomes lane j of vector i: lanes `step` apart of vectors `step` apart change places.
template <int step = kLanes / 2>
inline void transpose(Floats* x) {
  for (int i = 0; i < kLanes; i++) {
    if (i & step) continue;
    const Floats a = x[i], b = x[i + step];
    x[i] = pick<lower<step>>(a, b);
    x[i + step] = pick<upper<step>>(a, b);
  }
  if constexpr (step > 1) transpose<step / 2>(x);
}

// c (m, 16 * vectors) = a (m, depth) b (depth, 16 * vectors); entry (i, d) of a is at i * row + d * column.
template <int vectors, int rows>
inline void tile(const float* a, int64_t row, int64_t column, int64_t depth, const float* b, int64_t b_row, float* c,
                 int64_t c_row) {
  Floats sums[rows][vectors];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) sums[i][j] = all(0.0f);
  for (int64_t d = 0; d < depth; d++) {
    Floats given[vectors];
    for (int j = 0; j < vectors; j++) given[j] = load(b + d * b_row + j * kLanes);
    for (int i = 0; i < rows; i++) {
      const Floats x = all(a[i * row + d * column]);
      for (int j = 0; j < vectors; j++) sums[i][j] += x * given[j];
    }
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < vectors; j++) store(c + i * c_row + j * kLanes, sums[i][j]);
}

template <int vectors>
void columns(const float* a, int64_t row, int64_t column, int64_t m, int64_t depth, const float* b, int64_t b_row,
             float* c, int64_t c_row) {
  constexpr int kRows = vectors > 2 ? 5 : 8;  // as many sums as registers hold
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows)
    tile<vectors, kRows>(a + i * row, row, column, depth, b, b_row, c + i * c_row, c_row);
  for (; i + 2 <= m; i += 2) tile<vectors, 2>(a + i * row, row, column, depth, b, b_row, c + i * c_row, c_row);
  for (; i < m; i++) tile<vectors, 1>(a + i * row, row, column, depth, b, b_row, c + i * c_row, c_row);
}

// c (m, n) = a b, with n a multiple of 16.
void multiply(const float* a, int64_t row, int64_t column, int64_t m, int64_t depth, const float* b, int64_t b_row,
              int64_t n, float* c) {
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) columns<4>(a, row, column, m, depth, b + j, b_row, c + j, n);
  for (; j + 3 * kLanes <= n; j += 3 * kLanes) columns<3>(a, row, column, m, depth, b + j, b_row, c + j, n);
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) columns<2>(a, row, column, m, depth, b + j, b_row, c + j, n);
  for (; j < n; j += kLanes) columns<1>(a, row, column, m, depth, b + j, b_row, c + j, n);
}

// One head of one sentence, and the memory for it.
template <class Number>
struct Head {
  const Problem& given;
  int64_t width;  // keys, up to the next multiple of 16
  float scale;
  std::vector<float> q, k, v, of_out, turned, bias, weights, slopes, result;

  explicit Head(const Problem& problem)
      : given(problem), width((problem.keys + kLanes - 1) / kLanes * kLanes),
        scale(1.0f / std::sqrt(static_cast<float>(problem.size))), q(problem.queries * problem.size),
        k(problem.keys * problem.size), v(problem.keys * problem.size), of_out(problem.queries * problem.size),
        turned(problem.size * width), bias(width), weights(problem.queries * width), slopes(problem.queries * width),
        result(std::max(problem.queries, problem.keys) * problem.size) {
    std::fill(bias.begin() + problem.keys, bias.end(), -std::numeric_limits<float>::infinity());
  }

  void read(const void* from, const int64_t* strides, int64_t b, int64_t h, int64_t rows, float factor, float* to) {
    const Number* first = static_cast<const Number*>(from) + b * strides[0] + h * strides[1];
    for (int64_t t = 0; t < rows; t++)
      for (int64_t e = 0; e < given.size; e += kLanes)
        store(to + t * given.size + e, load_from(first + t * strides[2] + e) * factor);
  }

  // x (keys, size) -> turned (size, width)
  void turn(const float* x) {
    for (int64_t t = 0; t < width; t += kLanes)
      for (int64_t e = 0; e < given.size; e += kLanes) {
        Floats block[kLanes];
        for (int64_t i = 0; i < kLanes; i++)
          block[i] = t + i < given.keys ? load(x + (t + i) * given.size + e) : all(0.0f);
        transpose(block);
        for (int64_t i = 0; i < kLanes; i++) store(turned.data() + (e + i) * width + t, block[i]);
      }
  }

  void weigh(int64_t b, int64_t h) {
    read(given.q, given.strides, b, h, given.queries, scale, q.data());
    read(given.k, given.strides + 3, b, h, given.keys, 1.0f, k.data());
    read(given.v, given.strides + 6, b, h, given.keys, 1.0f, v.data());
    turn(k.data());
    multiply(q.data(), given.size, 1, given.queries, given.size, turned.data(), width, width, weights.data());
    if (given.bias) std::copy(given.bias + b * given.keys, given.bias + (b + 1) * given.keys, bias.begin());
    for (int64_t t = 0; t < given.queries; t++)
      normalize(weights.data() + t * width, given.causal ? t : width);
  }

  // Scores to weights; after the key `last` they are 0.
  void normalize(float* row, int64_t last) {
    const Floats never = all(-std::numeric_limits<float>::infinity());
    Ints numbers;
    for (int i = 0; i < kLanes; i++) numbers[i] = i;
    Floats most = never;
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats x = numbers + static_cast<int32_t>(i) > static_cast<int32_t>(last)
                           ? never
                           : load(row + i) + load(bias.data() + i);
      store(row + i, x);
      most = larger(x, most);
    }
    const float top = largest(most);
    Floats sum = all(0.0f);
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats x = load(row + i), e = x == never ? all(0.0f) : exponential(x - top);
      store(row + i, e);
      sum += e;
    }
    const float factor = 1.0f / total(sum);
    for (int64_t i = 0; i < width; i += kLanes) store(row + i, load(row + i) * factor);
  }

  // result (rows, size) -> the place of this head in (batch, rows, heads, size)
  void write(void* to, int64_t b, int64_t h, int64_t rows, float factor) {
    Number* first = static_cast<Number*>(to) + (b * rows * given.heads + h) * given.size;
    for (int64_t t = 0; t < rows; t++)
      for (int64_t e = 0; e < given.size; e += kLanes)
        store_to(first + t * given.heads * given.size + e, load(result.data() + t * given.size + e) * factor);
  }

  void forward(int64_t b, int64_t h, void* out) {
    weigh(b, h);
    multiply(weights.data(), width, 1, given.queries, given.keys, v.data(), given.size, given.size, result.data());
    write(out, b, h, given.queries, 1.0f);
  }

  void backward(int64_t b, int64_t h, const void* of, const int64_t* of_strides, void* of_q, void* of_k, void* of_v) {
    const int64_t size = given.size, queries = given.queries, keys = given.keys;
    weigh(b, h);
    read(of, of_strides, b, h, queries, 1.0f, of_out.data());
    multiply(weights.data(), 1, width, keys, queries, of_out.data(), size, size, result.data());
    write(of_v, b, h, keys, 1.0f);
    turn(v.data());
    multiply(of_out.data(), size, 1, queries, size, turned.data(), width, width, slopes.data());
    for (int64_t t = 0; t < queries; t++) {
      float *p = weights.data() + t * width, *s = slopes.data() + t * width;
      Floats sum = all(0.0f);
      for (int64_t i = 0; i < width; i += kLanes) sum += load(p + i) * load(s + i);
      const float mean = total(sum);
      for (int64_t i = 0; i < width; i += kLanes) store(s + i, load(p + i) * (load(s + i) - mean));
    }
    multiply(slopes.data(), width, 1, queries, keys, k.data(), size, size, result.data());
    write(of_q, b, h, queries, scale);
    multiply(slopes.data(), 1, width, keys, queries, q.data(), size, size, result.data());
    write(of_k, b, h, keys, 1.0f);
  }
};

template <class Number>
void forward(const Problem& given, void* out, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Head<Number> head(given);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads; i++) head.forward(i / given.heads, i % given.heads, out);
  }
}

template <class Number>
void backward(const Problem& given, const void* of, const int64_t* strides, void* of_q, void* of_k, void* of_v,
              int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Head<Number> head(given);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < given.batch * given.heads; i++)
      head.backward(i / given.heads, i % given.heads, of, strides, of_q, of_k, of_v);
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
