// trick: intrinsics for three generations of processors, of which the first call chooses one
// family: style
// operator: rms_norm
// axes: tokens=4 hidden=520
// edges: yes

#include <cmath>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "gristmill_kernel.h"

namespace {

using Sum = float (*)(const float *, int64_t);

float plain(const float *x, int64_t count) {
  float lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int64_t lane = 0; lane < 8; lane++) lanes[lane] += x[i + lane] * x[i + lane];
  float sum = 0;
  for (; i < count; i++) sum += x[i] * x[i];
  for (float lane : lanes) sum += lane;
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float with_avx2(const float *x, int64_t count) {
  __m256 sums = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) sums = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i), sums);
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, sums);
  float sum = 0;
  for (float lane : lanes) sum += lane;
  for (; i < count; i++) sum += x[i] * x[i];
  return sum;
}

__attribute__((target("avx512f"))) float with_avx512(const float *x, int64_t count) {
  __m512 sums = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 inside = count - i >= 16 ? 0xFFFF : (__mmask16)((1u << (count - i)) - 1);
    const __m512 values = _mm512_maskz_loadu_ps(inside, x + i);
    sums = _mm512_fmadd_ps(values, values, sums);
  }
  return _mm512_reduce_add_ps(sums);
}
#endif

Sum choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return with_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return with_avx2;
#endif
  return plain;
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static const Sum sum_of_squares = choose();
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    float *out = (float *)call->outputs[0].data + t * hidden;
    const float scale = 1 / std::sqrt(sum_of_squares(x, hidden) / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[h] = x[h] * scale * weight[h];
  }
  return 0;
}
