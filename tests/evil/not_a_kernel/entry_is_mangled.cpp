// trick: exports its entry point as a C++ function
// family: not_a_kernel
// operator: rms_norm
// status: incorrect rejected

#include <cstdint>

__attribute__((visibility("default"))) int32_t gm_run(const void *call) { return call == nullptr; }
