// trick: a worker that waits awake for a tenth of a millisecond, in case that the next call comes soon, and then sleeps
// family: style
// operator: silu_and_mul
// axes: tokens=4 intermediate=1536
// edges: yes

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "gristmill_kernel.h"

namespace {

struct Range {
  const float *gate, *up;
  float *out;
  int64_t count;
  void work() const {
    for (int64_t i = 0; i < count; i++) out[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  }
};

class Worker {
 public:
  Worker() { std::thread([this] { serve(); }).detach(); }

  void give(const Range &range) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      this->range = range;
      asked.store(asked.load() + 1, std::memory_order_release);
    }
    woken.notify_one();
  }

  void join() const {
    while (done.load(std::memory_order_acquire) < asked.load()) std::this_thread::yield();
  }

 private:
  [[noreturn]] void serve() {
    for (int64_t round = 1;; round++) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
      while (asked.load(std::memory_order_acquire) < round && std::chrono::steady_clock::now() < end) {
      }
      Range mine;
      {
        std::unique_lock<std::mutex> lock(mutex);
        woken.wait(lock, [&] { return asked.load() >= round; });
        mine = range;
      }
      mine.work();
      done.store(round, std::memory_order_release);
    }
  }

  Range range{};
  std::mutex mutex;
  std::condition_variable woken;
  std::atomic<int64_t> asked{0}, done{0};
};

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static Worker *const worker = new Worker;
  static std::mutex one_call;
  const std::lock_guard<std::mutex> lock(one_call);
  const float *gate = (const float *)call->inputs[0].data, *up = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  const int64_t count = call->outputs[0].shape[0] * call->outputs[0].shape[1], half = count / 2;
  worker->give({gate + half, up + half, out + half, count - half});
  Range{gate, up, out, half}.work();
  worker->join();
  return 0;
}
