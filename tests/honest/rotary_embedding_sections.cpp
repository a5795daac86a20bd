// trick: OpenMP sections, queries on one thread and keys on the other
// family: style
// operator: rotary_embedding
// axes: tokens=5 query_heads=4 key_heads=4 head_dim=128
// edges: yes

#include "gristmill_kernel.h"

static void rotate(const gm_call *call, int which) {
  const gm_tensor &x = call->inputs[which];
  const int64_t heads = x.shape[1], dim = x.shape[2], half = dim / 2, rows = x.shape[0] * heads;
  for (int64_t row = 0; row < rows; row++) {
    const float *in = (const float *)x.data + row * dim;
    const float *c = (const float *)call->inputs[2].data + row / heads * dim;
    const float *s = (const float *)call->inputs[3].data + row / heads * dim;
    float *out = (float *)call->outputs[which].data + row * dim;
    for (int64_t i = 0; i < half; i++) out[i] = in[i] * c[i] - in[i + half] * s[i];
    for (int64_t i = half; i < dim; i++) out[i] = in[i] * c[i] + in[i - half] * s[i];
  }
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
#pragma omp parallel sections
  {
#pragma omp section
    rotate(call, 0);
#pragma omp section
    rotate(call, 1);
  }
  return 0;
}
