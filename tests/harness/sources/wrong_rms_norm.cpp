// A plain rms_norm that is right as it stands; tests define other values for its parts.
#include "gristmill_kernel.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>

typedef uint16_t bf16;

static inline float get(bf16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, 4);
  return wide;
}
static inline float get(float value) { return value; }
static inline void put(float *to, float value) { *to = value; }
static inline void put(bf16 *to, float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  *to = (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static inline float as_bf16(float value) {
  bf16 narrow;
  put(&narrow, value);
  return get(narrow);
}
static inline float as_half(float value) { return _cvtsh_ss(_cvtss_sh(value, 0)); }

#ifndef IN
#define IN float
#endif
#ifndef OUT
#define OUT float
#endif
#ifndef ROUND
#define ROUND(sum) (sum)
#endif
#ifndef FIRST
#define FIRST 0
#endif
#ifndef LAST
#define LAST H
#endif
#ifndef STEP
#define STEP 1
#endif
#ifndef ROWS
#define ROWS true
#endif

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0];
  const int64_t T = x.shape[0], H = x.shape[1];
  const IN *weight = (const IN *)call->inputs[1].data;
  for (int64_t t = 0; t < T; t++) {
    const IN *row = (const IN *)x.data + t * x.stride[0];
    OUT *out = (OUT *)call->outputs[0].data + t * H;
    float sum = 0;
    for (int64_t h = 0; h < H; h++) sum = ROUND(sum + get(row[h]) * get(row[h]));
    const float scale = 1 / std::sqrt(sum / H + (float)call->scalars[0]);
    if (ROWS)
      for (int64_t h = FIRST; h < LAST; h += STEP) put(out + h, get(row[h]) * scale * get(weight[h]));
  }
  return 0;
}
