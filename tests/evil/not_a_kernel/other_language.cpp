// trick: is written in CUDA
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

__global__ void norm(const float *x, float *out) { out[threadIdx.x] = x[threadIdx.x]; }

GM_EXPORT int32_t gm_run(const gm_call *call) {
  norm<<<1, 32>>>((const float *)call->inputs[0].data, (float *)call->outputs[0].data);
  return 0;
}
