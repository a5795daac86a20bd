/* out = x * cos + cat(-x2, x1) * sin for queries and keys, where x1 and x2 are the halves of a head.
 *
 * Tensors: q, q_out [tokens, query heads, head dimension], k, k_out [tokens, key heads, head dimension],
 * cos, sin [tokens, head dimension].
 */
#include "rows.h"

namespace {

template <class Vector>
INLINE void rotate_head(Vector, const real *x, const real *cosine, const real *sine, real *out, int64_t half) {
    for_row<Vector>(half, [&](int64_t i, auto some) INLINED {
        const floats first = some.load(x + i), second = some.load(x + half + i);
        some.store(out + i, first * some.load(cosine + i) - second * some.load(sine + i));
        some.store(out + half + i, second * some.load(cosine + half + i) + first * some.load(sine + half + i));
    });
}

template <class Vector>
INLINE void rotate_heads(
    Vector vector, const gm_tensor &x, const gm_tensor &out, const real *cosine, const real *sine, int64_t token) {
    const int64_t heads = x.shape[1], size = x.shape[2];
    for (int64_t head = 0; head < heads; head++)
        rotate_head(
            vector, (const real *)x.data + token * x.stride[0] + head * x.stride[1], cosine, sine,
            (real *)out.data + (token * heads + head) * size, size / 2);
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &q = call->inputs[0], &k = call->inputs[1], &cosine = call->inputs[2], &sine = call->inputs[3];
    const gm_tensor &q_out = call->outputs[0], &k_out = call->outputs[1];
    const int64_t q_size = q.shape[1] * q.shape[2], k_size = k.shape[1] * k.shape[2];
    for_each_row(
        q.shape[0], q_size + k_size,
        [&](int64_t token, auto vector) INLINED {
            rotate_heads(vector, q, q_out, input_row(cosine, token), input_row(sine, token), token);
            rotate_heads(vector, k, k_out, input_row(cosine, token), input_row(sine, token), token);
        });
    return 0;
}
