// trick: computes for ever at compile time
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

constexpr int64_t count() {
  int64_t sum = 0;
  for (uint64_t i = 0; i < ~0ull; i++) sum += i % 7;
  return sum;
}
static_assert(count() == 1);

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
