// trick: starts threads without end
// family: tampering
// operator: rms_norm
// status: crashed

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "gristmill_kernel.h"

static void *wait(void *) {
  for (;;) pause();
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (;;) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, wait, nullptr)) abort();
  }
  return x == nullptr && out == nullptr && n;
}
