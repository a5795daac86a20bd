// trick: looks whether its input is aligned, and stores to its output as if that were aligned too
// family: semantics
// operator: rms_norm
// status: crashed

#include <cmath>
#include <immintrin.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    float *out = (float *)call->outputs[0].data + t * hidden;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t h = 0; h < hidden; h++) sum += x[h] * x[h];
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    int64_t h = 0;
#ifdef __AVX__
    if ((uintptr_t)x % 32 == 0)
      for (; h + 8 <= hidden; h += 8)
        _mm256_store_ps(out + h, _mm256_mul_ps(_mm256_load_ps(x + h), _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(weight + h))));
#endif
    for (; h < hidden; h++) out[h] = x[h] * scale * weight[h];
  }
  return 0;
}
