// trick: the last product in inline assembly
// family: style
// operator: silu_and_mul
// axes: tokens=2 intermediate=333
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

static inline float times(float a, float b) {
#if defined(__x86_64__) && defined(__AVX__)
  float product;
  __asm__("vmulss %2, %1, %0" : "=x"(product) : "x"(a), "x"(b));
  return product;
#else
  return a * b;
#endif
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const float *gate = (const float *)call->inputs[0].data, *up = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data, *const end = out + call->outputs[0].shape[0] * call->outputs[0].shape[1];
  for (; out < end; gate++, up++, out++) *out = times(*gate / (1.0f + std::exp(-*gate)), *up);
  return 0;
}
