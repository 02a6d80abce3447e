// The calls into LLVM's OpenMP library that clang makes, on GNU's, which PyTorch brings along on Linux: without them a
// library that clang compiled would not load, or would run on one thread. Compiled into every library by build.py.
//
// A process that has LLVM's own, as some builds of PyTorch do, uses that: the linker prefers symbols of the process. Only
// what the kernels need is here: parallel regions, loops with schedule(static) over 32 or 64 bits, and barriers.

#if defined(__clang__) && defined(_OPENMP) && defined(__linux__)

#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <utility>

extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
__attribute__((weak)) void GOMP_barrier();
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}

namespace {

constexpr int kMost = 32;         // shared variables of a parallel region
constexpr int32_t kStatic = 34;   // the schedule: equal parts, one for each thread
thread_local int wanted = 0;      // threads of the next parallel region; 0: as many as there are

struct Region {
  void* function;
  int count;
  void* shared[kMost];
};

template <size_t... kIndex>
void call(const Region& region, int32_t* thread, std::index_sequence<kIndex...>) {
  int32_t bound = 0;
  using Function = void (*)(int32_t*, int32_t*, decltype((void)kIndex, static_cast<void*>(nullptr))...);
  reinterpret_cast<Function>(region.function)(thread, &bound, region.shared[kIndex]...);
}

template <int kCount>
void dispatch(const Region& region, int32_t* thread) {
  if (region.count == kCount) {
    call(region, thread, std::make_index_sequence<kCount>{});
  } else if constexpr (kCount < kMost) {
    dispatch<kCount + 1>(region, thread);
  } else {
    std::abort();
  }
}

void run(void* given) {
  int32_t thread = omp_get_thread_num();
  dispatch<0>(*static_cast<const Region*>(given), &thread);
}

// The part of first..last, in steps of `step`, that belongs to this thread.
template <typename T, typename Signed>
void share(int32_t schedule, int32_t* is_last, T* first, T* last, Signed* stride, Signed step) {
  if (schedule != kStatic) std::abort();
  const int64_t count = step > 0 ? (int64_t(*last) - int64_t(*first)) / step + 1 : (int64_t(*first) - int64_t(*last)) / -step + 1;
  const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  const int64_t each = count > 0 ? count / threads : 0, more = count > 0 ? count % threads : 0;
  const int64_t begin = thread * each + (thread < more ? thread : more), size = each + (thread < more);
  *stride = Signed(count) * step;
  *is_last = size > 0 && begin + size == count;
  *last = T(*first + (begin + size - 1) * step);
  *first = T(*first + begin * step);
}

}  // namespace

extern "C" {

int32_t __kmpc_global_thread_num(void*) { return omp_get_thread_num(); }
void __kmpc_push_num_threads(void*, int32_t, int32_t threads) { wanted = threads; }
void __kmpc_serialized_parallel(void*, int32_t) { wanted = 0; }
void __kmpc_end_serialized_parallel(void*, int32_t) {}
void __kmpc_barrier(void*, int32_t) { GOMP_barrier(); }
void __kmpc_for_static_fini(void*, int32_t) {}

void __kmpc_fork_call(void*, int32_t count, void* function, ...) {
  if (count > kMost) std::abort();
  Region region{function, count, {}};
  va_list rest;
  va_start(rest, function);
  for (int i = 0; i < count; ++i) region.shared[i] = va_arg(rest, void*);
  va_end(rest);
  const unsigned threads = unsigned(wanted);
  wanted = 0;
  GOMP_parallel(run, &region, threads, 0);
}

void __kmpc_for_static_init_4(void*, int32_t, int32_t schedule, int32_t* is_last, int32_t* first, int32_t* last,
                              int32_t* stride, int32_t step, int32_t) {
  share(schedule, is_last, first, last, stride, step);
}
void __kmpc_for_static_init_8(void*, int32_t, int32_t schedule, int32_t* is_last, int64_t* first, int64_t* last,
                              int64_t* stride, int64_t step, int64_t) {
  share(schedule, is_last, first, last, stride, step);
}
}

#endif
