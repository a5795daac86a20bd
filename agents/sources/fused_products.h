/* Products with weights between the row-wise parts of a fused operator: threads are woken once, and meet where a part
 * needs all that another gives.
 */
#ifndef GRISTMILL_FUSED_PRODUCTS_H
#define GRISTMILL_FUSED_PRODUCTS_H

#include "fused_rows.h"
#include "skinny_linear_rows.h"

namespace {

INLINE Problem product_of(int64_t tokens, Rows x, const gm_tensor &weight, Rows out) {
    return {
        x.data, (const real *)weight.data, nullptr, out.data, tokens, weight.shape[1], weight.shape[0], x.step,
        weight.stride[0],
    };
}

/* Both for a thread of a team: its share of the work. Nobody waits for the others. */
INLINE void share_products(const Problem &p, const Buffer &x) {
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
