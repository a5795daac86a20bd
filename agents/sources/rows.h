/* Work on rows: over the elements of one by vectors, and over many of them by threads. */
#ifndef GRISTMILL_ROWS_H
#define GRISTMILL_ROWS_H

#include "vector.h"

namespace {

/* A whole vector. */
struct Whole {
    INLINE floats load(const real *from) const { return ::load(from); }
    INLINE void store(real *to, floats value) const { ::store(to, value); }
};

typedef long long quarter_line __attribute__((vector_size(16), may_alias));
typedef long long half_line __attribute__((vector_size(32), may_alias));
typedef long long line __attribute__((vector_size(64), may_alias));

/* A whole vector that goes to memory around the caches, where it is aligned and the hardware can. Built-in functions
 * of the compilers: the header of intrinsics takes longer to read than most kernels take to build.
 */
#if defined(__clang__)
#define STORE_PAST_CACHES(TYPE, BITS) __builtin_nontemporal_store(*(const TYPE *)rounded, (TYPE *)to)
#else
#define STORE_PAST_CACHES(TYPE, BITS) __builtin_ia32_movntdq##BITS((TYPE *)to, *(const TYPE *)rounded)
#endif
struct Streamed : Whole {
    INLINE void store(real *to, floats value) const {
        constexpr int BYTES = LANES * sizeof(real);
        if ((uintptr_t(to) & (BYTES - 1)) != 0) return ::store(to, value);
        real rounded[LANES] __attribute__((aligned(BYTES)));
        ::store(rounded, value);
#if defined(__AVX512F__)
        if constexpr (BYTES == 64) return STORE_PAST_CACHES(line, 512);
#endif
#if defined(__AVX__)
        if constexpr (BYTES == 32) return STORE_PAST_CACHES(half_line, 256);
#endif
#if defined(__SSE2__)
        if constexpr (BYTES == 16) return STORE_PAST_CACHES(quarter_line, );
#endif
        memcpy(to, rounded, sizeof rounded);
    }
};

INLINE void finish_streams() {
#if defined(__SSE2__)
    __builtin_ia32_sfence();
#endif
}

/* The first `count` lanes of a vector; the others read zero and are not written. */
struct First {
    int64_t count;
    INLINE floats load(const real *from) const { return load_first(from, count); }
    INLINE void store(real *to, floats value) const { store_first(to, value, count); }
};

/* Calls `body(offset, Vector or First)` for every vector of a row, UNROLL at a time. */
template <class Vector, class Body>
INLINE void for_row(int64_t size, Body body) {
    int64_t i = 0;
    for (; i + UNROLL * LANES <= size; i += UNROLL * LANES)
        unroll<UNROLL>([&](auto u) INLINED { body(i + u * LANES, Vector{}); });
    for (; i + LANES <= size; i += LANES) body(i, Vector{});
    if (i < size) body(i, First{size - i});
}

/* Adds up `term(offset, whole or first)` over a row in UNROLL independent sums. */
template <class Term>
INLINE float sum_over_row(int64_t size, Term term) {
    floats sums[UNROLL] = {};
    int64_t i = 0;
    for (; i + UNROLL * LANES <= size; i += UNROLL * LANES)
        unroll<UNROLL>([&](auto u) INLINED { sums[u] += term(i + u * LANES, Whole{}); });
    for (; i + LANES <= size; i += LANES) sums[0] += term(i, Whole{});
    if (i < size) sums[0] += term(i, First{size - i});
    unroll<UNROLL - 1>([&](auto u) INLINED { sums[0] += sums[u + 1]; });
    return sum(sums[0]);
}

/* Without threads there is no parallel region at all: entering one costs more than a small call. */
template <class Vector, class Body>
INLINE void run_rows(int64_t rows, bool parallel, Body body) {
    if (!parallel) {
        for (int64_t row = 0; row < rows; row++) body(row, Vector{});
        if (std::is_same_v<Vector, Streamed>) finish_streams();
        return;
    }
#pragma omp parallel num_threads(THREADS)
    {
#pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < rows; row++) body(row, Vector{});
        if (std::is_same_v<Vector, Streamed>) finish_streams();
    }
}

/* Calls `body(row, Vector)` for every row: on threads where all rows together are worth waking them, and with a Vector
 * that streams where they are too large to stay in cache until somebody reads them.
 */
template <class Body>
INLINE void for_each_row(int64_t rows, int64_t row_elements, Body body) {
    const int64_t elements = rows * row_elements;
    const bool parallel = THREADS > 1 && rows > 1 && elements >= PARALLEL_FROM;
    if (STREAM_FROM_KIB > 0 && elements * int64_t(sizeof(real)) >= STREAM_FROM_KIB * int64_t(1024))
        run_rows<Streamed>(rows, parallel, body);
    else
        run_rows<Whole>(rows, parallel, body);
}

/* Row `index` of a tensor, along its outermost dimension. */
INLINE const real *input_row(const gm_tensor &tensor, int64_t index) {
    return (const real *)tensor.data + index * tensor.stride[0];
}

INLINE real *output_row(const gm_tensor &tensor, int64_t index) {
    return (real *)tensor.data + index * tensor.stride[0];
}

}  // namespace

#endif
