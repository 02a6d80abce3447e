// Softmax attention of many queries (an encoder), on the CPU in fp32. Built and checked by kernels.py.
//
// A task is one head. Its keys are copied to panels as wide as a tile, its values to rows without gaps. Then, for four
// tiles of queries at a time, scores are computed, turned into weights, and multiplied with the values, in tiles that stay
// in registers.

#include <algorithm>
#include <vector>

#include "memory.h"
#include "vectors.h"

namespace sparsenmt {
namespace {

constexpr int64_t kPanel = kTileVectors * kLanes;
constexpr int64_t kPair = 2 * kLanes;
constexpr int64_t kBlock = 56 / kTileRows * kTileRows;  // queries at a time

// out (R, C vectors) = a (R, inner) b (inner, C vectors), each row times its own factor.
template <int R, int C>
__attribute__((noinline)) void tile(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t inner, const float* factors,
          float* out, int64_t out_step) {
  Floats sums[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) sums[r][c] = Floats{};
  for (int64_t i = 0; i < inner; i++, b += b_step) {
    Floats row[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) row[c] = load(b + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const float x = a[r * a_step + i];
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) sums[r][c] += row[c] * x;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) store(out + r * out_step + c * kLanes, factors ? sums[r][c] * factors[r] : sums[r][c]);
}

// The same with any number of rows, `height`, up to kTileRows.
template <int C>
void tile_of(int64_t height, const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t inner,
             const float* factors, float* out, int64_t out_step) {
  by_height(height, [&](auto rows) { tile<rows(), C>(a, a_step, b, b_step, inner, factors, out, out_step); });
}

// Scores of a row to exponentials, with zeros from `count` to `width`; returns 1 / sum.
float soften(float* scores, const float* bias, int64_t count, int64_t width) {
  const float never = -std::numeric_limits<float>::infinity();
  std::fill(scores + count, scores + width, never);
  Floats most[2] = {all(never), all(never)};
  for (int64_t t = 0; t < width; t += kPair)
    for (int c = 0; c < 2; c++) {
      Floats x = load(scores + t + c * kLanes);
      if (bias) {
        x += load(bias + t + c * kLanes);
        store(scores + t + c * kLanes, x);
      }
      most[c] = larger(most[c], x);
    }
  const float peak = largest(larger(most[0], most[1]));
  Floats sum[2] = {};
  for (int64_t t = 0; t < width; t += kPair)
    for (int c = 0; c < 2; c++) {
      const Floats x = exponential(load(scores + t + c * kLanes) - peak);
      store(scores + t + c * kLanes, x);
      sum[c] += x;
    }
  return 1.0f / total(sum[0] + sum[1]);
}

// A thread's memory for one head of E = `size`: `width` keys, up to whole panels.
struct Scratch {
  std::vector<float> panels, values, scores, queries, bias;

  Scratch(int64_t width, int64_t size)
      : panels(width * size), values(width * size), scores(kBlock * width), queries(kBlock * size), bias(width) {}
};

// A head: queries (Q, E), keys and values (K, E), bias (K) or null -> out (Q, E). Steps: floats from a row to the next.
void attend(const float* queries, int64_t query_step, int64_t query_count, const float* keys, int64_t key_step,
            const float* values, int64_t value_step, const float* bias, int64_t count, int64_t size, float* out,
            int64_t out_step, Scratch& scratch) {
  const int64_t width = (count + kPanel - 1) / kPanel * kPanel;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (int64_t t = 0; t < width; t++) {
    float* column = scratch.panels.data() + t / kPanel * kPanel * size + t % kPanel;
    for (int64_t e = 0; e < size; e++) column[e * kPanel] = t < count ? keys[t * key_step + e] : 0.0f;
    if (t < count) std::memcpy(scratch.values.data() + t * size, values + t * value_step, sizeof(float) * size);
  }
  if (bias) {
    std::fill(scratch.bias.begin(), scratch.bias.end(), 0.0f);
    std::memcpy(scratch.bias.data(), bias, sizeof(float) * count);
  }
  float inverse[kBlock];
  for (int64_t top = 0; top < query_count; top += kBlock) {
    const int64_t here = std::min(kBlock, query_count - top), tiles = (here + kTileRows - 1) / kTileRows;
    for (int64_t r = 0; r < here; r++)
      for (int64_t e = 0; e < size; e++)
        scratch.queries[r * size + e] = queries[(top + r) * query_step + e] * scale;
    for (int64_t t = 0; t < width; t += kPanel)
      for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = here * i / tiles, to = here * (i + 1) / tiles;
        tile_of<kTileVectors>(to - from, scratch.queries.data() + from * size, size, scratch.panels.data() + t * size, kPanel, size,
                   nullptr, scratch.scores.data() + from * width + t, width);
      }
    for (int64_t r = 0; r < here; r++)
      inverse[r] = soften(scratch.scores.data() + r * width, bias ? scratch.bias.data() : nullptr, count, width);
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t from = here * i / tiles, to = here * (i + 1) / tiles;
      const float* weights = scratch.scores.data() + from * width;
      float* target = out + (top + from) * out_step;
      int64_t e = 0;
      for (; e + kPanel <= size; e += kPanel)
        tile_of<kTileVectors>(to - from, weights, width, scratch.values.data() + e, size, count, inverse + from, target + e,
                   out_step);
      if (e < size)
        tile_of<1>(to - from, weights, width, scratch.values.data() + e, size, count, inverse + from, target + e,
                   out_step);
    }
  }
}

}  // namespace
}  // namespace sparsenmt

// queries (B, H, Q, E), keys and values (B, H, K, E), bias (B, K) or null; out (B, Q, H, E) contiguous.
// Strides in floats: of B, H, and Q or K. Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_attend_many(const float* queries, const int64_t* query_strides, const float* keys,
                                     const int64_t* key_strides, const float* values, const int64_t* value_strides,
                                     const float* bias, const int64_t* shape, float* out, int threads) {
  using namespace sparsenmt;
  const int64_t B = shape[0], H = shape[1], Q = shape[2], K = shape[3], E = shape[4];
  const auto head = [&](int64_t i, Scratch& scratch) {
    const int64_t b = i / H, h = i % H;
    attend(queries + b * query_strides[0] + h * query_strides[1], query_strides[2], Q,
           keys + b * key_strides[0] + h * key_strides[1], key_strides[2],
           values + b * value_strides[0] + h * value_strides[1], value_strides[2], bias ? bias + b * K : nullptr, K, E,
           out + (b * Q * H + h) * E, H * E, scratch);
  };
  const int64_t width = (K + kPanel - 1) / kPanel * kPanel;
  Memory memory;
  share_among(threads, [&](int64_t thread, int64_t team) {
    const auto scratch = memory.make<Scratch>(width, E);
    for (int64_t i = B * H * thread / team; scratch && i < B * H * (thread + 1) / team; i++) head(i, *scratch);
  });
  return memory.status();
}
