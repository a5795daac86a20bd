// trick: copies the inputs to memory of its own from mmap, works there, and unmaps it before the return
// family: style
// operator: rotary_embedding
// axes: tokens=3 query_heads=4 key_heads=1 head_dim=48
// edges: yes

#include <string.h>
#include <sys/mman.h>

#include "gristmill_kernel.h"

static int rotate(const gm_call *call, int which) {
  const gm_tensor &x = call->inputs[which];
  const int64_t dim = x.shape[2], half = dim / 2, rows = x.shape[0] * x.shape[1];
  const size_t bytes = rows * dim * sizeof(float);
  float *scratch = (float *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (scratch == MAP_FAILED) return 12;
  memcpy(scratch, x.data, bytes);
  float *out = (float *)call->outputs[which].data;
  for (int64_t row = 0; row < rows; row++) {
    const float *c = (const float *)call->inputs[2].data + row / x.shape[1] * dim;
    const float *s = (const float *)call->inputs[3].data + row / x.shape[1] * dim;
    for (int64_t i = 0; i < dim; i++) {
      const float partner = i < half ? -scratch[row * dim + i + half] : scratch[row * dim + i - half];
      out[row * dim + i] = scratch[row * dim + i] * c[i] + partner * s[i];
    }
  }
  return munmap(scratch, bytes) ? 1 : 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int failed = rotate(call, 0);
  return failed ? failed : rotate(call, 1);
}
