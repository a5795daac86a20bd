// trick: leaves memory in anonymous files and segments behind
// family: tampering
// operator: rms_norm
// status: incorrect

#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (int i = 0; i < 64; i++) {
    const int fd = memfd_create("hoard", 0), id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
    if (fd < 0 || ftruncate(fd, 1 << 20)) break;
    if (id >= 0) memset(shmat(id, nullptr, 0), 1, 1 << 20);
  }
  return x == nullptr && out == nullptr && n;
}
