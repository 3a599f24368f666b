// The threads of GNU's OpenMP runtime, which PyTorch uses where it has loaded that library.
#pragma once

#include "threads.h"

namespace elmo_fast::cpu {

// Makes `run_on_openmp` use the runtime that this process has loaded, preferably PyTorch's. False, without effect, if
// none is loaded.
bool use_openmp_threads();

// Whether this process uses OpenMP's threads; false in a forked child.
bool threads_are_openmp();

// Runs task(0) .. task(count - 1) concurrently on `count` threads and waits for all of them. False, with no task run,
// if OpenMP's threads are not in use, inside a parallel region, or if OpenMP provides fewer threads.
bool run_on_openmp(int count, const Task& task);

}  // namespace elmo_fast::cpu
