#include "openmp_threads.h"

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#endif

namespace elmo_fast {
namespace cpu {

#if defined(__linux__)
namespace {

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

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

struct Region {
  void (*task)(void*, int);
  void* context;
  int count;
  const OpenMp* openmp;
  std::atomic<bool> complete;
};

// Every thread of a region sees the same count, so either all of them run their task or none does.
void body(void* data) {
  Region& region = *static_cast<Region*>(data);
  if (region.openmp->count() != region.count) return region.complete.store(false, std::memory_order_relaxed);
  region.task(region.context, region.openmp->number());
}

}  // namespace

bool use_openmp_threads() {
  std::string path;
  dl_iterate_phdr(remember_libgomp, &path);
  if (path.empty()) return false;
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  OpenMp found = {};
  found.owner = getpid();
  if (!look_up(library, "GOMP_parallel", found.parallel) || !look_up(library, "omp_get_thread_num", found.number) ||
      !look_up(library, "omp_get_num_threads", found.count) || !look_up(library, "omp_in_parallel", found.in_parallel))
    return false;
  static OpenMp kept;
  kept = found;
  in_use.store(&kept, std::memory_order_release);
  return true;
}

bool threads_are_openmp() {
  const OpenMp* openmp = in_use.load(std::memory_order_acquire);
  return openmp && openmp->owner == getpid();
}

bool run_on_openmp(int count, void (*task)(void*, int), void* context) {
  if (!threads_are_openmp()) return false;
  const OpenMp* openmp = in_use.load(std::memory_order_acquire);
  if (openmp->in_parallel()) return false;
  Region region{task, context, count, openmp, {true}};
  openmp->parallel(body, &region, static_cast<unsigned>(count), 0);
  return region.complete.load(std::memory_order_relaxed);
}

#else

bool use_openmp_threads() { return false; }
bool threads_are_openmp() { return false; }
bool run_on_openmp(int, void (*)(void*, int), void*) { return false; }

#endif

}  // namespace cpu
}  // namespace elmo_fast
