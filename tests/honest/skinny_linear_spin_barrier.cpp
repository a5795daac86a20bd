// trick: two threads that meet at a spinning barrier of atomics between two halves of the sum
// family: style
// operator: skinny_linear
// axes: tokens=2 in_features=256 out_features=96
// edges: yes

#include <atomic>
#include <thread>

#include "gristmill_kernel.h"

static void half(const gm_call *call, int64_t first, int64_t last, bool add, int64_t begin, int64_t end) {
  const int64_t in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  for (int64_t t = 0; t < call->inputs[0].shape[0]; t++)
    for (int64_t n = begin; n < end; n++) {
      const float *x = (const float *)call->inputs[0].data + t * in, *w = (const float *)call->inputs[1].data + n * in;
      float sum = 0;
      for (int64_t k = first; k < last; k++) sum += x[k] * w[k];
      float *to = (float *)call->outputs[0].data + t * out + n;
      *to = add ? *to + sum : sum;
    }
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  std::atomic<int> arrived{0};
  const auto work = [&](int64_t begin, int64_t end) {
    half(call, 0, in / 2, false, begin, end);
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
    half(call, in / 2, in, true, out - end, out - begin);
  };
  std::thread other(work, out / 2, out);
  work(0, out / 2);
  other.join();
  return 0;
}
