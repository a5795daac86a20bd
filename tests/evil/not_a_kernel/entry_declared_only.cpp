// trick: declares its entry point and defines nothing
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include <cstdint>

extern "C" int32_t gm_run(const void *call);
int32_t answer() { return gm_run(nullptr); }
