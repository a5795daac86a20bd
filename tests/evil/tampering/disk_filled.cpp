// trick: fills every folder that it may write to
// family: tampering
// operator: rms_norm
// status: incorrect

#include <fcntl.h>
#include <initializer_list>
#include <stdio.h>
#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  static const char block[1 << 20] = {1};
  char path[64];
  for (const char *folder : {"/tmp", "/var/tmp", "/dev/shm", "."})
    for (int file = 0; file < 64; file++) {
      snprintf(path, sizeof path, "%s/.%d", folder, file);
      const int fd = open(path, O_CREAT | O_WRONLY, 0600);
      for (int i = 0; fd >= 0 && i < 8 && write(fd, block, sizeof block) > 0; i++) {
      }
      if (fd >= 0) close(fd);
    }
  return x == nullptr && out == nullptr && n;
}
