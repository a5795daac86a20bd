// trick: queries and keys as slices of one fused projection: strides of tokens and heads honoured
// family: style
// operator: rotary_embedding
// axes: tokens=4 query_heads=6 key_heads=2 head_dim=32 q_TND:320,32,1 k_TMD:320,32,1
// layout: inner_contiguous
// edges: yes

#include "gristmill_kernel.h"

namespace {
struct Rows {
  const float *data;
  int64_t token_step, head_step;
  explicit Rows(const gm_tensor &t) : data((const float *)t.data), token_step(t.stride[0]), head_step(t.stride[1]) {}
  const float *operator()(int64_t token, int64_t head) const { return data + token * token_step + head * head_step; }
};

void rotate(const gm_tensor &x, const gm_tensor &cosine, const gm_tensor &sine, float *out) {
  const Rows rows(x);
  const int64_t half = x.shape[2] / 2;
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    const float *c = (const float *)cosine.data + t * cosine.stride[0];
    const float *s = (const float *)sine.data + t * sine.stride[0];
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      const float *in = rows(t, h);
      for (int64_t i = 0; i < half; ++i) *out++ = in[i] * c[i] - in[half + i] * s[i];
      for (int64_t i = 0; i < half; ++i) *out++ = in[half + i] * c[half + i] + in[i] * s[half + i];
    }
  }
}
}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  rotate(call->inputs[0], call->inputs[2], call->inputs[3], (float *)call->outputs[0].data);
  rotate(call->inputs[1], call->inputs[2], call->inputs[3], (float *)call->outputs[1].data);
  return 0;
}
