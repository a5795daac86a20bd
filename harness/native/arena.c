/* The judge's hands on the shared buffers: fill, change, poison, inspect, and walk the chain of calls.
 *
 * Loaded into the judge by `harness/native.py`. Nothing here runs or trusts a candidate: memory that a candidate may write
 * is only ever read as data.
 */
#include <stdlib.h>

#include "chain.h"

/* One input tensor of all sets, in four dimensions, outermost first. */
typedef struct {
    uint8_t *start; /* set 0's first element */
    int64_t pitch, item_bytes;
    int64_t shape[4];       /* 1 along expanded dimensions */
    int64_t stride[4];      /* in the arena, elements */
    int64_t base_stride[4]; /* in a base draw, elements */
    const uint8_t *bases;   /* base draws, one after the other */
    int64_t base_count, base_elements;
} input_tensor;

/* One output tensor of all sets. */
typedef struct {
    uint8_t *base; /* set 0's pages */
    int64_t pitch, room, offset, bytes, item_bytes;
} output_tensor;

static inline uint64_t random_word(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline int64_t random_below(uint64_t *state, int64_t bound) {
    return (int64_t)(((unsigned __int128)random_word(state) * (uint64_t)bound) >> 64);
}

static inline void copy_item(uint8_t *to, const uint8_t *from, int64_t item_bytes) {
    if (item_bytes == 4) memcpy(to, from, 4);
    else if (item_bytes == 2) memcpy(to, from, 2);
    else memcpy(to, from, 8);
}

static inline int same_item(const uint8_t *a, const uint8_t *b, int64_t item_bytes) {
    return item_bytes == 4 ? !memcmp(a, b, 4) : item_bytes == 2 ? !memcmp(a, b, 2) : !memcmp(a, b, 8);
}

static void copy_row(const input_tensor *t, uint8_t *to, const uint8_t *from, int64_t first, int64_t last) {
    if (first >= last) return;
    if (t->stride[3] == 1 && t->base_stride[3] == 1) {
        memcpy(to + first * t->item_bytes, from + first * t->item_bytes, (size_t)((last - first) * t->item_bytes));
        return;
    }
    for (int64_t i = first; i < last; i++)
        copy_item(to + i * t->stride[3] * t->item_bytes, from + i * t->base_stride[3] * t->item_bytes, t->item_bytes);
}

/* Set numbers[n] gets the elements before cuts[n] of one base draw, and the rest of another. Elements count in row-major
 * order of `shape`. */
void fill(const input_tensor *t, const uint32_t *numbers, int64_t count, const int64_t *heads, const int64_t *tails,
          const int64_t *cuts) {
    const int64_t columns = t->shape[3];
    for (int64_t n = 0; n < count; n++) {
        uint8_t *set = t->start + numbers[n] * t->pitch;
        const uint8_t *head = t->bases + heads[n] * t->base_elements * t->item_bytes;
        const uint8_t *tail = t->bases + tails[n] * t->base_elements * t->item_bytes;
        int64_t passed = 0;
        for (int64_t i = 0; i < t->shape[0]; i++)
            for (int64_t j = 0; j < t->shape[1]; j++)
                for (int64_t k = 0; k < t->shape[2]; k++, passed += columns) {
                    uint8_t *to = set + (i * t->stride[0] + j * t->stride[1] + k * t->stride[2]) * t->item_bytes;
                    const int64_t from = (i * t->base_stride[0] + j * t->base_stride[1] + k * t->base_stride[2]) * t->item_bytes;
                    const int64_t left = cuts[n] - passed;
                    const int64_t cut = left < 0 ? 0 : left > columns ? columns : left;
                    copy_row(t, to, head + from, 0, cut);
                    copy_row(t, to, tail + from, cut, columns);
                }
    }
}

/* In each of those sets every row gets another base draw's value at `changes` random places, or at most_rows random
 * rows if there are more. */
void change(const input_tensor *t, const uint32_t *numbers, int64_t count, int64_t changes, int64_t most_rows,
            uint64_t *random) {
    const int64_t rows = t->shape[0] * t->shape[1] * t->shape[2];
    const int64_t touched = rows < most_rows ? rows : most_rows;
    for (int64_t n = 0; n < count; n++) {
        uint8_t *set = t->start + numbers[n] * t->pitch;
        for (int64_t r = 0; r < touched; r++) {
            int64_t row = touched == rows ? r : random_below(random, rows);
            const int64_t k = row % t->shape[2], j = row / t->shape[2] % t->shape[1], i = row / t->shape[2] / t->shape[1];
            uint8_t *to = set + (i * t->stride[0] + j * t->stride[1] + k * t->stride[2]) * t->item_bytes;
            const int64_t from = i * t->base_stride[0] + j * t->base_stride[1] + k * t->base_stride[2];
            for (int64_t done = 0, tries = 0; done < changes && tries < 4 * changes; tries++) {
                const int64_t column = random_below(random, t->shape[3]);
                const int64_t element = random_below(random, t->base_count) * t->base_elements + from + column * t->base_stride[3];
                uint8_t *place = to + column * t->stride[3] * t->item_bytes;
                const uint8_t *value = t->bases + element * t->item_bytes;
                if (same_item(place, value, t->item_bytes)) continue;
                copy_item(place, value, t->item_bytes);
                done++;
            }
        }
    }
}

#define POISON_16 0xFFA5u
#define POISON_32 0xFFA5A5A5u
#define POISON_64 0xFFA5A5A5A5A5A5A5u

#define FOR_EACH_KIND(action)                                    \
    if (t->item_bytes == 4) action(uint32_t, POISON_32)          \
    else if (t->item_bytes == 2) action(uint16_t, POISON_16)     \
    else action(uint64_t, POISON_64)

/* Fills those sets' pages with a pattern that is NaN. */
void poison(const output_tensor *t, const uint32_t *numbers, int64_t count) {
#define FILL(type, pattern)                                                                       \
    {                                                                                             \
        for (int64_t n = 0; n < count; n++) {                                                     \
            type *at = (type *)(t->base + numbers[n] * t->pitch);                                 \
            for (int64_t i = 0; i < t->room / (int64_t)sizeof(type); i++) at[i] = (type)(pattern); \
        }                                                                                         \
    }
    FOR_EACH_KIND(FILL)
}

/* Per set: how many elements still hold the pattern, and whether anything around them does not. */
void inspect(const output_tensor *t, const uint32_t *numbers, int64_t count, int64_t *left, uint8_t *spilled) {
#define LOOK(type, pattern)                                                                  \
    {                                                                                        \
        for (int64_t n = 0; n < count; n++) {                                                \
            const type *at = (const type *)(t->base + numbers[n] * t->pitch);                \
            const int64_t first = t->offset / (int64_t)sizeof(type);                         \
            const int64_t last = first + t->bytes / (int64_t)sizeof(type);                   \
            const int64_t end = t->room / (int64_t)sizeof(type);                             \
            int64_t same = 0;                                                                \
            type other = 0;                                                                  \
            for (int64_t i = first; i < last; i++) same += at[i] == (type)(pattern);         \
            for (int64_t i = 0; i < first; i++) other |= at[i] ^ (type)(pattern);            \
            for (int64_t i = last; i < end; i++) other |= at[i] ^ (type)(pattern);           \
            left[n] = same;                                                                  \
            spilled[n] = other != 0;                                                         \
        }                                                                                    \
    }
    FOR_EACH_KIND(LOOK)
}

/* The sets that a run of so many calls must have called, in order, judging by the outputs as they are now. */
void walk(chain *c, int64_t calls, uint32_t *called) {
    for (int64_t k = 0; k < calls; k++) called[k] = (uint32_t)chain_step(c);
}

/* For runners that are no C programs. */
int64_t step(chain *c) { return chain_step(c); }

/* Whether every element lies within its limit of the exact value, and the mean error in units within its own. NaN and
 * infinities must stand where they should. A cheap way to say yes: a no is for the comparer to explain. */
int32_t accept(const void *found, int64_t elements, int64_t item_bytes, const double *exact, const double *limit,
               const double *per_unit, double mean_limit) {
    double sum = 0;
    for (int64_t block = 0; block < elements; block += 256) {
        const int64_t end = block + 256 < elements ? block + 256 : elements;
        int32_t wrong = 0;
        for (int64_t i = block; i < end; i++) {
            double value;
            if (item_bytes == 4) value = ((const float *)found)[i];
            else {
                const uint32_t wide = (uint32_t)((const uint16_t *)found)[i] << 16;
                float narrow;
                memcpy(&narrow, &wide, 4);
                value = narrow;
            }
            const double error = value > exact[i] ? value - exact[i] : exact[i] - value;
            wrong |= !(error <= limit[i]);
            sum += error * per_unit[i];
        }
        if (wrong) return 0;
    }
    return sum <= mean_limit * (double)elements;
}
