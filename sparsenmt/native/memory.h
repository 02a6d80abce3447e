// Memory that the threads of a call ask for, and their numbers. There may be no memory, and an exception must leave neither
// a parallel region nor a function that is called from C: it would end the process.

#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#ifdef _OPENMP  // declared here: GCC's header may not be installed
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();
#else
inline int omp_get_thread_num() { return 0; }
inline int omp_get_num_threads() { return 1; }
#endif

namespace sparsenmt {

// The allocations of one call, by all of its threads.
class Memory {
 public:
  // Do work that may allocate; nothing once memory was missing.
  template <class Work>
  void run(const Work& work) {
    if (is_missing()) return;
    try {
      work();
    } catch (const std::exception&) {  // also of a size that no vector can have
      missing_ = true;
    }
  }

  // Make an object; null if there is no memory for it.
  template <class Made, class... Given>
  std::unique_ptr<Made> make(Given&&... given) {
    std::unique_ptr<Made> made;
    run([&] { made.reset(new Made(std::forward<Given>(given)...)); });
    return made;
  }

  bool is_missing() const { return missing_.load(std::memory_order_relaxed); }

  // The result of a function that is called from C: 1 without enough memory, otherwise 0.
  int status() const { return is_missing() ? 1 : 0; }

 private:
  std::atomic<bool> missing_{false};
};

// Call share(thread, threads) in each of up to `threads` threads; one thread opens no region, nor leaves another one's.
template <class Share>
void share_among(int threads, const Share& share) {
  if (threads <= 1) return share(0, 1);
#pragma omp parallel num_threads(threads)
  share(omp_get_thread_num(), omp_get_num_threads());
}

// Throw unless the status of a kernel, called within `Memory::run` of another one, is 0.
inline void demand(int status) {
  if (status) throw std::bad_alloc();
}

}  // namespace sparsenmt
