// Rows of scores to alpha-entmax weights and back, on the CPU in fp32. Built and checked by native.py.
//
// A row has keys k with score z, count c and weight p >= 0; sum_k c p = 1. With b = alpha - 1, d = z - max z and
//     u = max(0, 1 + b d - e),   p = u^(1/b),
// the row is solved for e in [0, 1). S(e) = sum c p. S^b is the norm of u with exponent 1/b >= 1, weighed by c: convex
// and falling in e, so that Newton's method on it rises to the root from the left and never passes it; it needs one
// step where all scores are equal, and for b -> 0. Long rows are solved one by one, short ones in tiles.

#include <algorithm>
#include <atomic>

#include "native_rows.h"
#include "native_tiles.h"

namespace {

// The most keys of rows in tiles, measured with AVX-512; backward, each score is read once, and transposing pays less.
constexpr int64_t kForwardTiles = 128, kBackwardTiles = 24;

// Rows of (batch, heads, queries, keys), contiguous.
struct Rows {
  int64_t heads, queries, keys, count;
  const float *counts, *alphas;

  Rows(const int64_t *sizes, const float *counts, const float *alphas)
      : heads(sizes[1]), queries(sizes[2]), keys(sizes[3]), count(sizes[0] * heads * queries), counts(counts),
        alphas(alphas) {}
};

struct Place {
  int64_t batch, head, query;

  Place(const Rows &rows, int64_t row)
      : batch(row / rows.queries / rows.heads), head(row / rows.queries % rows.heads), query(row % rows.queries) {}

  void step(const Rows &rows) {
    if (++query < rows.queries) return;
    query = 0;
    if (++head < rows.heads) return;
    head = 0, ++batch;
  }
};

// The visible keys of a row.
struct Seen {
  const uint8_t *first;  // null: all
  int64_t stride;

  // The mask of a vector of keys from k on, or of the first `wanted` of them.
  Mask from(int64_t k, int64_t wanted) const {
    uint8_t here[kLanes] = {};
    int32_t lanes[kLanes];
    if (stride == 1 && wanted >= kLanes)
      std::memcpy(here, first + k, sizeof here);
    else if (stride == 1)
      std::memcpy(here, first + k, wanted);
    else
      for (int64_t i = 0; i < std::min(wanted, kLanes); ++i) here[i] = first[(k + i) * stride];
#pragma omp simd
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = here[i] ? -1 : 0;
    Mask found;
    std::memcpy(&found, lanes, sizeof found);
    return found;
  }
};

Seen see(const uint8_t *seen, const int64_t *strides, Place at) {
  const int64_t offset = at.batch * strides[0] + at.head * strides[1] + at.query * strides[2];
  return {seen == nullptr ? nullptr : seen + offset, strides[3]};
}

// Rows from `first` on, in a tile; surplus lanes repeat the last row.
template <bool kCounted>
struct Task {
  const Rows &rows;
  const tiles::Work &work;
  const int64_t first, last;
  const tiles::Tile<kCounted> tile{work};
  Vector b;  // alpha - 1
  Mask kinds;
  unsigned present = 0;  // kinds, as bits
  const float *counts[kLanes];

  // Calls at(lane, place) for each lane.
  template <class At>
  Task(const Rows &rows, const tiles::Work &work, int64_t first, At at)
      : rows(rows), work(work), first(first), last(std::min(first + kLanes, rows.count) - 1) {
    Place place(rows, first);
    float alphas[kLanes];
    int32_t kind[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float alpha = rows.alphas[place.head];
      alphas[lane] = alpha;
      kind[lane] = kind_of(alpha);
      present |= 1u << kind_of(alpha);
      if (kCounted) counts[lane] = rows.counts + place.batch * rows.keys;
      at(lane, place);
      if (first + lane < last) place.step(rows);
    }
    std::memcpy(&b, alphas, sizeof b);
    std::memcpy(&kinds, kind, sizeof kinds);
    b -= 1.0f;
    if (kCounted)
      fill(work.c, [&](int64_t lane, int64_t k, int64_t left) {
        return read_lanes(counts[lane] + k, left, left, 1.0f);
      });
  }

  // Fills an array with the vectors of keys that pick(lane, k, remaining keys) returns.
  template <class Pick>
  void fill(Vector *array, Pick pick) const {
    for (int64_t k = 0; k < rows.keys; k += kLanes) {
      Vector lines[kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane) lines[lane] = pick(lane, k, rows.keys - k);
      transpose(lines);
      std::memcpy(array + k, lines, sizeof lines);
    }
  }

  // Fills an array with the rows of a tensor of all rows.
  void fill_from(const float *tensor, Vector *array) const {
    fill(array, [&](int64_t lane, int64_t k, int64_t left) { return read_row(tensor, lane, k, left, 0.0f); });
  }

  Vector read_row(const float *tensor, int64_t lane, int64_t k, int64_t left, float rest) const {
    const int64_t at = std::min(first + lane, last) * rows.keys + k;
    return read_lanes(tensor + at, left, rows.count * rows.keys - at, rest);
  }

  // Writes work.p to the rows of a tensor of all rows whose alpha is of this kind.
  void write_rows(int kind, float *tensor) const {
    const Mask chosen = kinds == kind;
    for (int64_t k = 0; k < rows.keys; k += kLanes) {
      Vector lines[kLanes];
      std::memcpy(lines, work.p + k, sizeof lines);
      transpose(lines);
      for (int64_t row = first; row <= last; ++row)
        if (chosen[row - first]) write_lanes(tensor + row * rows.keys + k, lines[row - first], rows.keys - k);
    }
  }
};

template <bool kCounted>
void forward_tile(const Rows &rows, const tiles::Work &work, int64_t first, const float *scores, const uint8_t *seen,
                  const int64_t *strides, float *mass) {
  Seen visible[kLanes];
  const Task<kCounted> task(rows, work, first, [&](int64_t lane, Place at) {
    visible[lane] = see(seen, strides, at);
  });
  Mask shown{};
  task.fill(work.d, [&](int64_t lane, int64_t k, int64_t left) {
    const Vector z = task.read_row(scores, lane, k, left, -kInfinity);
    if (seen == nullptr) return z;
    // Adjacent rows often have the same mask.
    if (lane == 0 || visible[lane].first != visible[lane - 1].first) shown = visible[lane].from(k, left);
    return shown ? z : splat(-kInfinity);
  });
  const Mask fully_masked = task.tile.settle();
  for (int kind = 0; kind < kKinds; ++kind) {
    if (!(task.present >> kind & 1)) continue;
    task.tile.normalise(task.tile.weigh(static_cast<Kind>(kind), task.b, fully_masked | (task.kinds != kind)));
    task.write_rows(kind, mass);
  }
  if (all_of(~fully_masked)) return;
  for (int64_t row = first; row <= task.last; ++row) {
    const Seen its = visible[row - first];
    if (!fully_masked[row - first]) continue;
    long_rows::write_masked(mass + row * rows.keys, scores + row * rows.keys, its.first, its.stride, rows.keys);
  }
}

template <bool kCounted>
void backward_tile(const Rows &rows, const tiles::Work &work, int64_t first, const float *mass, const float *given,
                   float *gradient, float *of_alpha) {
  const Task<kCounted> task(rows, work, first, [](int64_t, Place) {});
  task.fill_from(mass, work.d);
  task.fill_from(given, work.w);
  for (int kind = 0; kind < kKinds; ++kind) {
    if (!(task.present >> kind & 1)) continue;
    const Vector alpha = task.tile.backward(static_cast<Kind>(kind), task.b, of_alpha != nullptr);
    task.write_rows(kind, gradient);
    for (int64_t row = first; of_alpha != nullptr && row <= task.last; ++row)
      if (task.kinds[row - first] == kind) of_alpha[row] = alpha[row - first];
  }
}

template <bool kCounted>
void forward_row(const Rows &rows, const long_rows::Scratch &scratch, int64_t row, const float *scores,
                 const uint8_t *seen, const int64_t *strides, float *mass) {
  const Place at(rows, row);
  const Seen its = see(seen, strides, at);
  const float *z = scores + row * rows.keys, alpha = rows.alphas[at.head];
  const float *counts = kCounted ? rows.counts + at.batch * rows.keys : nullptr;
  mass += row * rows.keys;
  if (!long_rows::load(scratch, z, its.first, its.stride, counts, rows.keys))
    return long_rows::write_masked(mass, z, its.first, its.stride, rows.keys);
  const float sum = long_rows::weigh<kCounted>(scratch, kind_of(alpha), alpha - 1.0f);
  long_rows::write<kCounted>(scratch, sum, mass, rows.keys);
}

template <bool kCounted>
void backward_row(const Rows &rows, const long_rows::Scratch &scratch, int64_t row, const float *mass,
                  const float *given, float *gradient, float *of_alpha) {
  const Place at(rows, row);
  const int64_t first = row * rows.keys, keys = rows.keys;
  const float alpha = rows.alphas[at.head], b = alpha - 1.0f;
  const bool wanted = of_alpha != nullptr;
  if (kCounted) std::memcpy(scratch.c, rows.counts + at.batch * keys, keys * sizeof(float));
  const float found = long_rows::backward<kCounted>(scratch, mass + first, given + first, gradient + first,
                                                    kind_of(alpha), b, wanted, keys);
  if (wanted) of_alpha[row] = found;
}

// Calls work(scratch of the thread, row) for every `step`-th row. Returns 0, or 1 without enough memory.
template <class Space, class Work>
int each(const Rows &rows, int64_t step, [[maybe_unused]] int threads, Work work) {
  std::atomic<int> missing{0};
#pragma omp parallel num_threads(threads)
  {
    const Space space(rows.keys);
    if (space.d == nullptr) missing = 1;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows.count; row += step)
      if (space.d != nullptr) work(space, row);
  }
  return missing;
}

template <bool kCounted>
int forward(const Rows &rows, int threads, const float *scores, const uint8_t *seen, const int64_t *strides,
            float *mass) {
  if (rows.keys <= kForwardTiles)
    return each<tiles::Work>(rows, kLanes, threads, [&](const tiles::Work &work, int64_t row) {
      forward_tile<kCounted>(rows, work, row, scores, seen, strides, mass);
    });
  return each<long_rows::Scratch>(rows, 1, threads, [&](const long_rows::Scratch &scratch, int64_t row) {
    forward_row<kCounted>(rows, scratch, row, scores, seen, strides, mass);
  });
}

template <bool kCounted>
int backward(const Rows &rows, int threads, const float *mass, const float *given, float *gradient, float *of_alpha) {
  if (rows.keys <= kBackwardTiles)
    return each<tiles::Work>(rows, kLanes, threads, [&](const tiles::Work &work, int64_t row) {
      backward_tile<kCounted>(rows, work, row, mass, given, gradient, of_alpha);
    });
  return each<long_rows::Scratch>(rows, 1, threads, [&](const long_rows::Scratch &scratch, int64_t row) {
    backward_row<kCounted>(rows, scratch, row, mass, given, gradient, of_alpha);
  });
}

}  // namespace

// Scores and masses are (batch, heads, queries, keys), contiguous. `strides` are those of `seen` over the four axes, in
// bytes. `counts` is (batch, keys), contiguous; `alphas` is (heads). `seen` and `counts` may be null.
// Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_simplex_forward(const float *scores, const uint8_t *seen, const int64_t *strides,
                                         const float *counts, const float *alphas, float *mass, const int64_t *sizes,
                                         int threads) {
  const Rows rows(sizes, counts, alphas);
  return (counts == nullptr ? forward<false> : forward<true>)(rows, threads, scores, seen, strides, mass);
}

// `given` is the gradient of the masses; `of_alpha`, one for each row, may be null. Returns 0, or 1 without enough
// memory.
extern "C" int sparsenmt_simplex_backward(const float *mass, const float *given, const float *counts,
                                          const float *alphas, float *gradient, float *of_alpha, const int64_t *sizes,
                                          int threads) {
  const Rows rows(sizes, counts, alphas);
  return (counts == nullptr ? backward<false> : backward<true>)(rows, threads, mass, given, gradient, of_alpha);
}
