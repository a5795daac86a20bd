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

/* The first `count` lanes of a vector; the others read zero and are not written. */
struct First {
    int64_t count;
    INLINE floats load(const real *from) const { return load_first(from, count); }
    INLINE void store(real *to, floats value) const { store_first(to, value, count); }
};

/* Calls `body(offset, whole or first)` for every vector of a row, UNROLL at a time. */
template <class Body>
INLINE void for_row(int64_t size, Body body) {
    int64_t i = 0;
    for (; i + UNROLL * LANES <= size; i += UNROLL * LANES)
        unroll<UNROLL>([&](auto u) INLINED { body(i + u * LANES, Whole{}); });
    for (; i + LANES <= size; i += LANES) body(i, Whole{});
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

/* Calls `body(row)` for every row, on threads where all rows together are worth waking them. */
template <class Body>
INLINE void for_each_row(int64_t rows, int64_t row_elements, Body body) {
    if (THREADS > 1 && rows > 1 && rows * row_elements >= PARALLEL_FROM) {
#pragma omp parallel for schedule(static) num_threads(THREADS)
        for (int64_t row = 0; row < rows; row++) body(row);
    } else {
        for (int64_t row = 0; row < rows; row++) body(row);
    }
}

}  // namespace

#endif
