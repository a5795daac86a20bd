/* The judge's hands on the shared buffers: fill, change, poison, inspect, and walk the chain of calls.
 *
 * Loaded into the judge by `harness/native.py`. Nothing here runs or trusts a candidate: memory that a candidate may write
 * is only ever read as data.
 */
#include <math.h>
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

/* One row of a set, and where a base draw has it. */
typedef struct {
    uint8_t *to;
    int64_t from; /* elements */
} row_place;

static inline row_place place_row(const input_tensor *t, int64_t number, int64_t row) {
    const int64_t k = row % t->shape[2], j = row / t->shape[2] % t->shape[1], i = row / t->shape[2] / t->shape[1];
    return (row_place){
        t->start + number * t->pitch + (i * t->stride[0] + j * t->stride[1] + k * t->stride[2]) * t->item_bytes,
        i * t->base_stride[0] + j * t->base_stride[1] + k * t->base_stride[2],
    };
}

static inline int64_t row_count(const input_tensor *t) { return t->shape[0] * t->shape[1] * t->shape[2]; }

static inline int dense_rows(const input_tensor *t) {
    return (t->stride[3] == 1 && t->base_stride[3] == 1) || t->shape[3] == 1;
}

/* Set numbers[n] becomes base draw cases[n]. */
void fill(const input_tensor *t, const uint32_t *numbers, int64_t count, const int64_t *cases) {
    const int64_t rows = row_count(t), size = t->item_bytes;
    for (int64_t n = 0; n < count; n++)
        for (int64_t row = 0; row < rows; row++) {
            const row_place place = place_row(t, numbers[n], row);
            const uint8_t *from = t->bases + (cases[n] * t->base_elements + place.from) * size;
            if (dense_rows(t)) {
                memcpy(place.to, from, (size_t)(t->shape[3] * size));
                continue;
            }
            for (int64_t i = 0; i < t->shape[3]; i++)
                copy_item(place.to + i * t->stride[3] * size, from + i * t->base_stride[3] * size, size);
        }
}

/* Every value of those sets becomes a new one: that of a base draw at the same place, times a random number around one. */
void renew(const input_tensor *t, const uint32_t *numbers, int64_t count, uint64_t *random) {
    const int64_t rows = row_count(t), columns = t->shape[3], size = t->item_bytes;
    const int64_t step = t->stride[3], base_step = t->base_stride[3];
    for (int64_t n = 0; n < count; n++)
        for (int64_t row = 0; row < rows; row++) {
            const row_place place = place_row(t, numbers[n], row);
            const int64_t base = random_below(random, t->base_count);
            const uint8_t *from = t->bases + (base * t->base_elements + place.from) * size;
            const uint32_t seed = (uint32_t)random_word(random);
            scale_row(place.to, step, from, base_step, columns, size, seed);
        }
}

/* In each of those sets every row gets another base draw's value at `changes` random places, or at most_rows random
 * rows if there are more. */
void change(const input_tensor *t, const uint32_t *numbers, int64_t count, int64_t changes, int64_t most_rows,
            uint64_t *random) {
    const int64_t rows = row_count(t);
    const int64_t touched = rows < most_rows ? rows : most_rows;
    for (int64_t n = 0; n < count; n++)
        for (int64_t r = 0; r < touched; r++) {
            const row_place row = place_row(t, numbers[n], touched == rows ? r : random_below(random, rows));
            for (int64_t done = 0, tries = 0; done < changes && tries < 4 * changes; tries++) {
                const int64_t column = random_below(random, t->shape[3]);
                const int64_t element = random_below(random, t->base_count) * t->base_elements + row.from + column * t->base_stride[3];
                uint8_t *place = row.to + column * t->stride[3] * t->item_bytes;
                const uint8_t *value = t->bases + element * t->item_bytes;
                if (same_item(place, value, t->item_bytes)) continue;
                copy_item(place, value, t->item_bytes);
                done++;
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
            type *restrict at = (type *)(t->base + numbers[n] * t->pitch);                        \
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

/* The sets that a run of so many calls must have called, in order, judging by the outputs as they are now, and the states
 * of the chain from which their activations were made. */
void walk(chain *c, int64_t calls, uint32_t *called, uint64_t *states) {
    for (int64_t k = 0; k < calls; k++) {
        called[k] = (uint32_t)chain_step(c);
        states[k] = c->state;
    }
}

/* For runners that are no C programs. */
int64_t step(chain *c) { return chain_step(c); }

/* What those calls were given for the chain's input at `place`: one after the other, `pitch` bytes apart. */
void remake(const chain *c, int64_t place, const uint32_t *numbers, const uint64_t *states, int64_t count, uint8_t *to,
            int64_t pitch) {
    for (int64_t n = 0; n < count; n++)
        chain_make(&c->input[place], numbers[n], states[n] + (uint64_t)place, to + n * pitch);
}

/* Errors of part of a row in units, and whether one is beyond its limit or not finite where it should be. */
#define ERRORS(type, value_of)                                                                               \
    for (int64_t i = 0; i < count; i++) {                                                                    \
        const double value = value_of(((const type *)found)[i]);                                             \
        const int32_t agree = (value == exact[i]) | ((value != value) & (exact[i] != exact[i]));             \
        const double error = agree ? 0 : fabs(value - exact[i]);                                             \
        wrong |= !(error <= limits[i]) & !agree;                                                             \
        errors[i] = agree ? 0 : error * per_unit[i];                                                         \
    }

static int32_t errors_of(double *restrict errors, const void *found, int64_t count, int64_t item_bytes,
                         const double *restrict exact, const float *restrict limits, const float *restrict per_unit) {
    int32_t wrong = 0;
    if (item_bytes == 4) {
        ERRORS(float, )
    } else {
        ERRORS(uint16_t, widen)
    }
    return wrong;
}

/* Whether every element lies within its limit of the exact value, and the means of errors in units within theirs: of all,
 * and, where there are such limits, of each row and of each column. NaN and infinities must stand where they should. A
 * cheap way to say yes: a no is for the comparer to look at. */
int32_t accept(const void *found, int64_t rows, int64_t columns, int64_t item_bytes, const double *exact,
               const float *limits, const float *per_unit, double mean_limit, const double *row_limits,
               const double *column_limits) {
    double *column_sums = column_limits ? calloc((size_t)columns, sizeof(double)) : NULL;
    double errors[256];
    double sum = 0;
    int32_t wrong = column_limits && !column_sums;
    for (int64_t row = 0; row < rows && !wrong; row++) {
        double row_sum = 0;
        for (int64_t block = 0; block < columns; block += 256) {
            const int64_t first = row * columns + block, count = columns - block < 256 ? columns - block : 256;
            wrong |= errors_of(errors, (const uint8_t *)found + first * item_bytes, count, item_bytes, exact + first,
                               limits + first, per_unit + first);
            double lanes[8] = {0}; /* a fixed order that can still be added side by side */
            for (int64_t i = 0; i < count / 8 * 8; i += 8)
                for (int64_t lane = 0; lane < 8; lane++) lanes[lane] += errors[i + lane];
            for (int64_t i = count / 8 * 8; i < count; i++) lanes[0] += errors[i];
            for (int64_t lane = 0; lane < 8; lane++) row_sum += lanes[lane];
            if (column_sums)
                for (int64_t i = 0; i < count; i++) column_sums[block + i] += errors[i];
        }
        wrong |= row_limits && !(row_sum <= row_limits[row] * (double)columns);
        sum += row_sum;
    }
    for (int64_t i = 0; column_sums && i < columns; i++) wrong |= !(column_sums[i] <= column_limits[i] * (double)rows);
    free(column_sums);
    return !wrong && sum <= mean_limit * (double)(rows * columns);
}

/* Whether two outputs of so many bytes are the same in so many sets, bit by bit. */
int32_t same(const uint8_t *before, int64_t before_pitch, const uint8_t *after, int64_t after_pitch, int64_t bytes,
             const uint32_t *numbers, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        if (memcmp(before + numbers[n] * before_pitch, after + numbers[n] * after_pitch, (size_t)bytes)) return 0;
    return 1;
}
