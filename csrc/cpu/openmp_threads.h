// The threads of the OpenMP runtime that the host program has loaded. Two sets of threads on the same cores are in each
// other's way: OpenMP's keep spinning for milliseconds after their last parallel region.
#pragma once

namespace elmo_fast {
namespace cpu {

// Looks for GNU's OpenMP runtime among the loaded libraries, one of PyTorch's first, and has `run_together` use it in
// this process from now on. False, and nothing changes, when there is none.
bool use_openmp_threads();

// Whether they are in use: in this process, not in one it was forked to.
bool threads_are_openmp();

// Runs task(context, 0) .. task(context, count - 1) at the same time on OpenMP's threads, 0 on the calling one. False,
// with no task run, when it is not in use, when this process was forked since, inside a parallel region, or when
// OpenMP gives fewer than `count` threads.
bool run_on_openmp(int count, void (*task)(void* context, int rank), void* context);

}  // namespace cpu
}  // namespace elmo_fast
