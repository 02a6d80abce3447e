// x W' + b with packed weights, for x and results in fp32. Built and checked by kernels.py.

#include "products.h"

// kind: numbered as in packing.py
extern "C" int sparsenmt_has_products(int64_t kind) {
#ifdef SPARSENMT_BF16
  if (kind == sparsenmt::kBf16) return 1;
#endif
#ifdef SPARSENMT_INT8
  if (kind == sparsenmt::kInt8) return 1;
#endif
  return kind == sparsenmt::kFp32;
}

// The largest sum of two neighbouring int8 weights of the same sign; 0: any.
extern "C" int sparsenmt_int8_most_of_pair() { return sparsenmt::kMostOfPair; }

// x (rows, inner) contiguous -> out (rows, outer) = relu(x W' + bias) + added. scratch: rows (4 groups + 8) bytes, aligned
// to 4; may be null for fp32.
extern "C" void sparsenmt_product(const void* packed, const float* x, int64_t rows, const float* added, int relu,
                                  float* out, void* scratch, int threads) {
  using namespace sparsenmt;
  const Matrix& matrix = *static_cast<const Matrix*>(packed);
  const Product product(matrix, x, rows, added, relu != 0, out, scratch);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(static)
    for (int64_t m = 0; m < rows; m++) product.round(m, m + 1);
#pragma omp for schedule(static)
    for (int64_t part = 0; part < threads; part++)
      product.run({0, rows, matrix.count() * part / threads, matrix.count() * (part + 1) / threads});
  }
}
