#include "thread_pool.h"

#include "openmp_threads.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace elmo_fast {
namespace cpu {
namespace {

constexpr int spins_before_yield = 512;
constexpr int yields_before_sleep = 256;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void back_off(int turn) {
  if (turn < spins_before_yield) return pause();
  if (turn < spins_before_yield + yields_before_sleep) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

struct Job {
  void (*task)(void*, int);
  void* context;
  std::atomic<int> left;
};

// One waiting thread and the job handed to it.
class Worker {
 public:
  Worker() { std::thread([this] { serve(); }).detach(); }

  void start(Job* job, int rank) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = job;
      rank_ = rank;
    }
    wake_.notify_one();
  }

 private:
  void serve() {
    for (;;) {
      Job* job = next();
      job->task(job->context, rank_);
      job->left.fetch_sub(1, std::memory_order_release);
    }
  }

  Job* next() {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return job_ != nullptr; });
    Job* job = job_;
    job_ = nullptr;
    return job;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  Job* job_ = nullptr;
  int rank_ = 0;
};

// Idle workers of one process. Never destroyed: its threads live as long as the process.
class Pool {
 public:
  explicit Pool(pid_t owner) : owner_(owner) {}
  pid_t owner() const { return owner_; }

  std::vector<Worker*> take(size_t count) {
    std::vector<Worker*> taken;
    taken.reserve(count);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (taken.size() < count && !idle_.empty()) {
        taken.push_back(idle_.back());
        idle_.pop_back();
      }
    }
    while (taken.size() < count) taken.push_back(new Worker());
    return taken;
  }

  void give_back(const std::vector<Worker*>& workers) {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.insert(idle_.end(), workers.begin(), workers.end());
  }

 private:
  const pid_t owner_;
  std::mutex mutex_;
  std::vector<Worker*> idle_;
};

std::atomic<Pool*> current_pool{nullptr};

// In a forked child the parent's threads are gone and its locks may be held: start over.
Pool& pool() {
  const pid_t self = getpid();
  Pool* found = current_pool.load(std::memory_order_acquire);
  while (found == nullptr || found->owner() != self) {
    Pool* fresh = new Pool(self);
    if (current_pool.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
  }
  return *found;
}

}  // namespace

void Barrier::reset(int size) {
  size_ = size;
  waiting_.store(0, std::memory_order_relaxed);
}

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

void barrier_wait(Barrier& barrier) { barrier.wait(); }

void run_together(int count, void (*task)(void*, int), void* context) {
  if (count == 1) return task(context, 0);
  if (run_on_openmp(count, task, context)) return;
  Pool& workers = pool();
  const std::vector<Worker*> taken = workers.take(static_cast<size_t>(count - 1));
  Job job{task, context, {count - 1}};
  for (int rank = 1; rank < count; ++rank) taken[static_cast<size_t>(rank - 1)]->start(&job, rank);
  task(context, 0);
  for (int turn = 0; job.left.load(std::memory_order_acquire) != 0; ++turn) back_off(turn);
  workers.give_back(taken);
}

}  // namespace cpu
}  // namespace elmo_fast
