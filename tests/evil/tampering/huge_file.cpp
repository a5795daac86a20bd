// trick: writes one file without end
// family: tampering
// operator: rms_norm
// status: crashed

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  const int fd = open("/tmp/huge", O_CREAT | O_WRONLY, 0600);
  for (int64_t place = 0; fd >= 0; place += 1 << 20)
    if (pwrite(fd, "x", 1, place) != 1) abort();
  return x == nullptr && out == nullptr && n;
}
