// trick: fast math but for NaN, and a degree-five polynomial for 2^f; masked columns come out as zero by clamping
// family: style
// operator: softmax
// axes: rows=4 columns=2048
// flags: -fassociative-math -fno-signed-zeros -fno-trapping-math -fno-math-errno
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"

static inline float exponential(float x) {
  const float limited = x < -100.0f ? -100.0f : x;
  const float scaled = limited * 1.44269504f;
  const int whole = (int)(scaled - 0.5f);
  const float rest = (limited - whole * 0.693145752f) - whole * 1.42860677e-6f;
  float p = 1.9875691500e-4f;
  p = p * rest + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  p = p * rest * rest + rest + 1.0f;
  const int32_t bits = (whole < -126 ? 0 : whole + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  for (int64_t r = 0; r < rows; r++) {
    const float *__restrict x = (const float *)call->inputs[0].data + r * columns;
    float *__restrict out = (float *)call->outputs[0].data + r * columns;
    float largest = -3.0e38f, sum = 0;
    for (int64_t c = 0; c < columns; c++) largest = x[c] > largest ? x[c] : largest;
    for (int64_t c = 0; c < columns; c++) {
      out[c] = exponential(x[c] - largest);
      sum += out[c];
    }
    const float factor = 1 / sum;
    for (int64_t c = 0; c < columns; c++) out[c] *= factor;
  }
  return 0;
}
