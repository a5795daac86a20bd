/* Which buffer set is called next: a chain that nobody can look ahead on.
 *
 * The judge names a pool of sets and how many of them are to be called. The order, and which of the pool are called at
 * all, follow from a seed and from what the calls before wrote. So calls cannot be made ahead or side by side, and the
 * judge, who walks the same chain over the outputs afterwards, knows which sets must be written and which must not.
 */
#ifndef GRISTMILL_CHAIN_H
#define GRISTMILL_CHAIN_H

#include <stdint.h>
#include <string.h>

#define CHAIN_OUTPUTS 8
#define CHAIN_SAMPLES 64 /* elements of each output that count: one per cache line of a small one */

typedef struct {
    const uint8_t *start; /* of set 0's tensor */
    int64_t pitch;        /* bytes from set to set */
    int64_t elements;     /* dense */
    int64_t item_bytes;
} chain_output;

typedef struct {
    uint64_t state;
    uint32_t *pool; /* of set numbers; consumed */
    int64_t remaining;
    int64_t last; /* set that was called last, or -1 */
    int64_t outputs;
    chain_output output[CHAIN_OUTPUTS];
} chain;

static inline uint64_t chain_word(const uint8_t *at, int64_t item_bytes) {
    uint64_t word = 0;
    memcpy(&word, at, item_bytes == 2 ? 2 : item_bytes == 4 ? 4 : 8);
    return word;
}

static inline uint64_t chain_digest(const chain_output *output, int64_t number) {
    const uint8_t *data = output->start + number * output->pitch;
    const int64_t count = output->elements < CHAIN_SAMPLES ? output->elements : CHAIN_SAMPLES;
    const int64_t step = output->elements / count * output->item_bytes;
    uint64_t lanes[4] = {1, 2, 3, 4};
    for (int64_t i = 0; i < count; i++)
        lanes[i & 3] = (lanes[i & 3] ^ chain_word(data + i * step, output->item_bytes)) * 0x9E3779B97F4A7C15u;
    return lanes[0] ^ (lanes[1] >> 7) ^ (lanes[2] >> 19) ^ (lanes[3] << 11);
}

/* The next set to call, or -1 if the pool is empty. */
static inline int64_t chain_step(chain *c) {
    if (c->last >= 0)
        for (int64_t i = 0; i < c->outputs; i++) {
            c->state = (c->state ^ chain_digest(&c->output[i], c->last)) * 0xD6E8FEB86659FD93u;
            c->state ^= c->state >> 32;
        }
    if (c->remaining == 0) return -1;
    const int64_t place = (int64_t)((c->state >> 11) % (uint64_t)c->remaining);
    c->last = c->pool[place];
    c->pool[place] = c->pool[--c->remaining];
    return c->last;
}

#endif
