/* out = gate / (1 + exp(-gate)) * up, element by element.
 *
 * Tensors: gate, up, out [tokens, intermediate].
 */
#include "exponential.h"
#include "rows.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &gate = call->inputs[0], &up = call->inputs[1];
    const int64_t size = gate.shape[1];
    /* A row is cut into parts, so that a single token can use every thread. */
    const int64_t parts = (size + PART - 1) / PART;
    for_each_row(gate.shape[0] * parts, size < PART ? size : PART, [&](int64_t index, auto vector) INLINED {
        const int64_t row = index / parts, first = index % parts * PART;
        const real *const gates = (const real *)gate.data + row * gate.stride[0] + first;
        const real *const ups = (const real *)up.data + row * up.stride[0] + first;
        real *const out = (real *)call->outputs[0].data + row * size + first;
        for_row<decltype(vector)>(size - first < PART ? size - first : PART, [&](int64_t i, auto some) INLINED {
            const floats value = some.load(gates + i);
            some.store(out + i, value / (1.0f + exponential(-value)) * some.load(ups + i));
        });
    });
    return 0;
}
