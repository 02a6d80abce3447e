// From a decoder's states to the best continuations of every sentence among the tokens of its own list (a vocabulary
// shortlist), on the CPU. Built and checked by kernels.py.
//
// A list has a small part of the vocabulary, and every sentence another one: so each row of states is multiplied with the
// rows of the table that its list names, where they stand, instead of all rows of states with the lists of all.

#include <vector>

#include "memory.h"
#include "products.h"
#include "vocabulary.h"

namespace sparsenmt {
namespace {

// The output table, row by row; the same as in packing.py. A row has a whole number of vectors.
struct Table {
  const void* rows;
  const float* scale;   // (tokens), of int8
  const int32_t* sum;   // (tokens), of int8
  const float* bias;    // (tokens), or null
  int64_t inner, kind;

  int64_t bytes() const { return inner * (kind == kFp32 ? 4 : kind == kBf16 ? 2 : 1); }
  const char* row(int64_t token) const { return static_cast<const char*>(rows) + token * bytes(); }
};

constexpr int64_t kLine = 64;     // bytes of a line of the cache
constexpr int64_t kTogether = 4;  // rows of the table that are multiplied with a vector of states at a time
constexpr int64_t kFetched = 16;  // rows ahead that are prefetched

// A row of x in the kind of the table's numbers. In int8 a number is scale (u - zero) of its level u.
struct State {
  const char* numbers;
  float scale, zero;  // of int8
};

// The type of products: whole numbers of int8.
template <Kind kind>
struct Sums {
  using Vector = Floats;
};
template <>
struct Sums<kInt8> {
  using Vector = Ints;
};

// The products of kLanes rows of the table with a state, one in each lane.
template <Kind kind>
typename Sums<kind>::Vector products(const Table& table, const State& state, const char* const* rows) {
  using Vector = typename Sums<kind>::Vector;
  const int64_t bytes = table.bytes();
  Vector found[kLanes];
#pragma GCC unroll 4
  for (int64_t t = 0; t < kLanes; t += kTogether) {
    Floats sum[kTogether];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kTogether; i++) sum[i] = Floats{};
    for (int64_t at = 0; at < bytes; at += kBytes) {
      const Floats x = load(reinterpret_cast<const float*>(state.numbers + at));
#pragma GCC unroll 4
      for (int64_t i = 0; i < kTogether; i++)
        add_products<kind>(sum[i], x, reinterpret_cast<const float*>(rows[t + i] + at));
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < kTogether; i++) found[t + i] = (Vector)sum[i];
  }
  return sums(found);
}

// The logits (hypotheses, width) of a list's `count` tokens for the hypotheses of a sentence.
template <Kind kind>
void listed_logits(const Table& table, const int32_t* tokens, int64_t count, const State* states, int64_t hypotheses, float* logits,
                   int64_t width) {
  for (int64_t first = 0; first < count; first += kLanes) {
    const char* rows[kLanes];
    int32_t here[kLanes];
    for (int64_t i = 0; i < kLanes; i++) {
      here[i] = tokens[std::min(first + i, count - 1)];
      rows[i] = table.row(here[i]);
      if (first + i + kFetched < count)
        for (int64_t at = 0; at < table.bytes(); at += kLine) __builtin_prefetch(table.row(tokens[first + i + kFetched]) + at);
    }
    float bias[kLanes] = {};
    Columns columns{};
    for (int64_t i = 0; i < kLanes; i++) {
      if (table.bias) bias[i] = table.bias[here[i]];
      if constexpr (kind == kInt8) columns.scale[i] = table.scale[here[i]], columns.sum[i] = static_cast<float>(table.sum[here[i]]);
    }
    for (int64_t j = 0; j < hypotheses; j++) {
      const auto found = products<kind>(table, states[j], rows);
      Floats value;
      if constexpr (kind == kInt8)
        value = rescaled(found, columns, states[j].scale, states[j].zero, load(bias));
      else
        value = found + load(bias);
      store_part(logits + j * width + first, count - first, value);
    }
  }
}

// Round a row of x; `scratch`, of a row's bytes, holds the result, except of fp32.
State round_state(const Table& table, const float* x, char* scratch) {
  State state{scratch, 0.0f, 0.0f};
  if (table.kind == kFp32) state.numbers = reinterpret_cast<const char*>(x);
#ifdef SPARSENMT_BF16
  if (table.kind == kBf16) round_bf16(x, table.inner, table.inner, reinterpret_cast<uint16_t*>(scratch));
#endif
#ifdef SPARSENMT_INT8
  if (table.kind == kInt8)
    round_int8(x, table.inner, table.inner, reinterpret_cast<uint8_t*>(scratch), &state.scale, &state.zero);
#endif
  return state;
}

// Sentence b. scratch, logits: memory of the thread, made larger where needed.
void listed_sentence(const Continuations& found, const Table& table, const TokenLists& lists, const float* x, int64_t b,
                     std::vector<char>& scratch, std::vector<float>& logits) {
  const int64_t J = found.hypotheses, count = lists.count[b], bytes = table.bytes();
  const int32_t* tokens = lists.tokens + lists.first[b];
  std::vector<State> states;
  scratch.resize(J * bytes);
  if (static_cast<int64_t>(logits.size()) < J * count) logits.resize(J * count);
  for (int64_t j = 0; j < J; j++)
    states.push_back(round_state(table, x + (b * J + j) * table.inner, scratch.data() + j * bytes));
  switch (table.kind) {
#ifdef SPARSENMT_BF16
    case kBf16: listed_logits<kBf16>(table, tokens, count, states.data(), J, logits.data(), count); break;
#endif
#ifdef SPARSENMT_INT8
    case kInt8: listed_logits<kInt8>(table, tokens, count, states.data(), J, logits.data(), count); break;
#endif
    default: listed_logits<kFp32>(table, tokens, count, states.data(), J, logits.data(), count);
  }
  for (int64_t j = 0; j < J; j++) found.row(b * J + j, logits.data() + j * count, count);
}

}  // namespace
}  // namespace sparsenmt

// continuations: `Continuations`, whose tokens are those of the vocabulary; table: `Table`; lists: `TokenLists`; x (B J, D),
// contiguous. Returns 0, or 1 without enough memory.
extern "C" int sparsenmt_next_listed(const void* continuations, const void* table, const void* lists, const float* x,
                                     int threads) {
  using namespace sparsenmt;
  const Continuations& found = *static_cast<const Continuations*>(continuations);
  const TokenLists& own = *static_cast<const TokenLists*>(lists);
  Memory memory;
  share_among(threads, [&](int64_t thread, int64_t team) {
    std::vector<char> scratch;
    std::vector<float> logits;
    for (int64_t b = found.sentences * thread / team; b < found.sentences * (thread + 1) / team; b++)
      memory.run([&] { listed_sentence(found, *static_cast<const Table*>(table), own, x, b, scratch, logits); });
  });
  if (memory.is_missing()) return memory.status();
  found.finish();
  for (int64_t b = 0; b < found.sentences; b++)
    for (int64_t i = b * found.width; i < (b + 1) * found.width; i++)
      if (found.totals[i] > kNever) found.tokens[i] = own.tokens[own.first[b] + found.tokens[i]];
  return 0;
}
