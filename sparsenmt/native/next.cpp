// From a decoder's states to the best continuations of every sentence, on the CPU. Built and checked by kernels.py.
//
// The logits of a few rows are made and read while they are in a core's cache; those of all rows never exist. With few
// rows each thread multiplies all of them with a part of the vocabulary, and they share what comes out.

#include "products.h"
#include "vocabulary.h"

#ifdef SPARSENMT_PRODUCTS
#ifdef _OPENMP
#include <omp.h>
#endif

namespace sparsenmt {
namespace {

struct Crew {
  int64_t thread, threads;

  int64_t first(int64_t all) const { return all * thread / threads; }
  int64_t last(int64_t all) const { return all * (thread + 1) / threads; }
};

// logits (block, V) and rounded: of this thread alone.
void many_rows(const Choice& choice, const Matrix& matrix, const float* x, int64_t block, float* logits, char* rounded,
               const Crew& crew) {
  const int64_t rows = choice.sentences * choice.hypotheses, last = crew.last(rows);
  for (int64_t top = crew.first(rows); top < last; top += block) {
    const int64_t here = std::min(block, last - top);
    const Product product(matrix, x + top * matrix.inner, here, nullptr, false, logits, rounded);
    product.round(0, here);
    product.run({0, here, 0, matrix.count()});
    for (int64_t i = 0; i < here; i++) choice.row(top + i, logits + i * choice.size);
  }
}

// logits (N, V) and rounded: of all threads.
void few_rows(const Choice& choice, const Matrix& matrix, const float* x, float* logits, char* rounded,
              const Crew& crew) {
  const int64_t rows = choice.sentences * choice.hypotheses, count = matrix.count();
  const Product product(matrix, x, rows, nullptr, false, logits, rounded);
  product.round(crew.first(rows), crew.last(rows));
#pragma omp barrier
  product.run({0, rows, crew.first(count), crew.last(count)});
#pragma omp barrier
  for (int64_t n = crew.first(rows); n < crew.last(rows); n++) choice.row(n, logits + n * choice.size);
}

}  // namespace
}  // namespace sparsenmt
#endif

// x (B H, D), contiguous. block: rows that a thread has the logits of at a time; 0: there are few rows, for all threads.
// logits: room for block V numbers a thread, or (B H, V); rounded: 4 groups + 8 bytes for each of these rows, aligned to 4.
extern "C" void sparsenmt_next(const void* choice, const void* packed, const float* x, int64_t block, float* logits,
                               char* rounded, int threads) {
#ifdef SPARSENMT_PRODUCTS
  using namespace sparsenmt;
  const Choice& given = *static_cast<const Choice*>(choice);
  const Matrix& matrix = *static_cast<const Matrix*>(packed);
  const int64_t bytes = block * (4 * matrix.groups() + 8);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#ifdef _OPENMP
    const Crew crew{omp_get_thread_num(), omp_get_num_threads()};
#else
    const Crew crew{0, 1};
#endif
    if (block)
      many_rows(given, matrix, x, block, logits + crew.thread * block * given.size, rounded + crew.thread * bytes, crew);
    else
      few_rows(given, matrix, x, logits, rounded, crew);
  }
  given.finish();
#else
  (void)choice, (void)packed, (void)x, (void)block, (void)logits, (void)rounded, (void)threads;
#endif
}
