// The largest few numbers of a row, on the CPU in fp32.

#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "vectors.h"

namespace sparsenmt {
namespace {

const float kNever = -std::numeric_limits<float>::infinity();

// The `width` largest numbers of a row so far, in falling order; of equal ones the first comes first.
struct TopList {
  int64_t width;
  float* values;
  int64_t* where;
  float least;         // a number must be above it to enter
  int64_t offset = 0;  // of the row that is offered in a longer one

  void clear() {
    std::fill(values, values + width, kNever);
    std::fill(where, where + width, 0);
  }

  // The numbers at `from` to `to` - 1 of a row; NaN never enters.
  void offer(const float* row, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
      if (row[i] > least) insert(row[i], offset + i);
  }

  void insert(float value, int64_t place) {
    int64_t j = width - 1;
    for (; j > 0 && values[j - 1] < value; j--) {
      values[j] = values[j - 1];
      where[j] = where[j - 1];
    }
    values[j] = value;
    where[j] = place;
    least = values[width - 1] > least ? values[width - 1] : least;
  }

  // Numbers of a later part of the row, in falling order.
  void merge(const TopList& later) {
    for (int64_t i = 0; i < later.width && later.values[i] > least; i++) insert(later.values[i], later.where[i]);
  }
};

constexpr int kSamples = 4;  // vectors; each lane holds the maximum of a share of a row

// A lower bound of the `width`-th largest number: just below the `width`-th largest of the lanes' maxima, which are
// overwritten. Without it most early entries are pushed out again, and branches are unpredictable.
inline float lower_bound(Floats* samples, int64_t width) {
  float found = kNever;
  for (int64_t i = 0; i < width; i++) {
    found = largest(larger(larger(samples[0], samples[1]), larger(samples[2], samples[3])));
    for (int j = 0; j < kSamples; j++) samples[j] = samples[j] == found ? all(kNever) : samples[j];
  }
  return std::nextafter(found, kNever);
}

// A lower bound of the `width`-th largest number of a row from the maxima of its lanes.
inline float lower_bound(const float* row, int64_t size, int64_t width) {
  Floats samples[kSamples] = {all(kNever), all(kNever), all(kNever), all(kNever)};
  for (int64_t i = 0; i + kSamples * kLanes <= size; i += kSamples * kLanes)
    for (int j = 0; j < kSamples; j++) samples[j] = larger(load(row + i + j * kLanes), samples[j]);
  return lower_bound(samples, width);
}

// Offer all numbers of a row, most of which are too small.
inline void offer_row(const float* row, int64_t size, TopList& best) {
  constexpr int kVectors = 16;
  constexpr int64_t kStride = kVectors * kLanes;
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

// The `width` largest numbers of a row and where they are, in falling order; minus infinity where there are fewer.
inline void find_best(const float* row, int64_t size, int64_t width, float* values, int64_t* where) {
  TopList best{width, values, where, lower_bound(row, size, width)};
  best.clear();
  offer_row(row, size, best);
}

// A copy of a row, in this thread's memory.
inline std::vector<float>& copies() {
  static thread_local std::vector<float> copy;
  return copy;
}

// The `width`-th largest number of a row, 1 <= width <= size; minus infinity if fewer are not NaN.
inline float nth_largest(const float* row, int64_t size, int64_t width) {
  constexpr int64_t kInOrder = 64;  // for more, a sorted list is slower than a selection
  if (width <= kInOrder) {
    float values[kInOrder];
    int64_t where[kInOrder];
    find_best(row, size, width, values, where);
    return values[width - 1];
  }
  std::vector<float>& copy = copies();
  copy.clear();
  for (int64_t i = 0; i < size; i++)
    if (row[i] == row[i]) copy.push_back(row[i]);
  if (static_cast<int64_t>(copy.size()) < width) return kNever;
  std::nth_element(copy.begin(), copy.begin() + (width - 1), copy.end(), std::greater<float>());
  return copy[width - 1];
}

}  // namespace
}  // namespace sparsenmt
