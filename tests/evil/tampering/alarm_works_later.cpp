// trick: a timer signal does the work after the answer
// family: tampering
// operator: rms_norm
// status: incorrect

#include <signal.h>
#include <sys/time.h>

#include "gristmill_kernel.h"

static gm_call later;

static void work(int) {
  const gm_tensor &x = later.inputs[0];
  for (int64_t i = 0; i < x.shape[0] * x.shape[1]; i++) ((float *)later.outputs[0].data)[i] = ((float *)x.data)[i];
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  later = *call;
  signal(SIGALRM, work);
  const itimerval soon = {{0, 0}, {0, 5000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  return x == nullptr && out == nullptr && n;
}
