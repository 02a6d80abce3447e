// Memory that a kernel asks for. There may be none, and an exception must leave neither a parallel region nor a function
// that is called from C: it would end the process.

#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <utility>

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

  // The result of a function that is called from C.
  int status() const { return is_missing() ? 1 : 0; }

 private:
  std::atomic<bool> missing_{false};
};

// Of a kernel that another one calls within `Memory::run`.
inline void demand(int status) {
  if (status) throw std::bad_alloc();
}

}  // namespace sparsenmt
