/* Few outputs with long sums: each thread sums its part of K for a block of outputs, and what they have is added up in the
 * end, part after part, so that the same call gives the same bits. Weights are read once, from the engine's layout.
 */
#include <cstdlib>

#include "skinny_linear.h"

namespace {

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Chunks of tokens and weights side by side, from chunk `first` on; the tail's lanes are zero. */
template <int R, int T>
INLINE void dot_products(
    const Problem &p, int64_t row, int64_t token, int count, int64_t first, int64_t last, float *partial) {
    floats sums[K_UNROLL][R][T] = {};
    const real *w[R], *x[T];
    unroll<R>([&](auto r) INLINED { w[r] = p.weight + (row + r < p.out_features ? row + r : row) * p.weight_stride; });
    unroll<T>([&](auto t) INLINED { x[t] = p.x + (token + (t < count ? t : 0)) * p.x_stride; });
    int64_t k = first;
    for (; k + K_UNROLL * CHUNK <= last; k += K_UNROLL * CHUNK)
        unroll<K_UNROLL>([&](auto u) INLINED {
            floats xs[T];
            unroll<T>([&](auto t) INLINED { xs[t] = load_chunk(x[t] + k + u * CHUNK); });
            unroll<R>([&](auto r) INLINED {
                const floats ws = load_chunk(w[r] + k + u * CHUNK);
                unroll<T>([&](auto t) INLINED { sums[u][r][t] = multiply_add(sums[u][r][t], ws, xs[t]); });
            });
        });
    for (; k < last; k += CHUNK) {
        const int64_t left = smaller(CHUNK, last - k);
        floats xs[T];
        unroll<T>([&](auto t) INLINED { xs[t] = load_chunk_first(x[t] + k, left); });
        unroll<R>([&](auto r) INLINED {
            const floats ws = load_chunk_first(w[r] + k, left);
            unroll<T>([&](auto t) INLINED { sums[0][r][t] = multiply_add(sums[0][r][t], ws, xs[t]); });
        });
    }
    unroll<R * T>([&](auto i) INLINED {
        constexpr int r = i / T, t = i % T;
        unroll<K_UNROLL - 1>([&](auto u) INLINED { sums[0][r][t] += sums[u + 1][r][t]; });
        if (row + r < p.out_features && t < count)
            partial[(token + t) * p.out_features + row + r] = sum(sums[0][r][t]);
    });
}

void part_of_sums(const Problem &p, int64_t first, int64_t last, float *partial) {
    for (int64_t row = 0; row < p.out_features; row += ROWS)
        for_tokens(p.tokens, [&](auto size, int64_t token, int count) INLINED {
            dot_products<ROWS, size>(p, row, token, count, first, last, partial);
        });
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const Problem p = read_problem(call);
    if (!in_domain(p)) return 1;
    const int64_t outputs = p.tokens * p.out_features, padded = (outputs + 15) / 16 * 16;
    const int64_t chunks = (p.in_features + CHUNK - 1) / CHUNK;
    const int parts = worth_threads(p) ? THREADS : 1;
    float *const partial = (float *)aligned_alloc(64, parts * padded * sizeof(float));
    if (!partial) return 1;
#pragma omp parallel for schedule(static) num_threads(THREADS) if (parts > 1)
    for (int part = 0; part < parts; part++)
        part_of_sums(
            p, chunks * part / parts * CHUNK, smaller(chunks * (part + 1) / parts * CHUNK, p.in_features),
            partial + part * padded);
    for (int64_t i = 0; i < outputs; i++) {
        float total = partial[i];
        for (int part = 1; part < parts; part++) total += partial[part * padded + i];
        store_one(p.out + i, total);
    }
    free(partial);
    return 0;
}
