// Threads that wait between calls, and the barrier they meet at inside one.
#pragma once

#include <atomic>
#include <cstdint>

namespace elmo_fast {
namespace cpu {

// Spins briefly, then yields, then sleeps: an oversubscribed machine slows down but does not collapse.
// Defined out of line: the translation units of different instruction sets share it.
class Barrier {
 public:
  void reset(int size);
  void wait();

 private:
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  int size_ = 1;
};

// Runs task(context, 0) .. task(context, count - 1) at the same time, 0 on the calling thread, and returns when all
// are done. The tasks may wait for each other; they must not throw. Calls from several threads do not wait for each
// other: each takes idle workers or starts new ones. After fork the child starts its own.
void run_together(int count, void (*task)(void* context, int rank), void* context);

}  // namespace cpu
}  // namespace elmo_fast
