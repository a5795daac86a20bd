// trick: rows of the weight padded with zeros to whole cache lines, the activations copied likewise to scratch
// family: style
// operator: skinny_linear
// axes: tokens=3 in_features=250 out_features=130
// setup: yes
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"

static int64_t padded(const gm_call *call) { return (call->inputs[1].shape[1] + 15) / 16 * 16; }

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) { return call->inputs[1].shape[0] * padded(call) * 4; }

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  const int64_t out = call->inputs[1].shape[0], in = call->inputs[1].shape[1], width = padded(call);
  std::memset(packed, 0, out * width * 4);
  for (int64_t n = 0; n < out; n++)
    std::memcpy((float *)packed + n * width, (const float *)call->inputs[1].data + n * in, in * 4);
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const int64_t width = padded(call);
  float *row = (float *)__builtin_alloca_with_align(width * 4, 512);
  std::memset(row, 0, width * 4);
  for (int64_t t = 0; t < tokens; t++) {
    std::memcpy(row, (const float *)call->inputs[0].data + t * in, in * 4);
    for (int64_t n = 0; n < out; n++) {
      const float *weight = (const float *)__builtin_assume_aligned((const float *)call->packed + n * width, 64);
      float lanes[16] = {};
      for (int64_t k = 0; k < width; k += 16)
        for (int lane = 0; lane < 16; lane++) lanes[lane] += row[k + lane] * weight[k + lane];
      for (int step = 8; step; step /= 2)
        for (int lane = 0; lane < step; lane++) lanes[lane] += lanes[lane + step];
      ((float *)call->outputs[0].data)[t * out + n] = lanes[0];
    }
  }
  return 0;
}
