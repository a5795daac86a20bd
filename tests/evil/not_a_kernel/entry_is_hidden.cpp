// trick: defines its entry point without exporting it
// family: not_a_kernel
// operator: rms_norm
// status: incorrect rejected

#include <cstdint>

extern "C" int32_t gm_run(const void *call) { return call == nullptr; }
