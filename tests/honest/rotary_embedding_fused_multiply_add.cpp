// trick: fused multiply-adds, halves side by side, restrict
// family: style
// operator: rotary_embedding
// axes: tokens=6 query_heads=16 key_heads=4 head_dim=64
// ranges: head_dim=16..256/16
// flags: -ffp-contract=fast
// edges: yes

#include "gristmill_kernel.h"

static void rotate(const gm_tensor &x, const gm_tensor &cosine, const gm_tensor &sine, const gm_tensor &to) {
  const int64_t heads = x.shape[1], dim = x.shape[2], half = dim / 2;
  for (int64_t t = 0; t < x.shape[0]; t++) {
    const float *__restrict c = (const float *)cosine.data + t * dim;
    const float *__restrict s = (const float *)sine.data + t * dim;
    for (int64_t h = 0; h < heads; h++) {
      const float *__restrict in = (const float *)x.data + (t * heads + h) * dim;
      float *__restrict out = (float *)to.data + (t * heads + h) * dim;
      for (int64_t i = 0; i < half; i++) {
        const float low = in[i], high = in[i + half];
        out[i] = __builtin_fmaf(low, c[i], -(high * s[i]));
        out[i + half] = __builtin_fmaf(high, c[i + half], low * s[i + half]);
      }
    }
  }
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  rotate(call->inputs[0], call->inputs[2], call->inputs[3], call->outputs[0]);
  rotate(call->inputs[1], call->inputs[2], call->inputs[3], call->outputs[1]);
  return 0;
}
