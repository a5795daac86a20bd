// trick: a pool of threads that live on between calls, but are idle whenever a call has returned
// family: style
// operator: silu_and_mul
// axes: tokens=8 intermediate=1408
// edges: yes

#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "gristmill_kernel.h"

namespace {
class Helper {
 public:
  Helper() : thread_([this] { work(); }) {}

  ~Helper() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void begin(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = std::move(job);
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !job_; });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return job_ || ending_; });
      if (!job_) return;
      job_();
      job_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;
  bool ending_ = false;
  std::thread thread_;
};

std::mutex one_call_at_a_time;

void part(const gm_call *call, int64_t first, int64_t last) {
  const auto *gate = static_cast<const float *>(call->inputs[0].data);
  const auto *up = static_cast<const float *>(call->inputs[1].data);
  auto *out = static_cast<float *>(call->outputs[0].data);
  for (int64_t i = first; i < last; i++) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}
}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static Helper helper;
  const std::lock_guard<std::mutex> lock(one_call_at_a_time);
  const int64_t count = call->inputs[0].shape[0] * call->inputs[0].shape[1];
  helper.begin([=] { part(call, count / 2, count); });
  part(call, 0, count / 2);
  helper.wait();
  return 0;
}
