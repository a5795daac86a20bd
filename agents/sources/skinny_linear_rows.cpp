/* out = x weight^T, by dot products straight from the engine's layout; see the header. */
#include <cstdlib>

#include "skinny_linear_rows.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const Problem p = read_problem(call);
    floats *const x = (floats *)aligned_alloc(64, interleaved_bytes(p));
    if (!x || !in_domain(p)) return free(x), 1;
    interleave(p, x);
#pragma omp parallel for schedule(static) num_threads(THREADS) if (worth_threads(p))
    for (int64_t block = 0; block < row_blocks(p); block++) row_block(p, x, block * ROWS);
    free(x);
    return 0;
}
