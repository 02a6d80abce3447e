// Dropout by a hash of places, and the residual that is added to it, in one pass. Built and checked by gradients.py.

#include "elements.h"

namespace sparsenmt {
namespace {

constexpr int64_t kPart = 1 << 12, kStep = 2 * kLanes;  // numbers that a thread takes at a time, and that a hash serves

typedef int16_t Draws __attribute__((vector_size(2 * kLanes)));

// The 16 random bits of kStep numbers, as model/dropout.py: halves of words, the hash lowbias32 (Wellons 2018) with a key.
inline void draw(int64_t word, uint64_t key, Draws (&drawn)[2]) {
  Bits x = {};
  for (int lane = 0; lane < static_cast<int>(kLanes); lane++) x[lane] = static_cast<uint32_t>(word) + lane;
  x = x * 0x9e3779b1u ^ static_cast<uint32_t>(key);
  x = (x ^ x >> 16) * 0x7feb352du + static_cast<uint32_t>(key >> 32);
  x = (x ^ x >> 15) * 0x846ca68bu;
  x ^= x >> 16;
  std::memcpy(drawn, &x, sizeof x);
}

template <class Number>
void drop(const Number* x, const Number* added, uint64_t key, int64_t count, int threshold, float scale, Number* out,
          int threads) {
  // kStep numbers: x times 0 or the scale, plus `added` (or null). A product, not a choice: NaN stays NaN.
  const auto take = [=](const Number* from, const Number* more, int64_t place, Number* to) {
    Draws drawn[2];
    draw(place / 2, key, drawn);
    for (int64_t at = 0; at < kStep; at += kLanes) {
      Floats kept = load_from(from + at);
      kept *= __builtin_convertvector(drawn[at / kLanes], Ints) < threshold ? Floats{} : all(scale);
      if (more) kept += load_from(more + at);
      store_to(to + at, kept);
    }
  };
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < (count + kPart - 1) / kPart; part++) {
    const int64_t end = count < (part + 1) * kPart ? count : (part + 1) * kPart;
    int64_t i = part * kPart;
    for (; i + kStep <= end; i += kStep) take(x + i, added ? added + i : nullptr, i, out + i);
    if (i == end) continue;
    Number numbers[kStep] = {}, more[kStep] = {};
    std::memcpy(numbers, x + i, sizeof *x * (end - i));
    if (added) std::memcpy(more, added + i, sizeof *x * (end - i));
    take(numbers, added ? more : nullptr, i, numbers);
    std::memcpy(out + i, numbers, sizeof *x * (end - i));
  }
}

}  // namespace
}  // namespace sparsenmt

// x, added (or null) and out: `count` numbers each. A number becomes zero where its 16 random bits are below the threshold.
extern "C" void sparsenmt_drop(const void* x, const void* added, int bf16, uint64_t key, int64_t count, int threshold,
                               float scale, void* out, int threads) {
  using namespace sparsenmt;
  if (bf16)
    return drop(static_cast<const Bf16*>(x), static_cast<const Bf16*>(added), key, count, threshold, scale,
                static_cast<Bf16*>(out), threads);
  drop(static_cast<const float*>(x), static_cast<const float*>(added), key, count, threshold, scale,
       static_cast<float*>(out), threads);
}
