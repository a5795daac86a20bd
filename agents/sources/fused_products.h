/* Products with weights between the row-wise parts of a fused operator: threads are woken once, and meet where a part
 * needs all that another gives.
 */
#ifndef GRISTMILL_FUSED_PRODUCTS_H
#define GRISTMILL_FUSED_PRODUCTS_H

#include "fused_rows.h"
#include "skinny_linear_rows.h"

namespace {

/* Results before they are rounded: row-wise parts may make much of a rounding. Past the last row is room for a vector. */
struct Sums {
    float *data;
    int64_t step;
};

struct Summed {
    const float *row;
    template <class Some>
    INLINE floats operator()(int64_t i, Some) const {
        return load(row + i);
    }
};

INLINE Summed at(Sums sums, int64_t row) { return {sums.data + row * sums.step}; }

/* A product whose sums are kept, and rounded as well where there is an `out`. */
struct SummedProblem : Problem {
    float *sums;
};

INLINE void put(const SummedProblem &p, int64_t place, float sum) {
    p.sums[place] = sum;
    if (p.out) store_one(p.out + place, sum);
}

INLINE Problem product_of(int64_t tokens, Rows x, const gm_tensor &weight, Rows out) {
    return {
        x.data, (const real *)weight.data, nullptr, out.data, tokens, weight.shape[1], weight.shape[0], x.step,
        weight.stride[0],
    };
}

INLINE SummedProblem product_of(int64_t tokens, Rows x, const gm_tensor &weight, Rows out, Sums sums) {
    return {product_of(tokens, x, weight, out), sums.data};
}

/* Both for a thread of a team: its share of the work. Nobody waits for the others. */
template <class Kind>
INLINE void share_products(const Kind &p, const Buffer &x) {
#pragma omp for schedule(static) nowait
    for (int64_t block = 0; block < row_blocks(p); block++) row_block(p, (const floats *)x.data, block * ROWS);
}

template <class Body>
INLINE void share_rows(int64_t rows, Body body) {
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < rows; row++) body(row, Whole{});
}

}  // namespace

#endif
