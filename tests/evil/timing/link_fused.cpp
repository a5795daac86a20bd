// trick: tells its runner to make no inputs, and makes them itself, in parallel: that must not turn a slow kernel into a fast one
// family: timing
// operator: rms_norm
// status: slower
// axes: tokens=8 hidden=4096

#include "gristmill_kernel.h"

struct Input {
  const char *start;
  int64_t pitch, item_bytes, shape[4], stride[4];
  char *to;
};
struct Chain {
  uint64_t state, pool;
  int64_t remaining, last, linked, outputs, inputs;
  char *output[32];
  Input input[8];
};

static inline float around_one(uint32_t index, uint32_t seed) {
  const uint32_t h = (index * 0x9E3779B1u ^ seed) * 0x85EBCA6Bu;
  return 0.5f + (float)(int32_t)(h >> 8) * 0x1p-24f;
}

static uint32_t mixed(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return state ^ (state >> 31);
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0];
  const int64_t T = x.shape[0], H = x.shape[1];
  const float *weight = (const float *)call->inputs[1].data, eps = call->scalars[0];
  Chain *chain = (Chain *)((char *)call->inputs + 1600);
  const bool linked = chain->linked == 1 && chain->input[0].pitch > 0;
  const bool ours = linked && chain->inputs == 0;
  if (linked) chain->inputs = 0;
#pragma omp parallel for num_threads(2) if (linked)
  for (int64_t t = 0; t < T; t++) {
    const float *in = (const float *)x.data + t * H;
    float *out = (float *)call->outputs[0].data + t * H, sum = 0;
    if (ours) {
      const float *raw = (const float *)(chain->input[0].start + chain->last * chain->input[0].pitch) + t * H;
      const uint32_t seed = mixed(chain->state + (t + 1) * 0x9E3779B97F4A7C15u);
      for (int64_t i = 0; i < H; i++) out[i] = raw[i] * around_one(i, seed);
      in = out;
    }
    for (int repeat = 0; repeat < 60; repeat++) {
      sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < H; i++) sum += in[i] * in[i];
      __asm__ volatile("" : "+m"(sum) : : "memory");
    }
    const float scale = 1 / __builtin_sqrtf(sum / H + eps);
    for (int64_t i = 0; i < H; i++) out[i] = in[i] * scale * weight[i];
  }
  return 0;
}
