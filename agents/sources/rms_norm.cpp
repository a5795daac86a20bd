/* out = x / sqrt(mean(x^2) + eps) * weight, row by row: read and summed once, then scaled while it is in cache.
 *
 * Tensors: x [tokens, hidden], weight [hidden], out [tokens, hidden].
 */
#include "rows.h"

namespace {

template <class Vector>
INLINE void normalise(Vector, const real *x, const real *weight, real *out, int64_t hidden, float eps) {
    const float squares = sum_over_row(hidden, [&](int64_t i, auto some) INLINED {
        const floats value = some.load(x + i);
        return value * value;
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / float(hidden) + eps);
    for_row<Vector>(hidden, [&](int64_t i, auto some) INLINED {
        some.store(out + i, some.load(x + i) * scale * some.load(weight + i));
    });
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
    const real *const weight = (const real *)call->inputs[1].data;
    const int64_t hidden = x.shape[1];
    const float eps = float(call->scalars[0]);
    for_each_row(x.shape[0], hidden, [&](int64_t row, auto vector) INLINED {
        normalise(vector, input_row(x, row), weight, output_row(out, row), hidden, eps);
    });
    return 0;
}
