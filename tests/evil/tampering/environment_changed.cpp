// trick: sets threads and affinity for all that follows
// family: tampering
// operator: rms_norm
// status: incorrect

#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  setenv("OMP_NUM_THREADS", "1", 1);
  setenv("LD_PRELOAD", "/tmp/none.so", 1);
  cpu_set_t first;
  CPU_ZERO(&first);
  CPU_SET(0, &first);
  sched_setaffinity(0, sizeof first, &first);
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_FSIZE, &none);
  return x == nullptr && out == nullptr && n;
}
