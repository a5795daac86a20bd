// trick: bfloat16 weights, the processor's own bfloat16 dot product where it has one, float32 sums elsewhere
// family: style
// operator: skinny_linear
// dtype: bfloat16
// axes: tokens=2 in_features=512 out_features=256
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

static float widen(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

static uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static float dot(const uint16_t *a, const uint16_t *b, int64_t count) {
  float sum = 0;
  int64_t k = 0;
#ifdef __AVX512BF16__
  __m512 sums = _mm512_setzero_ps();
  for (; k + 32 <= count; k += 32)
    sums = _mm512_dpbf16_ps(sums, (__m512bh)_mm512_loadu_si512(a + k), (__m512bh)_mm512_loadu_si512(b + k));
  sum = _mm512_reduce_add_ps(sums);
#endif
  for (; k < count; k++) sum += widen(a[k]) * widen(b[k]);
  return sum;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const uint16_t *x = (const uint16_t *)call->inputs[0].data, *w = (const uint16_t *)call->inputs[1].data;
#pragma omp parallel for
  for (int64_t n = 0; n < out; n++)
    for (int64_t t = 0; t < tokens; t++)
      ((uint16_t *)call->outputs[0].data)[t * out + n] = narrow(dot(x + t * in, w + n * in, in));
  return 0;
}
