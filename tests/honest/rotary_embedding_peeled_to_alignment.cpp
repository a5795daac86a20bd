// trick: single elements up to an aligned address of the output, aligned vectors from there, and single ones at the end
// family: style
// operator: rotary_embedding
// axes: tokens=3 query_heads=4 key_heads=2 head_dim=64
// edges: yes

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "gristmill_kernel.h"

namespace {

/* out = a * cos + sign * b * sin */
void turn(const float *a, const float *b, const float *cos, const float *sin, float sign, float *out, int64_t count) {
  int64_t i = 0;
#if defined(__SSE__)
  for (; i < count && (uintptr_t)(out + i) % 16; i++) out[i] = a[i] * cos[i] + sign * b[i] * sin[i];
  for (; i + 4 <= count; i += 4) {
    const __m128 turned = _mm_mul_ps(_mm_mul_ps(_mm_set1_ps(sign), _mm_loadu_ps(b + i)), _mm_loadu_ps(sin + i));
    _mm_store_ps(out + i, _mm_add_ps(_mm_mul_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(cos + i)), turned));
  }
#endif
  for (; i < count; i++) out[i] = a[i] * cos[i] + sign * b[i] * sin[i];
}

void rotate(const gm_tensor &x, const gm_tensor &out, const float *cos, const float *sin) {
  const int64_t tokens = x.shape[0], heads = x.shape[1], d = x.shape[2], half = d / 2;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < heads; h++) {
      const float *from = (const float *)x.data + (t * heads + h) * d;
      float *to = (float *)out.data + (t * heads + h) * d;
      turn(from, from + half, cos + t * d, sin + t * d, -1, to, half);
      turn(from + half, from, cos + t * d + half, sin + t * d + half, 1, to + half, half);
    }
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const float *cos = (const float *)call->inputs[2].data, *sin = (const float *)call->inputs[3].data;
  rotate(call->inputs[0], call->outputs[0], cos, sin);
  rotate(call->inputs[1], call->outputs[1], cos, sin);
  return 0;
}
