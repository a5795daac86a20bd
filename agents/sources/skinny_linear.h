/* What the forms of skinny_linear share: the call, products of chunks, and token blocks of constant size.
 *
 * Tensors: x [tokens, in features], weight [out features, in features], out [tokens, out features].
 */
#ifndef GRISTMILL_SKINNY_LINEAR_H
#define GRISTMILL_SKINNY_LINEAR_H

#include "vector.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

/* Elements of a cache line. */
constexpr int LINE = 64 / int(sizeof(real));

struct Problem {
    const real *x, *weight, *packed;
    real *out;
    int64_t tokens, in_features, out_features, x_stride, weight_stride;
};

INLINE Problem read_problem(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &weight = call->inputs[1];
    return {
        (const real *)x.data, (const real *)weight.data, (const real *)call->packed, (real *)call->outputs[0].data,
        x.shape[0], x.shape[1], weight.shape[0], x.stride[0], weight.stride[0],
    };
}

INLINE bool worth_threads(const Problem &p) {
    return p.out_features * p.in_features * int64_t(sizeof(real)) >= int64_t(SERIAL_BELOW_KIB) * 1024;
}

/* Whether the hardware multiplies pairs of bfloat16 and adds them to float32. */
#if defined(__AVX512BF16__)
constexpr bool PAIRS = DTYPE == GM_BFLOAT16 && LANES == 16;
#else
constexpr bool PAIRS = false;
#endif

/* Neighbours along K that one lane holds. A chunk is one vector of them: floats, or the bits of pairs of bfloat16. */
constexpr int GROUP = PAIRS ? 2 : 1;
constexpr int CHUNK = LANES * GROUP;

INLINE floats load_chunk(const real *from) {
    if constexpr (PAIRS) {
        floats bits;
        memcpy(&bits, from, sizeof bits);
        return bits;
    } else {
        return load(from);
    }
}

INLINE floats load_chunk_first(const real *from, int64_t count) {
    real buffer[CHUNK] = {};
    memcpy(buffer, from, count * sizeof(real));
    return load_chunk(buffer);
}

template <class Floats>
INLINE Floats multiply_add(Floats sums, Floats a, Floats b) {
#if defined(__AVX512BF16__)
    if constexpr (PAIRS) return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
#endif
    return sums + a * b;
}

template <int T, class Block>
INLINE void for_last_tokens(int64_t count, int64_t token, Block block) {
    if constexpr (T > 0) {
        if (count == T) block(std::integral_constant<int, T>{}, token);
        else for_last_tokens<T - 1>(count, token, block);
    }
}

/* Calls `block(size, first token)` for TOKENS at a time, then once for those left; sizes are compile-time constants. */
template <class Block>
INLINE void for_tokens(int64_t tokens, Block block) {
    int64_t token = 0;
    for (; token + TOKENS <= tokens; token += TOKENS) block(std::integral_constant<int, TOKENS>{}, token);
    for_last_tokens<TOKENS - 1>(tokens - token, token, block);
}

}  // namespace

#endif
