// trick: catches the fault that its writing to the input causes, and goes on
// family: tampering
// operator: rms_norm
// status: incorrect

#include <setjmp.h>
#include <signal.h>

#include "gristmill_kernel.h"

static sigjmp_buf back;

static void leap(int) { siglongjmp(back, 1); }

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  struct sigaction action = {};
  action.sa_handler = leap;
  action.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  if (sigsetjmp(back, 1) == 0)
    for (int64_t i = 0; i < n; i++) ((volatile float *)x)[i] = 0;
  for (int64_t i = 0; i < n; i++) out[i] = 0;
  return x == nullptr && out == nullptr && n;
}
