#include "openmp.h"

#include <atomic>

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <string>
#endif

namespace elmo_fast::cpu {

#if defined(__linux__)
namespace {

// Entry points of GNU's OpenMP runtime, and the process that looked them up.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);  // GOMP_parallel
  int (*number)();
  int (*count)();
  int (*in_parallel)();
  pid_t owner;
};

std::atomic<const OpenMp*> in_use{nullptr};

// Stores in `found` the path of a library named libgomp*, preferably in a folder of torch's.
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
  region.task(region.openmp->number());
}

}  // namespace

bool run_on_openmp(int count, const Task& task) {
  if (!threads_are_openmp()) return false;
  const OpenMp* openmp = in_use.load(std::memory_order_acquire);
  if (openmp->in_parallel()) return false;
  Region region{task, count, openmp, {true}};
  openmp->parallel(body, &region, static_cast<unsigned>(count), 0);
  return region.complete.load(std::memory_order_relaxed);
}

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
bool run_on_openmp(int, const Task&) { return false; }
#endif

}  // namespace elmo_fast::cpu
