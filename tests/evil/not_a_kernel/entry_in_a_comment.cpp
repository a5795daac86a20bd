// trick: has its entry point in a comment only
// family: not_a_kernel
// operator: rms_norm
// status: rejected

#include <cstdint>

// extern "C" int32_t gm_run(const gm_call *call) { return 0; }
int32_t answer() { return 42; }
