// trick: instantiates two to the thirtieth different templates
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

template <int depth, int64_t path>
struct Tree {
  static constexpr int64_t size = Tree<depth - 1, path * 2>::size + Tree<depth - 1, path * 2 + 1>::size;
};
template <int64_t path>
struct Tree<0, path> {
  static constexpr int64_t size = 1;
};

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return Tree<30, 0>::size == 0 && call == nullptr;
}
