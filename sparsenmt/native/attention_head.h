// Softmax attention of a part of a head, and its gradients, on the CPU in fp32 or bf16, computed with in fp32.
//
// The weights are computed anew in the backward pass: for parts that stay in the cache this takes less time than reading
// them.

#pragma once

#include <algorithm>
#include <vector>

#include "elements.h"

namespace sparsenmt {
namespace {

// The same as in gradients.py.
struct Problem {
  int64_t batch, heads, queries, keys, size;
  const void *q, *k, *v;
  const int64_t* strides;  // of q, k and v, each over sentences, heads and positions
  const float* bias;       // (batch, keys); null: none
  int64_t causal;
  int64_t left, right;     // keys that a query sees before and after its own position; large numbers: all
};

// Lane numbers for `pick`: those of a after an exchange with b: its own, and from b those that are `step` before.
template <int step>
constexpr int lower(int lane) {
  return lane & step ? static_cast<int>(kLanes) + lane - step : lane;
}

// The same: those of b.
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

// c (rows, kLanes * vectors) = a (rows, depth) b (depth, kLanes * vectors); entry (i, d) of a is at i * row + d * column.
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

constexpr int kWidest = kRegisters < 32 ? 2 : 4;  // vectors of a tile

// The same of m rows.
template <int vectors>
void columns(const float* a, int64_t row, int64_t column, int64_t m, int64_t depth, const float* b, int64_t b_row,
             float* c, int64_t c_row) {
  constexpr int kRows = kRegisters < 32 ? 6 : vectors > 2 ? 5 : 8;  // as many sums as registers hold
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows)
    tile<vectors, kRows>(a + i * row, row, column, depth, b, b_row, c + i * c_row, c_row);
  for (; i + 2 <= m; i += 2) tile<vectors, 2>(a + i * row, row, column, depth, b, b_row, c + i * c_row, c_row);
  for (; i < m; i++) tile<vectors, 1>(a + i * row, row, column, depth, b, b_row, c + i * c_row, c_row);
}

// c (m, n) = a (m, depth) b (depth, n), with n a multiple of kLanes; c is contiguous.
void multiply(const float* a, int64_t row, int64_t column, int64_t m, int64_t depth, const float* b, int64_t b_row,
              int64_t n, float* c) {
  int64_t j = 0;
  const auto all_of = [&](auto vectors) {
    constexpr int64_t kWide = vectors() * kLanes;
    for (; j + kWide <= n; j += kWide) columns<vectors()>(a, row, column, m, depth, b + j, b_row, c + j, n);
  };
  if constexpr (kWidest == 4) {
    all_of(std::integral_constant<int, 4>());
    all_of(std::integral_constant<int, 3>());
  }
  all_of(std::integral_constant<int, 2>());
  all_of(std::integral_constant<int, 1>());
}

// Successive queries and keys of a head: the first ones, and their numbers.
struct Part {
  int64_t query, queries, key, keys;
};

// The attention of a part of one head (h) of one sentence (b) at a time, and a thread's memory for it.
template <class Number>
class Head {
 public:
  // most: of the queries and keys of a part.
  Head(const Problem& problem, const Part& most)
      : given_(problem), size_(problem.size), scale_(1.0f / std::sqrt(static_cast<float>(problem.size))) {
    const int64_t widest = whole_vectors(most.keys);
    for (auto* each : {&q_, &of_out_}) each->resize(most.queries * size_);
    for (auto* each : {&k_, &v_}) each->resize(most.keys * size_);
    for (auto* each : {&weights_, &slopes_}) each->resize(most.queries * widest);
    turned_.resize(size_ * widest);
    bias_.resize(widest);
    result_.resize(std::max(most.queries, most.keys) * size_);
  }

  void forward(int64_t b, int64_t h, const Part& part, void* out) {
    weigh(b, h, part);
    multiply(weights_.data(), width_, 1, part.queries, part.keys, v_.data(), size_, size_, result_.data());
    write(out, result_.data(), given_.queries, b, h, part.query, part.queries, 1.0f);
  }

  // of: the gradient of the output. `take_k` and `take_v` are given those of the part's keys and values (keys, size).
  template <class TakeK, class TakeV>
  void backward(int64_t b, int64_t h, const Part& part, const void* of, const int64_t* of_strides, void* of_q,
                const TakeK& take_k, const TakeV& take_v) {
    const int64_t queries = part.queries, keys = part.keys;
    weigh(b, h, part);
    read(of, of_strides, b, h, part.query, queries, 1.0f, of_out_.data());
    multiply(weights_.data(), 1, width_, keys, queries, of_out_.data(), size_, size_, result_.data());
    take_v(result_.data());
    turn(v_.data(), keys);
    multiply(of_out_.data(), size_, 1, queries, size_, turned_.data(), width_, width_, slopes_.data());
    for (int64_t t = 0; t < queries; t++) {
      float *p = weights_.data() + t * width_, *s = slopes_.data() + t * width_;
      Floats sum = all(0.0f);
      for (int64_t i = 0; i < width_; i += kLanes) sum += load(p + i) * load(s + i);
      const float mean = total(sum);
      for (int64_t i = 0; i < width_; i += kLanes) store(s + i, load(p + i) * (load(s + i) - mean));
    }
    multiply(slopes_.data(), width_, 1, queries, keys, k_.data(), size_, size_, result_.data());
    write(of_q, result_.data(), given_.queries, b, h, part.query, queries, scale_);
    multiply(slopes_.data(), 1, width_, keys, queries, q_.data(), size_, size_, result_.data());
    take_k(result_.data());
  }

  // from (rows, size), of positions from `first` on, times a factor -> their places in (batch, all rows, heads, size).
  void write(void* to, const float* from, int64_t all_rows, int64_t b, int64_t h, int64_t first, int64_t rows,
             float factor) const {
    Number* place = static_cast<Number*>(to) + ((b * all_rows + first) * given_.heads + h) * size_;
    for (int64_t t = 0; t < rows; t++)
      for (int64_t e = 0; e < size_; e += kLanes)
        store_to(place + t * given_.heads * size_ + e, load(from + t * size_ + e) * factor);
  }

 private:
  static int64_t whole_vectors(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

  // `rows` positions of a head from `first` on, times a factor -> to (rows, size), fp32.
  void read(const void* from, const int64_t* strides, int64_t b, int64_t h, int64_t first, int64_t rows, float factor,
            float* to) const {
    const Number* place = static_cast<const Number*>(from) + b * strides[0] + h * strides[1] + first * strides[2];
    for (int64_t t = 0; t < rows; t++)
      for (int64_t e = 0; e < size_; e += kLanes)
        store(to + t * size_ + e, load_from(place + t * strides[2] + e) * factor);
  }

  // x (keys, size) -> turned (size, width), transposed, with zeros after the last key
  void turn(const float* x, int64_t keys) {
    for (int64_t t = 0; t < width_; t += kLanes)
      for (int64_t e = 0; e < size_; e += kLanes) {
        Floats block[kLanes];
        for (int64_t i = 0; i < kLanes; i++) block[i] = t + i < keys ? load(x + (t + i) * size_ + e) : all(0.0f);
        transpose(block);
        for (int64_t i = 0; i < kLanes; i++) store(turned_.data() + (e + i) * width_ + t, block[i]);
      }
  }

  // Read q, k and v of a part, and compute its weights (queries, width).
  void weigh(int64_t b, int64_t h, const Part& part) {
    width_ = whole_vectors(part.keys);
    read(given_.q, given_.strides, b, h, part.query, part.queries, scale_, q_.data());
    read(given_.k, given_.strides + 3, b, h, part.key, part.keys, 1.0f, k_.data());
    read(given_.v, given_.strides + 6, b, h, part.key, part.keys, 1.0f, v_.data());
    turn(k_.data(), part.keys);
    multiply(q_.data(), size_, 1, part.queries, size_, turned_.data(), width_, width_, weights_.data());
    std::fill(bias_.begin(), bias_.end(), 0.0f);
    if (given_.bias) std::copy_n(given_.bias + b * given_.keys + part.key, part.keys, bias_.begin());
    std::fill(bias_.begin() + part.keys, bias_.end(), kHidden);
    for (int64_t t = 0; t < part.queries; t++) {
      const int64_t own = part.query + t - part.key;  // the key at the position of the query
      const int64_t last = given_.causal ? own : std::min(own + given_.right, width_);
      normalize(weights_.data() + t * width_, own - given_.left, last);
    }
  }

  // Scores to weights; before the key `first` and after `last` they are 0, and everywhere if no key is left.
  void normalize(float* row, int64_t first, int64_t last) const {
    const Floats never = all(kHidden);
    const int32_t from = static_cast<int32_t>(std::max<int64_t>(first, 0)), to = static_cast<int32_t>(last);
    Ints numbers;
    for (int i = 0; i < kLanes; i++) numbers[i] = i;
    Floats most = never;
    for (int64_t i = 0; i < width_; i += kLanes) {
      const Ints here = numbers + static_cast<int32_t>(i);
      const Floats x = ((here > to) | (here < from)) ? never : load(row + i) + load(bias_.data() + i);
      store(row + i, x);
      most = larger(x, most);
    }
    const float top = largest(most);
    Floats sum = all(0.0f);
    for (int64_t i = 0; i < width_; i += kLanes) {
      const Floats x = load(row + i), e = x == never ? all(0.0f) : exponential(x - top);
      store(row + i, e);
      sum += e;
    }
    const float whole = total(sum), factor = whole == 0.0f ? 0.0f : 1.0f / whole;
    for (int64_t i = 0; i < width_; i += kLanes) store(row + i, load(row + i) * factor);
  }

  static constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const Problem& given_;
  const int64_t size_;
  const float scale_;
  int64_t width_ = 0;  // keys of the part, up to whole vectors
  std::vector<float> q_, k_, v_, of_out_, turned_, bias_, weights_, slopes_, result_;
};

}  // namespace
}  // namespace sparsenmt
