// trick: instantiates templates without end
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

template <int N>
struct Bomb {
  using Left = typename Bomb<N * 2 + 1>::Left;
};

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return sizeof(Bomb<1>::Left) + (call == nullptr);
}
