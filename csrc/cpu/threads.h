// The threads that a call runs on, the barrier that a team meets at, and the memory that a thread borrows.
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

using Task = std::function<void(int number)>;

// Runs task(0) .. task(count - 1) in IEEE arithmetic, once each, and returns when all are done; all of them together
// take a thread about `nanoseconds`. The calling thread and up to count - 1 helpers claim them in order: the calling
// thread runs those that no helper has begun, so that a helper that the system does not schedule is not waited for. The
// tasks must neither wait for each other nor throw.
//
// Where a task takes longer than a time slice, the helpers are OpenMP's threads if they are in use, and the end waits
// for all of them: after a parallel region of PyTorch's they spin for milliseconds, and would hold up other helpers for
// as long.
void run_claimed(int count, double nanoseconds, const Task& task);

// The same with all tasks at the same time, on as many threads, OpenMP's if they are in use: tasks may wait for each
// other. std::system_error where the system has no more threads.
void run_together(int count, const Task& task);

// Calls of both from several threads do not wait for each other. After fork the child starts helpers of its own.

// Threads, at most `threads`, of which each has at least `least_share` of work that takes about `nanoseconds`.
int threads_for(double nanoseconds, int threads);

// Nanoseconds of work that are worth a thread's wake-up: 100,000 unless the process has set others, as tests do.
double least_share();
void set_least_share(double nanoseconds);

// At least `bytes` of memory aligned to 4 KB, the calling thread's own, valid until its next call of this function.
// It grows to the largest request and is freed when the thread ends.
char* thread_scratch(size_t bytes);

}  // namespace elmo_fast::cpu
