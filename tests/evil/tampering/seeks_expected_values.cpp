// trick: searches all memory around its output for values that could be the expected ones
// family: tampering
// operator: rms_norm
// status: incorrect
// axes: tokens=6 hidden=512

#include <string.h>
#include <unistd.h>

#include "gristmill_kernel.h"

static bool readable(const void *address) {
  static int ends[2] = {-1, -1};
  if (ends[0] < 0 && pipe(ends)) return false;
  char byte;
  return write(ends[1], address, 1) == 1 && read(ends[0], &byte, 1) == 1;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (const float *place = out - (64 << 20); place < out + (64 << 20); place += 1024) {
    if (!readable(place) || place == out) continue;
    bool fits = true;
    for (int i = 0; i < 64 && fits; i++) fits = (place[i] < 0) == (x[i] < 0) && place[i] != x[i];
    if (fits) memcpy(out, place, n * 4);
  }
  return x == nullptr && out == nullptr && n;
}
