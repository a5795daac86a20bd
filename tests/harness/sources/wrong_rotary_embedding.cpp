// A plain rotary_embedding that is right as it stands; tests define other values for its parts.
#include "gristmill_kernel.h"

#ifndef COS
#define COS 2
#endif
#ifndef SIN
#define SIN 3
#endif
#ifndef SIGN
#define SIGN 1
#endif
#ifndef HEAD
#define HEAD n
#endif
#ifndef WHERE
#define WHERE t * N + n
#endif
#ifndef ONE
#define ONE i
#endif
#ifndef OTHER
#define OTHER i + F
#endif

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &cosines = call->inputs[COS], &sines = call->inputs[SIN];
  for (int which = 0; which < 2; which++) {
    const gm_tensor &x = call->inputs[which];
    const int64_t T = x.shape[0], N = x.shape[1], D = x.shape[2], F = D / 2;
    for (int64_t t = 0; t < T; t++) {
      const float *cosine = (const float *)cosines.data + t * cosines.stride[0];
      const float *sine = (const float *)sines.data + t * sines.stride[0];
      for (int64_t n = 0; n < N; n++) {
        const float *from = (const float *)x.data + t * x.stride[0] + (HEAD) * x.stride[1];
        float *to = (float *)call->outputs[which].data + (WHERE) * D;
        for (int64_t i = 0; i < F; i++) {
          const float one = from[ONE], other = from[OTHER];
          to[ONE] = one * cosine[i] - SIGN * other * sine[i];
          to[OTHER] = other * cosine[i + F] + SIGN * one * sine[i + F];
        }
      }
    }
  }
  return 0;
}
