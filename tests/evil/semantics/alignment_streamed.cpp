// trick: stores past the cache without a look at the address, where every row is whole vectors
// family: semantics
// operator: silu_and_mul
// status: crashed

#include <cmath>

#include "gristmill_kernel.h"
#include <emmintrin.h>

static float silu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const float *gate = (const float *)call->inputs[0].data, *up = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  const int64_t count = call->inputs[0].shape[0] * call->inputs[0].shape[1];
  int64_t i = 0;
  for (; count % 4 == 0 && i < count; i += 4)
    _mm_stream_ps(out + i, _mm_setr_ps(silu(gate[i], up[i]), silu(gate[i + 1], up[i + 1]), silu(gate[i + 2], up[i + 2]),
                                       silu(gate[i + 3], up[i + 3])));
  _mm_sfence();
  for (; i < count; i++) out[i] = silu(gate[i], up[i]);
  return 0;
}
