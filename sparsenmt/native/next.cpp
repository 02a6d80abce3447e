// From a decoder's states to the best continuations of every sentence, on the CPU. Built and checked by kernels.py.
//
// The logits of a few rows are computed and read while they are in a core's cache; those of all rows never exist at once.
// With few rows each thread multiplies all of them with a part of the vocabulary, and threads share the logits.

#include "products.h"
#include "vocabulary.h"

#ifdef SPARSENMT_PRODUCTS
#ifdef _OPENMP  // declared here: clang's header may not be installed
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();
#endif

namespace sparsenmt {
namespace {

struct Team {
  int64_t thread, threads;

  int64_t first(int64_t all) const { return all * thread / threads; }
  int64_t last(int64_t all) const { return all * (thread + 1) / threads; }
};

// logits (block, V) and rounded: private to the thread.
void many_rows(const Continuations& continuations, const Matrix& matrix, const float* x, int64_t block, float* logits, char* rounded,
               const Team& team) {
  const int64_t rows = continuations.sentences * continuations.hypotheses, last = team.last(rows);
  for (int64_t top = team.first(rows); top < last; top += block) {
    const int64_t here = std::min(block, last - top);
    const Product product(matrix, x + top * matrix.inner, here, nullptr, false, logits, rounded);
    product.round(0, here);
    product.run({0, here, 0, matrix.count()});
    for (int64_t i = 0; i < here; i++) continuations.row(top + i, logits + i * continuations.size);
  }
}

// logits (N, V) and rounded: shared by the threads.
void few_rows(const Continuations& continuations, const Matrix& matrix, const float* x, float* logits, char* rounded,
              const Team& team) {
  const int64_t rows = continuations.sentences * continuations.hypotheses, count = matrix.count();
  const Product product(matrix, x, rows, nullptr, false, logits, rounded);
  product.round(team.first(rows), team.last(rows));
#pragma omp barrier
  product.run({0, rows, team.first(count), team.last(count)});
#pragma omp barrier
  for (int64_t n = team.first(rows); n < team.last(rows); n++) continuations.row(n, logits + n * continuations.size);
}

}  // namespace
}  // namespace sparsenmt
#endif

// x (B H, D), contiguous. block: rows whose logits a thread computes at a time; 0: few rows, which all threads share.
// logits: block V floats for each thread, or (B H, V); rounded: 4 groups + 8 bytes for each of these rows, aligned to 4.
extern "C" void sparsenmt_next(const void* continuations, const void* packed, const float* x, int64_t block, float* logits,
                               char* rounded, int threads) {
#ifdef SPARSENMT_PRODUCTS
  using namespace sparsenmt;
  const Continuations& found = *static_cast<const Continuations*>(continuations);
  const Matrix& matrix = *static_cast<const Matrix*>(packed);
  const int64_t bytes = block * (4 * matrix.groups() + 8);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#ifdef _OPENMP
    const Team team{omp_get_thread_num(), omp_get_num_threads()};
#else
    const Team team{0, 1};
#endif
    if (block)
      many_rows(found, matrix, x, block, logits + team.thread * block * found.size, rounded + team.thread * bytes, team);
    else
      few_rows(found, matrix, x, logits, rounded, team);
  }
  found.finish();
#else
  (void)continuations, (void)packed, (void)x, (void)block, (void)logits, (void)rounded, (void)threads;
#endif
}
