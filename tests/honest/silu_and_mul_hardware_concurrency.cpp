// trick: asks how many processors there are and starts as many threads, each taking every nth element
// family: style
// operator: silu_and_mul
// axes: tokens=4 intermediate=512
// edges: yes

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t count = call->inputs[0].shape[0] * call->inputs[0].shape[1];
  const int64_t workers = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 4);
  std::vector<std::thread> threads;
  for (int64_t worker = 0; worker < workers; worker++)
    threads.emplace_back([=] {
      const auto *gate = static_cast<const float *>(call->inputs[0].data);
      const auto *up = static_cast<const float *>(call->inputs[1].data);
      auto *out = static_cast<float *>(call->outputs[0].data);
      for (int64_t i = worker; i < count; i += workers) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    });
  for (auto &thread : threads) thread.join();
  return 0;
}
