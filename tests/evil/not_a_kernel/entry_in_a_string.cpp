// trick: has its entry point in a string only
// family: not_a_kernel
// operator: rms_norm
// status: rejected incorrect

#include <cstdint>

extern "C" __attribute__((visibility("default"))) const char *name() { return "gm_run"; }
