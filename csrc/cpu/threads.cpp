#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>

#include <string>
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

using Task = std::function<void(int rank)>;

// In IEEE arithmetic: no flushing of denormals, rounding to nearest.
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

struct Job {
  const Task& task;
  std::atomic<int> left;
};

// One waiting thread and the job handed to it.
class Worker {
 public:
  Worker() {
    std::thread([this] { serve(); }).detach();
  }

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
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return job_ != nullptr; });
      Job* job = std::exchange(job_, nullptr);
      lock.unlock();
      run_task(job->task, rank_);
      job->left.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  Job* job_ = nullptr;
  int rank_ = 0;
};

// Idle workers of one process. Never destroyed: its threads live as long as the process.
class Pool {
 public:
  const pid_t owner = getpid();

  std::vector<Worker*> take(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto begin = idle_.end() - static_cast<std::ptrdiff_t>(std::min(count, idle_.size()));
    std::vector<Worker*> taken(begin, idle_.end());
    idle_.erase(begin, idle_.end());
    lock.unlock();
    while (taken.size() < count) taken.push_back(new Worker());
    return taken;
  }

  void give_back(const std::vector<Worker*>& workers) {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.insert(idle_.end(), workers.begin(), workers.end());
  }

 private:
  std::mutex mutex_;
  std::vector<Worker*> idle_;
};

std::atomic<Pool*> current_pool{nullptr};

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

#if defined(__linux__)
// Entry points of GNU's OpenMP runtime, in the process that looked them up.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);  // GOMP_parallel
  int (*number)();
  int (*count)();
  int (*in_parallel)();
  pid_t owner;
};

std::atomic<const OpenMp*> in_use{nullptr};

// Path of the best candidate so far: a library named libgomp*, one in a folder of torch's before any other.
int remember_libgomp(dl_phdr_info* info, size_t, void* found) {
  std::string& best = *static_cast<std::string*>(found);
  const std::string path = info->dlpi_name ? info->dlpi_name : "";
  if (path.substr(path.find_last_of('/') + 1).rfind("libgomp", 0) != 0) return 0;
  if (best.empty() || path.find("/torch/") != std::string::npos) best = path;
  return 0;
}

struct Region {
  const Task& task;
  int count;
  const OpenMp* openmp;
  std::atomic<bool> complete;
};

// Every thread of a region sees the same count, so either all of them run their task or none does.
void body(void* data) {
  Region& region = *static_cast<Region*>(data);
  if (region.openmp->count() != region.count) return region.complete.store(false, std::memory_order_relaxed);
  run_task(region.task, region.openmp->number());
}

// Region of `count` threads; false, with no task run, when OpenMP's are not in use or not to be had.
bool run_on_openmp(int count, const Task& task) {
  if (!threads_are_openmp()) return false;
  const OpenMp* openmp = in_use.load(std::memory_order_acquire);
  if (openmp->in_parallel()) return false;
  Region region{task, count, openmp, {true}};
  openmp->parallel(body, &region, static_cast<unsigned>(count), 0);
  return region.complete.load(std::memory_order_relaxed);
}
#else
bool run_on_openmp(int, const Task&) { return false; }
#endif

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

void run_together(int count, const std::function<void(int rank)>& task) {
  if (count == 1) return run_task(task, 0);
  if (run_on_openmp(count, task)) return;
  Pool& workers = pool();
  const std::vector<Worker*> taken = workers.take(static_cast<size_t>(count - 1));
  Job job{task, {count - 1}};
  for (int rank = 1; rank < count; ++rank) taken[static_cast<size_t>(rank - 1)]->start(&job, rank);
  run_task(task, 0);
  for (int turn = 0; job.left.load(std::memory_order_acquire) != 0; ++turn) back_off(turn);
  workers.give_back(taken);
}

#if defined(__linux__)
bool use_openmp_threads() {
  std::string path;
  dl_iterate_phdr(remember_libgomp, &path);
  if (path.empty()) return false;
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  const auto function = [library](const char* name) { return reinterpret_cast<int (*)()>(dlsym(library, name)); };
  const OpenMp found = {reinterpret_cast<decltype(OpenMp::parallel)>(dlsym(library, "GOMP_parallel")),
                        function("omp_get_thread_num"), function("omp_get_num_threads"), function("omp_in_parallel"),
                        getpid()};
  if (!found.parallel || !found.number || !found.count || !found.in_parallel) return false;
  static OpenMp openmp;
  openmp = found;
  in_use.store(&openmp, std::memory_order_release);
  return true;
}

bool threads_are_openmp() {
  const OpenMp* openmp = in_use.load(std::memory_order_acquire);
  return openmp && openmp->owner == getpid();
}
#else
bool use_openmp_threads() { return false; }
bool threads_are_openmp() { return false; }
#endif

char* thread_scratch(size_t bytes) {
  constexpr size_t page = 4096;
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{page}); }
  };
  thread_local std::unique_ptr<char, Free> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    size = 0;
    memory.reset();
    const size_t pages = (bytes + page - 1) / page * page;
    memory.reset(static_cast<char*>(::operator new(pages, std::align_val_t{page})));
    size = pages;
  }
  return memory.get();
}

}  // namespace elmo_fast::cpu
