// trick: Duff's device, goto and register: C as it was written long ago
// family: style
// operator: fused_add_rms_norm
// axes: tokens=2 hidden=150
// edges: yes

#include <math.h>

#include "gristmill_kernel.h"

static float add_rows(const float *a, const float *b, float *to, long count) {
  float sum = 0;
  long rounds = (count + 3) / 4;
#define STEP *to = *a++ + *b++, sum += *to * *to, to++
  switch (count % 4) {
    do {
      case 0: STEP; [[fallthrough]];
      case 3: STEP; [[fallthrough]];
      case 2: STEP; [[fallthrough]];
      case 1: STEP;
    } while (--rounds > 0);
  }
#undef STEP
  return sum;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  long hidden = call->inputs[0].shape[1], left = call->inputs[0].shape[0], h;
  const float *x = (const float *)call->inputs[0].data, *residual = (const float *)call->inputs[1].data;
  const float *weight = (const float *)call->inputs[2].data;
  float *out = (float *)call->outputs[0].data, *added = (float *)call->outputs[1].data, scale;
next:
  scale = 1.0f / sqrtf(add_rows(x, residual, added, hidden) / hidden + (float)call->scalars[0]);
  for (h = 0; h < hidden; h++) out[h] = added[h] * scale * weight[h];
  x += hidden, residual += hidden, out += hidden, added += hidden;
  if (--left) goto next;
  return 0;
}
