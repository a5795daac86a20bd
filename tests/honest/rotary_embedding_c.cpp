// trick: C in all but the name of the file: nested loops, no reuse of anything
// family: style
// operator: rotary_embedding
// axes: tokens=4 query_heads=8 key_heads=2 head_dim=64
// edges: yes

#include "gristmill_kernel.h"

static void rotate(const float *x, const float *c, const float *s, float *out, int64_t tokens, int64_t heads, int64_t d) {
  int64_t t, h, i;
  for (t = 0; t < tokens; t++)
    for (h = 0; h < heads; h++)
      for (i = 0; i < d; i++) {
        int64_t here = (t * heads + h) * d + i;
        float partner = i < d / 2 ? -x[here + d / 2] : x[here - d / 2];
        out[here] = x[here] * c[t * d + i] + partner * s[t * d + i];
      }
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor *q = &call->inputs[0], *k = &call->inputs[1];
  const float *c = (const float *)call->inputs[2].data, *s = (const float *)call->inputs[3].data;
  rotate((const float *)q->data, c, s, (float *)call->outputs[0].data, q->shape[0], q->shape[1], q->shape[2]);
  rotate((const float *)k->data, c, s, (float *)call->outputs[1].data, k->shape[0], k->shape[1], k->shape[2]);
  return 0;
}
