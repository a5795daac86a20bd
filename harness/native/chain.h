/* Which buffer set is called next, and with what: a chain that nobody can run ahead on where calls are linked, and where
 * they are not, only by computing part of each call twice.
 *
 * The judge names a pool of sets and how many of them are to be called. The order, and which of the pool are called at
 * all, follow from a seed and from what the calls before wrote. Where calls are linked, so do the values: each activation
 * is the set's own, times numbers around one that follow from all that the call before wrote. So no call can be made
 * before the one before it is finished, nor be merged with it. The judge walks the same chain over the outputs afterwards
 * and knows which sets must be written, which must not, and what every call was given.
 */
#ifndef GRISTMILL_CHAIN_H
#define GRISTMILL_CHAIN_H

#include <stdint.h>
#include <string.h>

enum { CHAIN_TENSORS = 8, CHAIN_SAMPLES = 64, CHAIN_LANES = 64 };

typedef struct {
    const uint8_t *start; /* of set 0's tensor */
    int64_t pitch;        /* bytes from set to set */
    int64_t elements;     /* dense */
    int64_t item_bytes;
} chain_output;

/* An activation of linked calls: from the set that is called into memory that all calls share. */
typedef struct {
    const uint8_t *start;
    int64_t pitch, item_bytes;
    int64_t shape[4], stride[4]; /* of both, elements; 1 along expanded dimensions */
    uint8_t *to;                 /* NULL: do not make it, only follow the chain */
} chain_input;

typedef struct {
    uint64_t state;
    uint32_t *pool; /* of set numbers; consumed */
    int64_t remaining;
    int64_t last; /* set that was called last, or -1 */
    int64_t linked;
    int64_t outputs, inputs;
    chain_output output[CHAIN_TENSORS];
    chain_input input[CHAIN_TENSORS];
} chain;

static inline uint64_t chain_mixed(uint64_t state) { /* finaliser of splitmix64 */
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

static inline uint64_t chain_word(const uint8_t *at, int64_t item_bytes) {
    uint64_t word = 0;
    memcpy(&word, at, item_bytes == 2 ? 2 : item_bytes == 4 ? 4 : 8);
    return word;
}

/* Of some elements: one per cache line of a small output. */
static inline uint64_t chain_sampled(const uint8_t *data, const chain_output *output) {
    const int64_t count = output->elements < CHAIN_SAMPLES ? output->elements : CHAIN_SAMPLES;
    const int64_t step = output->elements / count * output->item_bytes;
    uint64_t lanes[4] = {1, 2, 3, 4};
    for (int64_t i = 0; i < count; i++)
        lanes[i & 3] = (lanes[i & 3] ^ chain_word(data + i * step, output->item_bytes)) * 0x9E3779B97F4A7C15u;
    return lanes[0] ^ (lanes[1] >> 7) ^ (lanes[2] >> 19) ^ (lanes[3] << 11);
}

static inline uint32_t chain_lane(uint32_t lane, uint32_t word) {
    lane = (lane ^ word) * 0x85EBCA6Bu;
    return lane ^ lane >> 15;
}

/* Of every byte. */
static inline uint64_t chain_whole(const uint8_t *data, const chain_output *output) {
    const int64_t bytes = output->elements * output->item_bytes, words = bytes / 4;
    uint32_t lanes[CHAIN_LANES], block[CHAIN_LANES];
    for (uint32_t lane = 0; lane < CHAIN_LANES; lane++) lanes[lane] = lane * 0x9E3779B1u + 1;
    int64_t at = 0;
    for (; at + CHAIN_LANES <= words; at += CHAIN_LANES) {
        memcpy(block, data + 4 * at, sizeof block);
        for (int64_t lane = 0; lane < CHAIN_LANES; lane++) lanes[lane] = chain_lane(lanes[lane], block[lane]);
    }
    memset(block, 0, sizeof block);
    memcpy(block, data + 4 * at, (size_t)(bytes - 4 * at));
    for (int64_t lane = 0; lane < CHAIN_LANES; lane++) lanes[lane] = chain_lane(lanes[lane], block[lane]);
    for (int64_t half = CHAIN_LANES / 2; half >= 8; half /= 2)
        for (int64_t lane = 0; lane < half; lane++) lanes[lane] = chain_lane(lanes[lane], lanes[lane + half]);
    uint64_t digest = (uint64_t)bytes;
    for (int64_t lane = 0; lane < 8; lane += 2)
        digest = chain_mixed(digest ^ ((uint64_t)lanes[lane] << 32 | lanes[lane + 1]));
    return digest;
}

/* A number from 0.5 to 1.5 for each place of a row: a hash of its index, as cheap as will do. Who does not know the seed
 * can say nothing of the number, and the seed is known when the call before is finished. */
static inline float around_one(uint32_t index, uint32_t seed) {
    const uint32_t h = (index * 0x9E3779B1u ^ seed) * 0x85EBCA6Bu;
    return 0.5f + (float)(int32_t)(h >> 8) * 0x1p-24f;
}

static inline float widen(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static inline uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint16_t rounded = (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? (uint16_t)(bits >> 16 | 0x40) : rounded; /* NaN stays NaN */
}

static void scale_floats(float *restrict to, const float *restrict from, int64_t count, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i] * around_one((uint32_t)i, seed);
}

static void scale_halves(uint16_t *restrict to, const uint16_t *restrict from, int64_t count, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) to[i] = narrow(widen(from[i]) * around_one((uint32_t)i, seed));
}

/* A row times numbers around one. Other items than float32 and bfloat16 are copied. */
static void scale_row(uint8_t *to, int64_t to_step, const uint8_t *from, int64_t from_step, int64_t count,
                      int64_t item_bytes, uint32_t seed) {
    const int dense = count == 1 || (to_step == 1 && from_step == 1);
    if (item_bytes == 4 && dense) scale_floats((float *)to, (const float *)from, count, seed);
    else if (item_bytes == 2 && dense) scale_halves((uint16_t *)to, (const uint16_t *)from, count, seed);
    else
        for (int64_t i = 0; i < count; i++) {
            uint8_t *place = to + i * to_step * item_bytes;
            const uint8_t *value = from + i * from_step * item_bytes;
            if (item_bytes == 4) *(float *)place = *(const float *)value * around_one((uint32_t)i, seed);
            else if (item_bytes == 2) *(uint16_t *)place = narrow(widen(*(const uint16_t *)value) * around_one((uint32_t)i, seed));
            else memcpy(place, value, 8);
        }
}

/* What the call is given for one activation of that set. */
static inline void chain_make(const chain_input *input, int64_t number, uint64_t state, uint8_t *to) {
    const uint8_t *from = input->start + number * input->pitch;
    for (int64_t i = 0; i < input->shape[0]; i++)
        for (int64_t j = 0; j < input->shape[1]; j++)
            for (int64_t k = 0; k < input->shape[2]; k++) {
                const int64_t row = (i * input->stride[0] + j * input->stride[1] + k * input->stride[2]) * input->item_bytes;
                state += 0x9E3779B97F4A7C15u;
                scale_row(to + row, input->stride[3], from + row, input->stride[3], input->shape[3], input->item_bytes,
                          (uint32_t)chain_mixed(state));
            }
}

/* The next set to call, or -1 if the pool is empty. */
static inline int64_t chain_step(chain *c) {
    for (int64_t i = 0; c->last >= 0 && i < c->outputs; i++) {
        const uint8_t *data = c->output[i].start + c->last * c->output[i].pitch;
        c->state ^= c->linked ? chain_whole(data, &c->output[i]) : chain_sampled(data, &c->output[i]);
        c->state = chain_mixed(c->state + 0x9E3779B97F4A7C15u);
    }
    if (c->remaining == 0) return -1;
    c->state = chain_mixed(c->state + 0x9E3779B97F4A7C15u);
    const int64_t place = (int64_t)((c->state >> 11) % (uint64_t)c->remaining);
    c->last = c->pool[place];
    c->pool[place] = c->pool[--c->remaining];
    for (int64_t i = 0; c->linked && i < c->inputs; i++)
        if (c->input[i].to) chain_make(&c->input[i], c->last, c->state + (uint64_t)i, c->input[i].to);
    return c->last;
}

#endif
