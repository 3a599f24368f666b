#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "openmp.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace elmo_fast::cpu {
namespace {

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void back_off(int turn) {
  if (turn < 512) return pause();
  if (turn < 768) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// Runs a task in IEEE arithmetic: no flushing of denormals, rounding to nearest.
void run_task(const Task& task, int rank) {
#if defined(__x86_64__) || defined(__i386__)
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(0x1f80);
  task(rank);
  _mm_setcsr(saved);
#elif defined(__aarch64__)
  uint64_t saved;
  asm volatile("mrs %0, fpcr" : "=r"(saved));
  asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  task(rank);
  asm volatile("msr fpcr, %0" ::"r"(saved));
#else
  task(rank);
#endif
}

// Tasks that threads claim. A thread that finds all claimed does not use `task`, which may be destroyed.
class Job {
 public:
  Job(int count, const Task& task) : count_(count), task_(task) {}

  bool is_claimed() const { return next_.load(std::memory_order_relaxed) >= count_; }

  // Claims tasks and runs them until none is left.
  void run() {
    for (int number; !is_claimed() && (number = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
      run_task(task_, number);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void wait() const {
    for (int turn = 0; done_.load(std::memory_order_acquire) != count_; ++turn) back_off(turn);
  }

 private:
  const int count_;
  const Task& task_;
  std::atomic<int> next_{0}, done_{0};
};

// The helpers of a process, which run the oldest job that has an unclaimed task. Never destroyed: they live as long as
// the process.
class Pool {
 public:
  const pid_t owner = getpid();

  // Runs a job with up to `helpers` helpers, with all of them if its tasks run `together`.
  void run(const std::shared_ptr<Job>& job, int helpers, bool together) {
    open(job, helpers, together);
    job->run();
    close(job, together ? helpers : 0);
    job->wait();
  }

 private:
  static constexpr auto spin_time = std::chrono::microseconds(100);  // of a helper before it sleeps

  void open(const std::shared_ptr<Job>& job, int helpers, bool together) {
    std::unique_lock<std::mutex> lock(mutex_);
    most_ = std::max(most_, helpers);
    try {
      const int wanted = std::max(most_, together_ + (together ? helpers : 0));
      for (; helpers_ < wanted; ++helpers_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      if (together) throw;  // claimed tasks can run on fewer threads
    }
    if (together) together_ += helpers;
    jobs_.push_back(job);
    pending_.store(true, std::memory_order_relaxed);
    const int asleep = std::min(helpers, sleeping_);
    lock.unlock();
    for (int k = 0; k < asleep; ++k) wake_.notify_one();
  }

  void close(const std::shared_ptr<Job>& job, int together) {
    const std::lock_guard<std::mutex> lock(mutex_);
    together_ -= together;
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
    pending_.store(!jobs_.empty(), std::memory_order_relaxed);
  }

  void serve() {
    for (;;) {
      const auto end = std::chrono::steady_clock::now() + spin_time;
      while (!pending_.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < end) pause();
      next_job()->run();
    }
  }

  std::shared_ptr<Job> next_job() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      while (!jobs_.empty() && jobs_.front()->is_claimed()) jobs_.pop_front();
      pending_.store(!jobs_.empty(), std::memory_order_relaxed);
      if (!jobs_.empty()) return jobs_.front();
      ++sleeping_;
      wake_.wait(lock);
      --sleeping_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::atomic<bool> pending_{false};  // whether `jobs_` is not empty
  int helpers_ = 0, sleeping_ = 0;
  int most_ = 0;      // most helpers of a job so far
  int together_ = 0;  // helpers of the running jobs whose tasks run together
};

std::atomic<Pool*> current_pool{nullptr};
std::atomic<double> least_share_of_process{100e3};  // a sleeping helper wakes up in 10 to 60 us

// In a forked child the parent's threads are gone and its locks may be held: start over.
Pool& pool() {
  Pool* found = current_pool.load(std::memory_order_acquire);
  while (found == nullptr || found->owner != getpid()) {
    Pool* started = new Pool;
    if (current_pool.compare_exchange_strong(found, started)) return *started;
    delete started;
  }
  return *found;
}

void run(const std::shared_ptr<Job>& job, int count, bool together, bool on_openmp) {
  if (on_openmp && run_on_openmp(count, [&](int) { job->run(); })) return;
  pool().run(job, count - 1, together);
}

}  // namespace

void Barrier::wait() {
  if (size_ == 1) return;
  const uint32_t round = round_.load(std::memory_order_relaxed);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    waiting_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int turn = 0; round_.load(std::memory_order_acquire) == round; ++turn) back_off(turn);
}

void run_claimed(int count, double nanoseconds, const Task& task) {
  if (count == 1) return run_task(task, 0);
  run(std::make_shared<Job>(count, task), count, false, nanoseconds / count >= 40 * least_share());
}

void run_together(int count, const Task& task) {
  if (count == 1) return run_task(task, 0);
  run(std::make_shared<Job>(count, task), count, true, true);
}

int threads_for(double nanoseconds, int threads) {
  const double least = least_share();
  return least > 0 ? std::max(1, static_cast<int>(std::min(nanoseconds / least, double(threads)))) : threads;
}

double least_share() { return least_share_of_process.load(std::memory_order_relaxed); }
void set_least_share(double nanoseconds) { least_share_of_process.store(nanoseconds, std::memory_order_relaxed); }

void FreeAligned::operator()(char* memory) const { ::operator delete(memory, std::align_val_t{alignment}); }

AlignedMemory aligned_memory(size_t bytes, size_t alignment) {
  return {static_cast<char*>(::operator new(bytes, std::align_val_t{alignment})), {alignment}};
}

char* thread_scratch(size_t bytes) {
  constexpr size_t page = 4096;
  thread_local AlignedMemory memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    size = 0;
    memory.reset();
    const size_t pages = (bytes + page - 1) / page * page;
    memory = aligned_memory(pages, page);
    size = pages;
  }
  return memory.get();
}

}  // namespace elmo_fast::cpu
