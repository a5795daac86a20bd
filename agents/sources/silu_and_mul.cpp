/* out = gate / (1 + exp(-gate)) * up, element by element.
 *
 * Tensors: gate, up, out [tokens, intermediate].
 */
#include "exponential.h"
#include "rows.h"

namespace {

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &gate = call->inputs[0], &up = call->inputs[1], &out = call->outputs[0];
    /* A row is cut into parts, so that a single token can use every thread. */
    const int64_t width = gate.shape[1], parts = (width + PART - 1) / PART;
    for_each_row(
        gate.shape[0] * parts, smaller(width, PART),
        [&](int64_t index, auto vector) INLINED {
            const int64_t row = index / parts, first = index % parts * PART;
            const real *const gates = input_row(gate, row) + first, *const ups = input_row(up, row) + first;
            real *const to = output_row(out, row) + first;
            for_row<decltype(vector)>(smaller(width - first, PART), [&](int64_t i, auto some) INLINED {
                const floats value = some.load(gates + i);
                some.store(to + i, value / (1.0f + exponential(-value)) * some.load(ups + i));
            });
        });
    return 0;
}
