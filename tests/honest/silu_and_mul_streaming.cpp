// trick: prefetches ahead and stores past the cache, with a fence before the return
// family: style
// operator: silu_and_mul
// axes: tokens=16 intermediate=2816
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static float silu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const float *gate = (const float *)call->inputs[0].data, *up = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  const int64_t count = call->inputs[0].shape[0] * call->inputs[0].shape[1];
  int64_t i = 0;
  for (; i < count && ((uintptr_t)(out + i) & 15); i++) out[i] = silu(gate[i], up[i]);
#ifdef __SSE2__
  for (; i + 4 <= count; i += 4) {
    __builtin_prefetch(gate + i + 64, 0, 0);
    __builtin_prefetch(up + i + 64, 0, 0);
    const __m128 four = _mm_setr_ps(silu(gate[i], up[i]), silu(gate[i + 1], up[i + 1]), silu(gate[i + 2], up[i + 2]),
                                    silu(gate[i + 3], up[i + 3]));
    _mm_stream_ps(out + i, four);
  }
  _mm_sfence();
#endif
  for (; i < count; i++) out[i] = silu(gate[i], up[i]);
  return 0;
}
