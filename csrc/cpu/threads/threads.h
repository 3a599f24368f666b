// The threads that run a call, the barrier of a team of threads, and scratch memory of a thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

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

using Task = std::function<void(int number)>;

// Runs task(0) .. task(count - 1) in IEEE arithmetic, once each, and returns when all are done. All of them would take
// a single thread about `nanoseconds`. The calling thread and up to count - 1 helpers claim tasks in order, so that the
// call does not wait for a helper that the system has not scheduled. Tasks must neither wait for each other nor throw.
//
// If a task takes longer than a time slice, the helpers are OpenMP's threads if those are in use, and the call waits
// for all of them: after a parallel region of PyTorch, OpenMP's threads spin for milliseconds and would delay other
// helpers for as long.
void run_claimed(int count, double nanoseconds, const Task& task);

// Runs all tasks concurrently, on a thread each, OpenMP's if they are in use: tasks may wait for each other. Throws
// std::system_error if the system has no more threads.
void run_together(int count, const Task& task);

// Concurrent calls of both functions do not wait for each other. A forked child starts its own helpers.

// The number of threads, at most `threads`, for about `nanoseconds` of work: each gets at least `least_share`.
int threads_for(double nanoseconds, int threads);

// The least work that is worth waking a thread, in nanoseconds: 100,000, unless set otherwise, as in tests.
double least_share();
void set_least_share(double nanoseconds);

// Uninitialized memory.
struct FreeAligned {
  size_t alignment;
  void operator()(char* memory) const;
};
using AlignedMemory = std::unique_ptr<char, FreeAligned>;
AlignedMemory aligned_memory(size_t bytes, size_t alignment);

// At least `bytes` of the calling thread's memory, aligned to 4 KB, valid until its next call of this function. It
// grows to the largest request and is freed when the thread ends.
char* thread_scratch(size_t bytes);

}  // namespace elmo_fast::cpu
