// The threads of GNU's OpenMP runtime, which PyTorch uses where it has loaded that library.
#pragma once

#include "threads.h"

namespace elmo_fast::cpu {

// Has `run_on_openmp` use the runtime that this process has loaded, PyTorch's first. False, and nothing changes, when
// none is loaded.
bool use_openmp_threads();

// Whether they are in use: in this process, not in a process that it was forked to.
bool threads_are_openmp();

// Runs task(0) .. task(count - 1) at the same time, one on each of `count` threads, and waits for all of them. False,
// with no task run, when the threads are not in use, inside a parallel region, and where OpenMP gives fewer than asked
// for.
bool run_on_openmp(int count, const Task& task);

}  // namespace elmo_fast::cpu
