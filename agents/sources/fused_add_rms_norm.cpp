/* residual_out = x + residual; out = rms_norm(residual_out) * weight. The sum is written and squared in one pass.
 *
 * Tensors: x, residual, out, residual_out [tokens, hidden], weight [hidden].
 */
#include "rows.h"

namespace {

template <class Vector>
INLINE void add_and_normalise(
    Vector, const real *x, const real *residual, const real *weight, real *out, real *total, int64_t hidden,
    float eps) {
    const float squares = sum_over_row(hidden, [&](int64_t i, auto some) INLINED {
        some.store(total + i, some.load(x + i) + some.load(residual + i));
        const floats value = some.load(total + i);
        return value * value;
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / float(hidden) + eps);
    for_row<Vector>(hidden, [&](int64_t i, auto some) INLINED {
        some.store(out + i, some.load(total + i) * scale * some.load(weight + i));
    });
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &residual = call->inputs[1];
    const gm_tensor &out = call->outputs[0], &total = call->outputs[1];
    const real *const weight = (const real *)call->inputs[2].data;
    const int64_t hidden = x.shape[1];
    const float eps = float(call->scalars[0]);
    for_each_row(
        x.shape[0], hidden,
        [&](int64_t row, auto vector) INLINED {
            add_and_normalise(
                vector, input_row(x, row), input_row(residual, row), weight, output_row(out, row),
                output_row(total, row), hidden, eps);
        });
    return 0;
}
