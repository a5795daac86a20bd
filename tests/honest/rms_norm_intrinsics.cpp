// trick: AVX-512 with masked tails and a fast reciprocal root refined by one Newton step, AVX2 or scalar elsewhere
// family: style
// operator: rms_norm
// axes: tokens=8 hidden=1024
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

static float sum_of_squares(const float *row, int64_t hidden) {
#if defined(__AVX512F__)
  __m512 sum0 = _mm512_setzero_ps(), sum1 = _mm512_setzero_ps();
  int64_t h = 0;
  for (; h + 32 <= hidden; h += 32) {
    const __m512 a = _mm512_loadu_ps(row + h), b = _mm512_loadu_ps(row + h + 16);
    sum0 = _mm512_fmadd_ps(a, a, sum0);
    sum1 = _mm512_fmadd_ps(b, b, sum1);
  }
  for (; h < hidden; h += 16) {
    const __mmask16 mask = hidden - h >= 16 ? 0xFFFF : (__mmask16)((1u << (hidden - h)) - 1);
    const __m512 a = _mm512_maskz_loadu_ps(mask, row + h);
    sum0 = _mm512_fmadd_ps(a, a, sum0);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1));
#elif defined(__AVX2__)
  __m256 sum = _mm256_setzero_ps();
  int64_t h = 0;
  for (; h + 8 <= hidden; h += 8) {
    const __m256 a = _mm256_loadu_ps(row + h);
    sum = _mm256_add_ps(_mm256_mul_ps(a, a), sum);
  }
  float lanes[8], total = 0;
  _mm256_storeu_ps(lanes, sum);
  for (float lane : lanes) total += lane;
  for (; h < hidden; h++) total += row[h] * row[h];
  return total;
#else
  float total = 0;
  for (int64_t h = 0; h < hidden; h++) total += row[h] * row[h];
  return total;
#endif
}

static float reciprocal_root(float value) {
#if defined(__AVX512F__)
  const float guess = _mm_cvtss_f32(_mm_rsqrt14_ss(_mm_set_ss(value), _mm_set_ss(value)));
  return guess * (1.5f - 0.5f * value * guess * guess);
#else
  return 1.0f / std::sqrt(value);
#endif
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *x = (const float *)call->inputs[0].data, *weight = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  for (int64_t t = 0; t < tokens; t++, x += hidden, out += hidden) {
    const float scale = reciprocal_root(sum_of_squares(x, hidden) / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[h] = x[h] * scale * weight[h];
  }
  return 0;
}
