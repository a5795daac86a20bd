/* Outer products over packed weights: setup lays PANEL out features side by side for each step along K, so that a
 * step reads PANEL_VECTORS vectors of one sequential stream, tokens are broadcast, and no lanes are left to sum.
 */
#include "skinny_linear.h"

namespace {

constexpr int PANEL = PANEL_VECTORS * LANES;

/* Size of a panel: GROUP neighbours along K for each of its rows, then the next GROUP; zeros past the end. */
INLINE int64_t panel_elements(int64_t in_features) { return (in_features + GROUP - 1) / GROUP * GROUP * PANEL; }

/* GROUP neighbours along K, in every lane. */
INLINE floats broadcast(const real *from, int64_t count) {
    if constexpr (PAIRS) {
        uint32_t pair = from[0];
        if (count > 1) memcpy(&pair, from, sizeof pair);
        return (floats)(words{} + pair);
    } else {
        return floats{} + to_float(from[0]);
    }
}

template <int T>
INLINE void step(floats (&sums)[T][PANEL_VECTORS], const real *w, const real *const (&x)[T], int64_t k, int64_t count) {
    floats ws[PANEL_VECTORS];
    unroll<PANEL_VECTORS>([&](auto v) INLINED {
        ws[v] = load_chunk(w + v * CHUNK);
        if (PREFETCH_LINES > 0 && v * CHUNK % LINE == 0)
            __builtin_prefetch(w + v * CHUNK + PREFETCH_LINES * LINE, 0, 3);
    });
    unroll<T>([&](auto t) INLINED {
        const floats xs = broadcast(x[t] + k, count);
        unroll<PANEL_VECTORS>([&](auto v) INLINED { sums[t][v] = multiply_add(sums[t][v], ws[v], xs); });
    });
}

/* Sums run over K_BLOCK neighbours along K before they are added up: one long chain would round too often. */
template <int T>
INLINE void add_block(
    floats (&totals)[T][PANEL_VECTORS], const real *w, const real *const (&x)[T], int64_t k, int64_t end) {
    floats sums[T][PANEL_VECTORS] = {};
    w += k * PANEL;
    for (; k + K_UNROLL * GROUP <= end; k += K_UNROLL * GROUP, w += K_UNROLL * GROUP * PANEL)
        unroll<K_UNROLL>([&](auto u) INLINED { step<T>(sums, w + u * GROUP * PANEL, x, k + u * GROUP, GROUP); });
    for (; k < end; k += GROUP, w += GROUP * PANEL) step<T>(sums, w, x, k, end - k);
    unroll<T * PANEL_VECTORS>([&](auto i) INLINED {
        totals[i / PANEL_VECTORS][i % PANEL_VECTORS] += sums[i / PANEL_VECTORS][i % PANEL_VECTORS];
    });
}

/* Tokens that the block lacks are stood in for by its first, and not stored. */
template <int T>
INLINE void outer_products(const Problem &p, int64_t panel, int64_t token, int count) {
    floats totals[T][PANEL_VECTORS] = {};
    const real *const w = p.packed + panel * panel_elements(p.in_features), *x[T];
    unroll<T>([&](auto t) INLINED { x[t] = p.x + (token + (t < count ? t : 0)) * p.x_stride; });
    for (int64_t k = 0; k < p.in_features; k += K_BLOCK)
        add_block<T>(totals, w, x, k, k + K_BLOCK < p.in_features ? k + K_BLOCK : p.in_features);
    const int64_t row = panel * PANEL;
    unroll<T * PANEL_VECTORS>([&](auto i) INLINED {
        constexpr int t = i / PANEL_VECTORS, v = i % PANEL_VECTORS;
        real *const to = p.out + (token + t) * p.out_features + row + v * LANES;
        const int64_t left = t >= count ? 0 : p.out_features - row - v * LANES;
        if (left >= LANES) store(to, totals[t][v]);
        else if (left > 0) store_first(to, totals[t][v], left);
    });
}

void panel_block(const Problem &p, int64_t panel) {
    for_tokens(p.tokens, [&](auto size, int64_t token, int count) INLINED {
        outer_products<size>(p, panel, token, count);
    });
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const Problem p = read_problem(call);
    const int64_t panels = (p.out_features + PANEL - 1) / PANEL;
    if (!p.packed || !in_domain(p)) return 1;
#pragma omp parallel for schedule(static) num_threads(THREADS) if (worth_threads(p))
    for (int64_t panel = 0; panel < panels; panel++) panel_block(p, panel);
    return 0;
}

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
    const Problem p = read_problem(call);
    return (p.out_features + PANEL - 1) / PANEL * panel_elements(p.in_features) * int64_t(sizeof(real));
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
    const Problem p = read_problem(call);
    const int64_t panels = (p.out_features + PANEL - 1) / PANEL, size = panel_elements(p.in_features);
    real *const to = (real *)packed;
#pragma omp parallel for schedule(static) num_threads(THREADS)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t i = 0; i < size; i++) {
            const int64_t k = i / (PANEL * GROUP) * GROUP + i % GROUP, row = panel * PANEL + i / GROUP % PANEL;
            const bool inside = row < p.out_features && k < p.in_features;
            to[panel * size + i] = inside ? p.weight[row * p.weight_stride + k] : real(0);
        }
    return 0;
}
