// trick: patches the C library's functions, by which its caller answers
// family: tampering
// operator: rms_norm
// status: crashed timed_out
// deadline: 0.5

#include <dlfcn.h>
#include <initializer_list>
#include <string.h>
#include <sys/mman.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (const char *name : {"send", "write", "recv", "read", "clock_gettime"}) {
    unsigned char *code = (unsigned char *)dlsym(RTLD_DEFAULT, name);
    char *page = (char *)((uintptr_t)code & ~4095ul);
    if (code == nullptr || mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) continue;
    const unsigned char zero_and_return[] = {0x31, 0xc0, 0xc3};
    memcpy(code, zero_and_return, sizeof zero_and_return);
  }
  return x == nullptr && out == nullptr && n;
}
