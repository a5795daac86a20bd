/* out = exp(x - max) / sum(exp(x - max)) along each row.
 *
 * Tensors: x, out [rows, columns]. Entries of -inf give 0; a row of nothing else gives NaN, as does a NaN or
 * +inf anywhere in it.
 */
#include "exponential.h"
#include "rows.h"

namespace {

/* -inf in the lanes that `some` leaves out. */
INLINE floats load_or_lowest(const real *from, Whole some) { return some.load(from); }

INLINE floats load_or_lowest(const real *from, First some) {
    float buffer[LANES];
    for (int i = 0; i < LANES; i++) buffer[i] = i < some.count ? to_float(from[i]) : -__builtin_inff();
    floats value;
    memcpy(&value, buffer, sizeof value);
    return value;
}

INLINE float maximum_of_row(const real *x, int64_t columns) {
    floats most[UNROLL];
    unroll<UNROLL>([&](auto u) INLINED { most[u] = floats{} - __builtin_inff(); });
    int64_t i = 0;
    for (; i + UNROLL * LANES <= columns; i += UNROLL * LANES)
        unroll<UNROLL>([&](auto u) INLINED { most[u] = maximum(load(x + i + u * LANES), most[u]); });
    for (; i + LANES <= columns; i += LANES) most[0] = maximum(load(x + i), most[0]);
    if (i < columns) most[0] = maximum(load_or_lowest(x + i, First{columns - i}), most[0]);
    unroll<UNROLL - 1>([&](auto u) INLINED { most[0] = maximum(most[0], most[u + 1]); });
    return largest(most[0]);
}

/* The exponentials wait in `out` where that loses nothing; in bfloat16 they are computed again. */
template <class Vector>
INLINE void softmax_of_row(Vector, const real *x, real *out, int64_t columns) {
    const float most = maximum_of_row(x, columns);
    const float total = sum_over_row(columns, [&](int64_t i, auto some) INLINED {
        const floats value = exponential(load_or_lowest(x + i, some) - most);
        if (DTYPE == GM_FLOAT32) some.store(out + i, value);
        return value;
    });
    const float scale = 1.0f / total;
    for_row<Vector>(columns, [&](int64_t i, auto some) INLINED {
        const floats value = DTYPE == GM_FLOAT32 ? some.load(out + i) : exponential(some.load(x + i) - most);
        some.store(out + i, value * scale);
    });
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
    const int64_t columns = x.shape[1];
    for_each_row(x.shape[0], columns, [&](int64_t row, auto vector) INLINED {
        softmax_of_row(vector, input_row(x, row), output_row(out, row), columns);
    });
    return 0;
}
