/* Dot products straight from the engine's layout: ROWS rows of the weight with TOKENS tokens at a time, vectors on K.
 * Every weight comes from memory once; later token blocks find the rows in cache. Tokens are copied to a buffer
 * first, interleaved by chunk: with rows a multiple of 4 KiB apart, all of them would share one set of the first cache.
 */
#ifndef GRISTMILL_SKINNY_LINEAR_ROWS_H
#define GRISTMILL_SKINNY_LINEAR_ROWS_H

#include "skinny_linear.h"

namespace {

/* Independent sums per dot product, as far as registers allow: few products need them to hide the latency of adding. */
template <int T>
constexpr int CHAINS = ROWS * T * K_UNROLL <= 24 ? K_UNROLL : 1;

/* Chunk by chunk along K, a block's tokens side by side; zeros past the end of K and for tokens it lacks. */
INLINE void interleave(const Problem &p, floats *to) {
    for_tokens(p.tokens, [&](auto size, int64_t token, int count) INLINED {
        for (int64_t k = 0; k < p.in_features; k += CHUNK)
            for (int t = 0; t < size; t++) {
                const real *const from = p.x + (token + t) * p.x_stride + k;
                const int64_t left = t < count ? p.in_features - k : 0;
                *to++ = left >= CHUNK ? load_chunk(from) : load_chunk_first(from, left);
            }
    });
}

/* Takes the sum of one token and one row of the weight. What else is done with it the type of the problem says. */
INLINE void put(const Problem &p, int64_t place, float sum) { store_one(p.out + place, sum); }

/* Rows past the last one are stood in for by the first of the block, and not stored. */
template <int T, class Kind>
INLINE void dot_products(const Kind &p, const floats *x, int64_t row, int64_t token, int count) {
    constexpr int R = ROWS, U = CHAINS<T>;
    floats sums[U][R][T] = {};
    const real *w[R];
    unroll<R>([&](auto r) INLINED {
        w[r] = p.weight + (row + r < p.out_features ? row + r : row) * p.weight_stride;
    });
    const int64_t K = p.in_features, ahead = PREFETCH_BLOCKS * R * p.weight_stride;
    int64_t k = 0;
    x += token * ((K + CHUNK - 1) / CHUNK);
    for (; k + U * CHUNK <= K; k += U * CHUNK, x += U * T) {
        if (PREFETCH_BLOCKS > 0 && token == 0)
            unroll<R>([&](auto r) INLINED {
                unroll<(U * CHUNK + LINE - 1) / LINE>([&](auto line) INLINED {
                    __builtin_prefetch(w[r] + ahead + k + line * LINE, 0, PREFETCH_LOCALITY);
                });
            });
        unroll<U>([&](auto u) INLINED {
            unroll<R>([&](auto r) INLINED {
                const floats ws = load_chunk(w[r] + k + u * CHUNK);
                unroll<T>([&](auto t) INLINED { sums[u][r][t] = multiply_add(sums[u][r][t], ws, x[u * T + t]); });
            });
        });
    }
    for (; k < K; k += CHUNK, x += T) {
        const int64_t count = K - k < CHUNK ? K - k : CHUNK;
        unroll<R>([&](auto r) INLINED {
            const floats ws = load_chunk_first(w[r] + k, count);
            unroll<T>([&](auto t) INLINED { sums[0][r][t] = multiply_add(sums[0][r][t], ws, x[t]); });
        });
    }
    unroll<R * T>([&](auto i) INLINED {
        constexpr int r = i / T, t = i % T;
        unroll<U - 1>([&](auto u) INLINED { sums[0][r][t] += sums[u + 1][r][t]; });
        if (row + r < p.out_features && t < count)
            put(p, (token + t) * p.out_features + row + r, sum(sums[0][r][t]));
    });
}

template <class Kind>
void row_block(const Kind &p, const floats *x, int64_t row) {
    for_tokens(p.tokens, [&](auto size, int64_t token, int count) INLINED {
        dot_products<size>(p, x, row, token, count);
    });
}

/* Blocks of rows, and the bytes that the interleaved tokens take. */
INLINE int64_t row_blocks(const Problem &p) { return (p.out_features + ROWS - 1) / ROWS; }

INLINE int64_t interleaved_bytes(const Problem &p) {
    const int64_t chunks = (p.in_features + CHUNK - 1) / CHUNK;
    return ((p.tokens + TOKENS) * chunks * int64_t(sizeof(floats)) + 63) / 64 * 64;
}

}  // namespace

#endif
