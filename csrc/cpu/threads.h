// The threads that a call runs on, the barrier they meet at, and the memory that each of them borrows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace elmo_fast::cpu {

// Spins briefly, then yields, then sleeps: an oversubscribed machine slows down but does not collapse.
// Defined out of line: the translation units of different instruction sets share it.
class Barrier {
 public:
  explicit Barrier(int size) : size_(size) {}
  void wait();

 private:
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  const int size_;
};

// Runs task(0) .. task(count - 1) at the same time in IEEE arithmetic, 0 on the calling thread, and
// returns when all are done. The tasks may wait for each other; they must not throw. Calls from several threads do not
// wait for each other: each takes idle workers or starts new ones. After fork the child starts its own.
void run_together(int count, const std::function<void(int rank)>& task);

// Has `run_together` use the threads of GNU's OpenMP runtime in this process from now on, PyTorch's first: two sets of
// threads on the same cores slow each other down, as OpenMP's keep spinning for milliseconds after their last parallel
// region. It still takes its own after a fork, inside a parallel region, and where OpenMP gives fewer than asked for.
// False, and nothing changes, when no such library is loaded.
bool use_openmp_threads();

// Whether OpenMP's threads are in use: in this process, not in one it was forked to.
bool threads_are_openmp();

// At least `bytes` of memory aligned to 4 KB, the calling thread's own, valid until its next call of this function.
// It grows to the largest request and is freed when the thread ends.
char* thread_scratch(size_t bytes);

}  // namespace elmo_fast::cpu
