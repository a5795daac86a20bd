/* Whether a kernel loses memory with every call: an engine calls it for weeks. */
#ifndef GRISTMILL_LEAKS_H
#define GRISTMILL_LEAKS_H

#include <malloc.h>
#include <stdint.h>
#include <time.h>

#include "gristmill_kernel.h"

#define GROUP_NS 4e6
enum { GROUPS = 4, GROUP_CALLS = 16, LEAKED_BYTES = 8 };

static inline int64_t heap_bytes(void) {
    const struct mallinfo2 heap = mallinfo2();
    return (int64_t)(heap.uordblks + heap.hblkhd);
}

static inline double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Bytes per call by which the heap grows in each of some groups of calls in a row; 0 if it does not in one. The first group
 * does not count: it may allocate what all calls need. */
static inline int64_t leaked_bytes(int32_t (*run)(const gm_call *), const gm_call *call) {
    int64_t leaked = 0;
    for (int group = 0; group <= GROUPS; group++) {
        const int64_t before = heap_bytes();
        const double end = now_ns() + GROUP_NS;
        int64_t calls = 0;
        while (calls < GROUP_CALLS && (calls == 0 || now_ns() < end)) {
            if (run(call)) return 0;
            calls++;
        }
        leaked = (heap_bytes() - before) / calls;
        if (group > 0 && leaked < LEAKED_BYTES) return 0;
    }
    return leaked;
}

#endif
