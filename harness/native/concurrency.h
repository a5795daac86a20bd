/* Whether a kernel that is called from two threads at once gives what it gives to one: engines may do so, and a host tries a
 * new generation's kernels while the old one's serve. */
#ifndef GRISTMILL_CONCURRENCY_H
#define GRISTMILL_CONCURRENCY_H

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gristmill_kernel.h"

#define CONCURRENT_NS 3e6
enum { CONCURRENT_CALLS = 200, CONCURRENT_OUTPUTS = 8 };

/* One thread's calls, all on the same tensors. */
typedef struct {
    int32_t (*run)(const gm_call *);
    gm_call call;
    int outputs;
    uint8_t *alone[CONCURRENT_OUTPUTS]; /* what it wrote while nobody else called */
    int *arrived;
    int32_t differed;
} caller;

static inline int64_t dense_elements(const gm_tensor *t) {
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

static inline int64_t dense_item_bytes(const gm_tensor *t) { return t->dtype == GM_BFLOAT16 ? 2 : t->dtype == GM_FLOAT32 ? 4 : 8; }

static inline double element_of(const void *data, int64_t i, int64_t item_bytes) {
    if (item_bytes == 8) return ((const double *)data)[i];
    if (item_bytes == 4) return ((const float *)data)[i];
    const uint32_t wide = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

/* More than the order of a sum may change. */
static inline int differs(const gm_tensor *t, const void *alone) {
    const int64_t elements = dense_elements(t), item_bytes = dense_item_bytes(t);
    if (!memcmp(t->data, alone, (size_t)(elements * item_bytes))) return 0;
    double largest = 0, off = 0;
    for (int64_t i = 0; i < elements; i++) {
        const double before = element_of(alone, i, item_bytes), now = element_of(t->data, i, item_bytes);
        if (isfinite(before) && fabs(before) > largest) largest = fabs(before);
        if (isfinite(before) != isfinite(now)) return 1;
        if (isfinite(before) && fabs(now - before) > off) off = fabs(now - before);
    }
    return off > largest * (item_bytes == 2 ? 0x1p-6 : 0x1p-12);
}

static inline double concurrent_now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static inline void *call_beside(void *argument) {
    caller *c = argument;
    __atomic_add_fetch(c->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(c->arrived, __ATOMIC_ACQUIRE) < 2) sched_yield();
    const double end = concurrent_now_ns() + CONCURRENT_NS;
    for (int calls = 0; calls < CONCURRENT_CALLS && !c->differed && (calls < 2 || concurrent_now_ns() < end); calls++) {
        c->differed = c->run(&c->call) != 0;
        for (int i = 0; i < c->outputs; i++) c->differed |= differs(&c->call.outputs[i], c->alone[i]);
    }
    return NULL;
}

/* Makes one call by itself, and keeps what it wrote; 0 if that cannot be. */
static inline int call_alone(caller *c) {
    int well = c->run(&c->call) == 0;
    for (int i = 0; i < c->outputs; i++) {
        const gm_tensor *t = &c->call.outputs[i];
        const size_t bytes = (size_t)(dense_elements(t) * dense_item_bytes(t));
        if ((c->alone[i] = malloc(bytes))) memcpy(c->alone[i], t->data, bytes);
        well &= c->alone[i] != NULL;
    }
    return well;
}

/* Whether two calls on tensors of their own give other answers at the same time than one after the other. */
static inline int disturb_each_other(caller both[2]) {
    int arrived = 0, disturbed = 0;
    pthread_t thread;
    const int well = call_alone(&both[0]) & call_alone(&both[1]);
    both[0].arrived = both[1].arrived = &arrived;
    if (well && !pthread_create(&thread, NULL, call_beside, &both[1])) {
        call_beside(&both[0]);
        pthread_join(thread, NULL);
        disturbed = both[0].differed || both[1].differed;
    }
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < both[which].outputs; i++) free(both[which].alone[i]);
    return disturbed;
}

#endif
