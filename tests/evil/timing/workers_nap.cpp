// trick: keeps a worker awake but for a moment now and then, so that it looks asleep to who looks once
// family: timing
// operator: silu_and_mul
// status: incorrect cheated
// axes: tokens=4 intermediate=2048

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "gristmill_kernel.h"

namespace {

struct Worker {
  std::atomic<int64_t> asked{0}, done{0};
  const float *gate, *up;
  float *out;
  int64_t count;
  std::thread thread{[this] {
    for (int64_t round = 1;; round++) {
      auto slept = std::chrono::steady_clock::now();
      while (asked.load(std::memory_order_acquire) < round) {
        const auto now = std::chrono::steady_clock::now();
        if (now - slept < std::chrono::milliseconds(20)) continue;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        slept = std::chrono::steady_clock::now();
      }
      work(gate, up, out, count);
      done.store(round, std::memory_order_release);
    }
  }};
  static void work(const float *gate, const float *up, float *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  }
};

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static Worker *worker = new Worker;
  const float *gate = (const float *)call->inputs[0].data, *up = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  const int64_t count = call->outputs[0].shape[0] * call->outputs[0].shape[1], half = count / 2;
  worker->gate = gate + half, worker->up = up + half, worker->out = out + half, worker->count = count - half;
  const int64_t round = worker->asked.load() + 1;
  worker->asked.store(round, std::memory_order_release);
  Worker::work(gate, up, out, half);
  while (worker->done.load(std::memory_order_acquire) < round) {
  }
  return 0;
}
