// trick: reads seed and settings from the environment of its caller
// family: tampering
// operator: rms_norm
// status: incorrect

#include <initializer_list>
#include <string.h>
#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (char **entry = environ; *entry != nullptr; entry++)
    for (const char *word : {"seed", "token", "secret", "expected"})
      if (strcasestr(*entry, word)) memcpy(out, x, n * 4);
  return x == nullptr && out == nullptr && n;
}
