// Dropout by a hash of places, and the residual that is added to it, in one pass. Built and checked by gradients.py.

#include "elements.h"

namespace sparsenmt {
namespace {

constexpr int64_t kPart = 1 << 12;  // numbers that a thread takes at a time, a multiple of kLanes

// 16 random bits for each of kLanes places, as model/dropout.py: the hash lowbias32 (Wellons 2018) with a key.
inline Ints draw(int64_t place, uint64_t key) {
  Bits x = {};
  for (int lane = 0; lane < static_cast<int>(kLanes); lane++) x[lane] = static_cast<uint32_t>(place) + lane;
  x = x * 0x9e3779b1u ^ static_cast<uint32_t>(key);
  x = (x ^ x >> 16) * 0x7feb352du + static_cast<uint32_t>(key >> 32);
  return __builtin_convertvector((x ^ x >> 15) * 0x846ca68bu >> 16, Ints);
}

template <class Number>
struct Dropout {
  const Number *x, *added;  // added: or null
  uint64_t key;
  int dropped;
  float scale;
  Number* out;

  // kLanes numbers: x times 0 or the scale, plus `added`. A product, not a choice: NaN stays NaN.
  void take(const Number* from, const Number* more, int64_t place, Number* to) const {
    Floats kept = load_from(from) * (draw(place, key) < dropped ? Floats{} : all(scale));
    if (more) kept += load_from(more);
    store_to(to, kept);
  }

  void take(int64_t i, int64_t end) const {
    for (; i + kLanes <= end; i += kLanes) take(x + i, added ? added + i : nullptr, i, out + i);
    if (i == end) return;
    Number numbers[kLanes] = {}, more[kLanes] = {};
    std::memcpy(numbers, x + i, sizeof *x * (end - i));
    if (added) std::memcpy(more, added + i, sizeof *x * (end - i));
    take(numbers, added ? more : nullptr, i, numbers);
    std::memcpy(out + i, numbers, sizeof *x * (end - i));
  }
};

template <class Number>
void drop(const void* x, const void* added, uint64_t key, int64_t count, int dropped, float scale, void* out,
          int threads) {
  const Dropout<Number> dropout{static_cast<const Number*>(x), static_cast<const Number*>(added), key, dropped, scale,
                                static_cast<Number*>(out)};
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < (count + kPart - 1) / kPart; part++)
    dropout.take(part * kPart, count < (part + 1) * kPart ? count : (part + 1) * kPart);
}

}  // namespace
}  // namespace sparsenmt

// x, added (or null) and out: `count` numbers each. A number becomes zero where its 16 random bits are below `dropped`.
extern "C" void sparsenmt_drop(const void* x, const void* added, int bf16, uint64_t key, int64_t count, int dropped,
                               float scale, void* out, int threads) {
  using namespace sparsenmt;
  (bf16 ? drop<Bf16> : drop<float>)(x, added, key, count, dropped, scale, out, threads);
}
