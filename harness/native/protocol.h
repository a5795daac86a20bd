/* What judge and runner say to each other. `harness/runner.py` holds the same layouts. Little-endian. */
#ifndef GRISTMILL_PROTOCOL_H
#define GRISTMILL_PROTOCOL_H

#include <stdint.h>

enum { LOAD = 1, PLAN = 2, SETUP = 3, RUN = 4, QUIT = 5, REVIEW = 6 }; /* REVIEW: of all settings, since LOAD */
enum { DONE = 101, REFUSED = 102, FAILED = 103 };
enum { MAX_TENSORS = 16, MAX_SCALARS = 8, MAX_TEXT_BYTES = 2000 };

typedef struct {
    uint32_t kind;
    uint32_t size_bytes; /* of the payload that follows */
    uint64_t nonce;      /* an answer repeats it */
} header;

/* LOAD, followed by the object. */
typedef struct {
    int64_t max_packed_bytes; /* 0: no setup phase */
} load_request;

/* PLAN, followed by `inputs + outputs` tensors and `scalars` doubles. Offsets lead into the shared files. */
typedef struct {
    uint64_t input_offset, input_bytes, output_bytes;
    uint32_t inputs, outputs, scalars, sets;
    uint32_t guarded; /* so many sets have a page behind each tensor that nobody may touch */
    uint32_t populate; /* map every page now, rather than when it is first touched */
    uint32_t linked;  /* each call's activations are made from the call before */
    uint32_t padding;
} plan_request;

typedef struct {
    int32_t dtype, rank;
    int64_t shape[4], stride[4];
    uint64_t base, start, pitch; /* set k: pages at base + k * pitch, first element at start + k * pitch */
    uint64_t weight;
} plan_tensor;

/* RUN, followed by `pool` set numbers (uint32). SETUP is set numbers only. */
typedef struct {
    uint64_t seed;
    uint32_t calls, pool;
} run_request;

#endif
