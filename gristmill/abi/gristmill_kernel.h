/* The calling convention between Gristmill and a compiled kernel. Candidates include this file and nothing else of ours.
 *
 * Destination passing: the caller owns every buffer, the kernel fills the outputs. A kernel keeps no state between
 * calls, touches no memory but what the call names, has joined its threads when it returns, and may be
 * called from several threads at once. It leaves the settings of its thread and process as it found them: rounding and
 * denormals, OpenMP's threads, signals, affinity, locale, environment. Inputs are read-only. Outputs do not overlap inputs or one another.
 * Inputs and outputs are aligned to their element's size and no more: engines hand over views, which begin anywhere. What
 * needs more (aligned loads and stores, those past the cache) looks at the address first.
 *
 * A kernel that wants its weights in another order declares a setup phase: it exports gm_packed_bytes and gm_setup. The caller
 * allocates that many bytes (aligned to 64), calls gm_setup once for each set of weights, and again whenever they change.
 * The packed form may depend on inputs whose role is `weight` only: during setup every other data pointer is NULL.
 */
#ifndef GRISTMILL_KERNEL_H
#define GRISTMILL_KERNEL_H

#include <stdint.h>

#define GM_ABI_VERSION 1
#define GM_MAX_RANK 4

#ifdef __cplusplus
#define GM_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define GM_EXPORT __attribute__((visibility("default")))
#endif

enum { GM_FLOAT32 = 1, GM_BFLOAT16 = 2, GM_FLOAT64 = 3, GM_INT32 = 4, GM_INT64 = 5 };

typedef struct {
    void *data;
    int32_t dtype;
    int32_t rank;
    int64_t shape[GM_MAX_RANK];  /* extents; unused ones are 1 */
    int64_t stride[GM_MAX_RANK]; /* in elements; unused ones are 0 */
} gm_tensor;

typedef struct {
    const gm_tensor *inputs;  /* in the order of the operator's definition */
    const gm_tensor *outputs; /* likewise, dense in row-major order */
    const double *scalars;    /* likewise */
    const void *packed;       /* what gm_setup wrote, or NULL */
} gm_call;

/* Required. 0 on success; any other value is a refusal, and the caller runs the engine's own kernel. */
GM_EXPORT int32_t gm_run(const gm_call *call);

/* Optional, both or none. */
GM_EXPORT int64_t gm_packed_bytes(const gm_call *call);
GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed);

#endif
