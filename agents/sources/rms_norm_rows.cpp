/* out = x / sqrt(mean(x^2) + eps) * weight, ROWS rows side by side: their sums of squares are independent chains, and
 * the weight is loaded once for all of them. For short rows, whose own chain would be all there is to do.
 *
 * Tensors: x [tokens, hidden], weight [hidden], out [tokens, hidden].
 */
#include "rows.h"

namespace {

template <int R, class Vector>
INLINE void normalise(Vector, const gm_tensor &x, const gm_tensor &out, const real *weight, int64_t first, float eps) {
    const int64_t hidden = x.shape[1];
    const real *from[R];
    real *to[R];
    unroll<R>([&](auto r) INLINED {
        from[r] = input_row(x, first + r);
        to[r] = output_row(out, first + r);
    });
    floats squares[R] = {}, scales[R];
    for_row<Whole>(hidden, [&](int64_t i, auto some) INLINED {
        unroll<R>([&](auto r) INLINED {
            const floats value = some.load(from[r] + i);
            squares[r] += value * value;
        });
    });
    unroll<R>([&](auto r) INLINED {
        scales[r] = floats{} + 1.0f / __builtin_sqrtf(sum(squares[r]) / float(hidden) + eps);
    });
    for_row<Vector>(hidden, [&](int64_t i, auto some) INLINED {
        const floats factor = some.load(weight + i);
        unroll<R>([&](auto r) INLINED { some.store(to[r] + i, some.load(from[r] + i) * scales[r] * factor); });
    });
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
    const real *const weight = (const real *)call->inputs[1].data;
    const int64_t rows = x.shape[0], blocks = (rows + ROWS - 1) / ROWS;
    const float eps = float(call->scalars[0]);
    for_each_row(blocks, ROWS * x.shape[1], [&](int64_t block, auto vector) INLINED {
        const int64_t first = block * ROWS;
        if (first + ROWS <= rows) return normalise<ROWS>(vector, x, out, weight, first, eps);
        for (int64_t row = first; row < rows; row++) normalise<1>(vector, x, out, weight, row, eps);
    });
    return 0;
}
