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

INLINE bool in_domain(const Problem &p) { return MIN_TOKENS <= p.tokens && p.tokens <= MAX_TOKENS; }

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

static OUTLINE floats load_chunk_first(const real *from, int64_t count) {
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

/* Whether a call of the domain can leave between `low` and `high` tokens for its last block. */
constexpr bool leaves(int low, int high) {
    for (int left = low; left <= high; left++)
        if (MAX_TOKENS >= TOKENS + left || (MIN_TOKENS <= left && left <= MAX_TOKENS)) return true;
    return false;
}

/* Sizes are powers of two and TOKENS: of the blocks that hold `left` tokens, the smallest. */
template <int Size = 1, class Block>
INLINE void smallest_block(int64_t left, Block block) {
    if constexpr (Size >= TOKENS) {
        block(std::integral_constant<int, TOKENS>{});
    } else {
        if constexpr (leaves(Size / 2 + 1, Size)) {
            if (left <= Size) return block(std::integral_constant<int, Size>{});
        }
        smallest_block<2 * Size>(left, block);
    }
}

/* Calls `block(size, first token, tokens)` until all tokens are done. The size is a constant, and may exceed the tokens
 * in the last block.
 */
template <class Block>
INLINE void for_tokens(int64_t tokens, Block block) {
    int64_t token = 0;
    for (; token + TOKENS <= tokens; token += TOKENS) block(std::integral_constant<int, TOKENS>{}, token, TOKENS);
    const int left = int(tokens - token);
    if (left > 0) smallest_block(left, [&](auto size) INLINED { block(size, token, left); });
}

}  // namespace

#endif
