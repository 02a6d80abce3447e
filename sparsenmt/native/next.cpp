// From a decoder's states to the best continuations of every sentence, on the CPU. Built and checked by kernels.py.
//
// Each thread multiplies all rows with some parts of the vocabulary, and reads the logits of a part while they are in its
// core's cache: the output matrix is read once, and those of all tokens never exist at once. Then rows are put together
// from their parts, in the order of the tokens, so that nothing depends on the number of threads.

#include <memory>
#include <vector>

#include "memory.h"
#include "products.h"
#include "vocabulary.h"

namespace sparsenmt {
namespace {

constexpr int64_t kRows = 128;  // rows whose logits of a part are in the cache together
static_assert(kPart % kColumns == 0, "parts are of whole panels");

// The search of a call: x (N, D), `threads` threads at most.
class Search {
 public:
  Search(const Continuations& continuations, const Matrix& matrix, const float* x, int64_t threads)
      : continuations_(continuations), matrix_(matrix), x_(x),
        rows_(continuations.sentences * continuations.hypotheses), parts_((continuations.size + kPart - 1) / kPart),
        rounded_(new char[rows_ * row_bytes()]), normalisers_(rows_ * parts_),
        values_(threads * rows_ * continuations.width), where_(threads * rows_ * continuations.width) {}

  // The work of a thread. It ends with all rows complete but `Continuations::finish`; or unfinished, without memory.
  void run(int64_t thread, int64_t threads, Memory& memory) {
    const int64_t most = std::min(kRows, rows_);
    std::unique_ptr<float[]> logits;
    std::vector<TopList> best;
    memory.run([&] {
      logits.reset(new float[most * kPart]);
      best.reserve(most);
    });
    const auto share = [=](int64_t all, int64_t i) { return all * i / threads; };
    for (int64_t top = 0; top < rows_; top += kRows) {
      const int64_t here = std::min(kRows, rows_ - top);
      product(top, here, nullptr).round(share(here, thread), share(here, thread + 1));
    }
#pragma omp barrier
    if (memory.is_missing()) return;  // all threads: none allocates any more
    for (int64_t top = 0; top < rows_; top += kRows)
      read(top, std::min(kRows, rows_ - top), {share(parts_, thread), share(parts_, thread + 1)}, thread, logits.get(), best);
#pragma omp barrier
    for (int64_t n = share(rows_, thread); n < share(rows_, thread + 1); n++) put_together(n, threads);
  }

 private:
  int64_t row_bytes() const { return 4 * matrix_.groups() + 8; }

  // The product of `here` rows from `top` on, to logits (here, kPart).
  Product product(int64_t top, int64_t here, float* logits) const {
    return Product(matrix_, x_ + top * matrix_.inner, here, nullptr, false, logits, rounded_.get() + top * row_bytes());
  }

  // The best tokens of row n in the parts of a thread.
  TopList list(int64_t n, int64_t thread) {
    const int64_t at = (thread * rows_ + n) * continuations_.width;
    return {continuations_.width, values_.data() + at, where_.data() + at, kNever};
  }

  // Parts of the vocabulary, the last one excluded.
  struct Parts {
    int64_t first, last;
  };

  // Find the best tokens, and the normalisers, of `here` rows from `top` on in some parts.
  void read(int64_t top, int64_t here, const Parts& parts, int64_t thread, float* logits, std::vector<TopList>& best) {
    const Product multiplied = product(top, here, logits);
    best.clear();
    for (int64_t i = 0; i < here; i++) {
      best.push_back(list(top + i, thread));
      best.back().clear();
    }
    for (int64_t part = parts.first; part < parts.last; part++) {
      const int64_t token = part * kPart, count = std::min(kPart, continuations_.size - token);
      multiplied.run({0, here, token / kColumns, (token + count + kColumns - 1) / kColumns, kPart});
      for (int64_t i = 0; i < here; i++)
        normalisers_[(top + i) * parts_ + part] = continuations_.part(top + i, logits + i * kPart, token, count, best[i]);
    }
  }

  // Merge what all threads have found of row n.
  void put_together(int64_t n, int64_t threads) {
    const int64_t width = continuations_.width;
    TopList best{width, continuations_.values + n * width, continuations_.indices + n * width, kNever};
    best.clear();
    for (int64_t thread = 0; thread < threads; thread++) best.merge(list(n, thread));
    Normaliser all_tokens;
    for (int64_t part = 0; part < parts_; part++) all_tokens.add(normalisers_[n * parts_ + part]);
    continuations_.end(n, all_tokens);
  }

  const Continuations& continuations_;
  const Matrix& matrix_;
  const float* x_;
  const int64_t rows_, parts_;
  const std::unique_ptr<char[]> rounded_;  // scratch of products
  std::vector<Normaliser> normalisers_;  // (N, parts)
  std::vector<float> values_;            // (threads, N, width)
  std::vector<int64_t> where_;           // the same: tokens
};

}  // namespace
}  // namespace sparsenmt

// continuations: `Continuations`, packed: `Matrix`, x (B H, D), contiguous. Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_next(const void* continuations, const void* packed, const float* x, int threads) {
  using namespace sparsenmt;
  const Continuations& found = *static_cast<const Continuations*>(continuations);
  Memory memory;
  const auto search = memory.make<Search>(found, *static_cast<const Matrix*>(packed), x, threads);
  if (!search) return memory.status();
#pragma omp parallel num_threads(threads) if (threads > 1)
  search->run(omp_get_thread_num(), omp_get_num_threads(), memory);
  if (!memory.is_missing()) found.finish();
  return memory.status();
}
