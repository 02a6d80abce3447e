// Dropout by given random bits, and the residual that is added to it, in one pass. Built and checked by gradients.py.

#include "elements.h"

namespace sparsenmt {
namespace {

constexpr int64_t kPart = 1 << 12;  // numbers that a thread takes at a time, a multiple of kLanes

typedef int16_t Draws __attribute__((vector_size(2 * kLanes)));

// kLanes numbers: x times 0 or the scale, plus `added` (or null). A product, not a choice: NaN stays NaN.
template <class Number>
void drop_vector(const Number* x, const Number* added, const int16_t* draws, int threshold, float scale, Number* out) {
  Draws drawn;
  std::memcpy(&drawn, draws, sizeof drawn);
  const Floats factors = __builtin_convertvector(drawn, Ints) < threshold ? Floats{} : all(scale);
  Floats kept = load_from(x) * factors;
  if (added) kept += load_from(added);
  store_to(out, kept);
}

// The last numbers, fewer than kLanes.
template <class Number>
void drop_rest(const Number* x, const Number* added, const int16_t* draws, int64_t count, int threshold, float scale,
               Number* out) {
  Number numbers[kLanes] = {}, more[kLanes] = {};
  int16_t bits[kLanes] = {};
  std::memcpy(numbers, x, sizeof *x * count);
  if (added) std::memcpy(more, added, sizeof *x * count);
  std::memcpy(bits, draws, sizeof *bits * count);
  drop_vector(numbers, added ? more : nullptr, bits, threshold, scale, numbers);
  std::memcpy(out, numbers, sizeof *x * count);
}

template <class Number>
void drop(const Number* x, const Number* added, const int16_t* draws, int64_t count, int threshold, float scale,
          Number* out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < (count + kPart - 1) / kPart; part++) {
    const int64_t end = count < (part + 1) * kPart ? count : (part + 1) * kPart;
    int64_t i = part * kPart;
    for (; i + kLanes <= end; i += kLanes)
      drop_vector(x + i, added ? added + i : nullptr, draws + i, threshold, scale, out + i);
    if (i < end) drop_rest(x + i, added ? added + i : nullptr, draws + i, end - i, threshold, scale, out + i);
  }
}

}  // namespace
}  // namespace sparsenmt

// x, added (or null), draws and out: `count` numbers each. A number becomes zero where its draw is below the threshold.
extern "C" void sparsenmt_drop(const void* x, const void* added, int bf16, const int16_t* draws, int64_t count,
                               int threshold, float scale, void* out, int threads) {
  using namespace sparsenmt;
  if (bf16)
    return drop(static_cast<const Bf16*>(x), static_cast<const Bf16*>(added), draws, count, threshold, scale,
                static_cast<Bf16*>(out), threads);
  drop(static_cast<const float*>(x), static_cast<const float*>(added), draws, count, threshold, scale,
       static_cast<float*>(out), threads);
}
