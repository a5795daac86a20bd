/* residual_out = x + residual; out = rms_norm(residual_out) * weight, ROWS rows side by side: their sums of squares are
 * independent chains, and the weight is loaded once for all of them.
 *
 * Tensors: x, residual, out, residual_out [tokens, hidden], weight [hidden].
 */
#include "rows.h"

namespace {

template <int R, class Vector>
INLINE void add_and_normalise(Vector, const gm_call *call, int64_t first) {
    const gm_tensor &x = call->inputs[0], &residual = call->inputs[1];
    const gm_tensor &out = call->outputs[0], &total = call->outputs[1];
    const real *const weight = (const real *)call->inputs[2].data, *from[R], *added[R];
    const int64_t hidden = x.shape[1];
    real *to[R], *sums[R];
    unroll<R>([&](auto r) INLINED {
        from[r] = input_row(x, first + r);
        added[r] = input_row(residual, first + r);
        to[r] = output_row(out, first + r);
        sums[r] = output_row(total, first + r);
    });
    floats squares[R] = {}, scales[R];
    for_row<Whole>(hidden, [&](int64_t i, auto some) INLINED {
        unroll<R>([&](auto r) INLINED {
            some.store(sums[r] + i, some.load(from[r] + i) + some.load(added[r] + i));
            const floats value = some.load(sums[r] + i);
            squares[r] += value * value;
        });
    });
    unroll<R>([&](auto r) INLINED {
        const float mean = sum(squares[r]) / float(hidden);
        scales[r] = floats{} + 1.0f / __builtin_sqrtf(mean + float(call->scalars[0]));
    });
    for_row<Vector>(hidden, [&](int64_t i, auto some) INLINED {
        const floats factor = some.load(weight + i);
        unroll<R>([&](auto r) INLINED { some.store(to[r] + i, some.load(sums[r] + i) * scales[r] * factor); });
    });
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const int64_t rows = call->inputs[0].shape[0], blocks = (rows + ROWS - 1) / ROWS;
    for_each_row(blocks, ROWS * call->inputs[0].shape[1], [&](int64_t block, auto vector) INLINED {
        const int64_t first = block * ROWS;
        if (first + ROWS <= rows) return add_and_normalise<ROWS>(vector, call, first);
        for (int64_t row = first; row < rows; row++) add_and_normalise<1>(vector, call, row);
    });
    return 0;
}
