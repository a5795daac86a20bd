/* The judge's hands on the shared buffers: fill, change, poison, inspect, and walk the chain of calls.
 *
 * Loaded into the judge by `harness/native.py`. Nothing here runs or trusts a candidate: memory that a candidate may write
 * is only ever read as data.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "chain.h"
#include "settings.h"

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

/* Set numbers[n] of every input becomes base draw cases[n] of the group of input tensors that which[n] names. */
void fill_sets(const input_tensor *groups, int64_t inputs, const int64_t *which, const uint32_t *numbers, int64_t count,
               const int64_t *cases) {
    for (int64_t n = 0; n < count; n++)
        for (int64_t i = 0; i < inputs; i++) fill(&groups[which[n] * inputs + i], &numbers[n], 1, &cases[n]);
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

/* A value that is to be put into a row of a set, and where from. */
typedef struct {
    row_place row;
    uint8_t *to;
    const uint8_t *from;
} row_change;

/* Another base draw's value, at a random place of that row. */
static inline row_change draw_change(const input_tensor *t, row_place row, uint64_t *random) {
    const int64_t column = random_below(random, t->shape[3]);
    const int64_t element = random_below(random, t->base_count) * t->base_elements + row.from + column * t->base_stride[3];
    return (row_change){row, row.to + column * t->stride[3] * t->item_bytes, t->bases + element * t->item_bytes};
}

#define TRIES 4

static void make_change(const input_tensor *t, row_change change, uint64_t *random) {
    for (int tries = 1; same_item(change.to, change.from, t->item_bytes); tries++) {
        if (tries == TRIES) return;
        change = draw_change(t, change.row, random);
    }
    copy_item(change.to, change.from, t->item_bytes);
}

#define AHEAD 32

/* In each of those sets every row gets another base draw's value at `changes` random places, or at most_rows random
 * rows if there are more. Places are drawn well before they are changed: each is a wait for memory, and so they wait
 * together. */
void change(const input_tensor *t, const uint32_t *numbers, int64_t count, int64_t changes, int64_t most_rows,
            uint64_t *random) {
    const int64_t rows = row_count(t);
    const int64_t touched = rows < most_rows ? rows : most_rows;
    row_change drawn[AHEAD];
    int64_t many = 0;
    for (int64_t n = 0; n < count; n++)
        for (int64_t r = 0; r < touched; r++) {
            const row_place row = place_row(t, numbers[n], touched == rows ? r : random_below(random, rows));
            for (int64_t i = 0; i < changes; i++, many++) {
                row_change *const slot = &drawn[many % AHEAD];
                if (many >= AHEAD) make_change(t, *slot, random);
                *slot = draw_change(t, row, random);
                __builtin_prefetch(slot->to, 1);
                __builtin_prefetch(slot->from);
            }
        }
    for (int64_t k = many < AHEAD ? 0 : many - AHEAD; k < many; k++) make_change(t, drawn[k % AHEAD], random);
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

#define BLOCK (1 << 20)

/* How many elements of a set still hold the pattern; and whether anything around them does not. */
static int64_t look_at(const output_tensor *t, uint32_t number, int *spilled) {
    int64_t same = 0;
#define LOOK(type, pattern)                                                              \
    {                                                                                    \
        const type *at = (const type *)(t->base + number * t->pitch);                    \
        const int64_t first = t->offset / (int64_t)sizeof(type);                         \
        const int64_t last = first + t->bytes / (int64_t)sizeof(type);                   \
        const int64_t end = t->room / (int64_t)sizeof(type);                             \
        type other = 0;                                                                  \
        for (int64_t from = first; from < last; from += BLOCK) {                         \
            const type *block = at + from;                                               \
            const int32_t count = (int32_t)(last - from < BLOCK ? last - from : BLOCK);  \
            int32_t some = 0; /* of the elements' width, so that they add up side by side */ \
            for (int32_t i = 0; i < count; i++) some += block[i] == (type)(pattern);     \
            same += some;                                                                \
        }                                                                                \
        for (int64_t i = 0; i < first; i++) other |= at[i] ^ (type)(pattern);            \
        for (int64_t i = last; i < end; i++) other |= at[i] ^ (type)(pattern);           \
        *spilled = other != 0;                                                           \
    }
    FOR_EACH_KIND(LOOK)
    return same;
}

/* Likewise of several sets. */
void inspect(const output_tensor *t, const uint32_t *numbers, int64_t count, int64_t *left, uint8_t *spilled) {
    for (int64_t n = 0; n < count; n++) {
        int around;
        left[n] = look_at(t, numbers[n], &around);
        spilled[n] = (uint8_t)around;
    }
}

static int is_as_called(const output_tensor *t, int64_t outputs, uint32_t number, int called) {
    for (int64_t i = 0; i < outputs; i++) {
        int spilled;
        const int64_t left = look_at(&t[i], number, &spilled);
        if (spilled || left != (called ? 0 : t[i].bytes / t[i].item_bytes)) return 0;
    }
    return 1;
}

/* The sets that a run of so many calls must have called, in order, judging by the outputs as they are now, and the states
 * of the chain from which their activations were made. */
void walk(chain *c, int64_t calls, uint32_t *called, uint64_t *states) {
    for (int64_t k = 0; k < calls; k++) {
        called[k] = (uint32_t)chain_step(c);
        states[k] = c->state;
    }
}

/* Likewise, and whether at first sight all is well: outputs of all calls written, nothing around them, and nothing of sets
 * that were not called. Each output is looked at when the chain has just read it. */
int32_t survey(chain *c, const output_tensor *t, int64_t calls, uint32_t *called, uint64_t *states) {
    int32_t well = 1;
    for (int64_t k = 0; k < calls; k++) {
        called[k] = (uint32_t)chain_step(c);
        states[k] = c->state;
        if (k && well) well = is_as_called(t, c->outputs, called[k - 1], 1);
    }
    if (calls && well) well = is_as_called(t, c->outputs, called[calls - 1], 1);
    for (int64_t k = 0; k < c->remaining && well; k++) well = is_as_called(t, c->outputs, c->pool[k], 0);
    return well;
}

/* For runners that are no C programs. */
int64_t step(chain *c) { return chain_step(c); }

/* What those calls were given for the chain's input at `place`: one after the other, `pitch` bytes apart. */
void remake(const chain *c, int64_t place, const uint32_t *numbers, const uint64_t *states, int64_t count, uint8_t *to,
            int64_t pitch) {
    for (int64_t n = 0; n < count; n++)
        chain_make(&c->input[place], numbers[n], states[n] + (uint64_t)place, to + n * pitch);
}

/* Likewise of `row_count` rows of each only, dense: `rows` counts all that `chain_make` makes, in its order. */
void remake_rows(const chain *c, int64_t place, const uint32_t *numbers, const uint64_t *states, int64_t count,
                 const int64_t *rows, int64_t row_count, uint8_t *to) {
    const chain_input *input = &c->input[place];
    const int64_t columns = input->shape[3];
    for (int64_t n = 0; n < count; n++, rows += row_count)
        for (int64_t r = 0; r < row_count; r++, to += columns * input->item_bytes) {
            const int64_t k = rows[r] % input->shape[2], j = rows[r] / input->shape[2] % input->shape[1];
            const int64_t i = rows[r] / input->shape[2] / input->shape[1];
            const uint8_t *from = input->start + numbers[n] * input->pitch +
                                  (i * input->stride[0] + j * input->stride[1] + k * input->stride[2]) * input->item_bytes;
            const uint64_t state = states[n] + (uint64_t)place + (uint64_t)(rows[r] + 1) * 0x9E3779B97F4A7C15u;
            scale_row(to, 1, from, input->stride[3], columns, input->item_bytes, (uint32_t)chain_mixed(state));
        }
}

/* Some places of some sets, one after the other: `bytes` of each; in a set they are `step` bytes apart. */
void cut(const uint8_t *start, int64_t pitch, const uint32_t *numbers, int64_t count, const int64_t *places,
         int64_t place_count, int64_t step, int64_t bytes, uint8_t *to) {
    for (int64_t n = 0; n < count; n++)
        for (int64_t p = 0; p < place_count; p++, to += bytes)
            memcpy(to, start + numbers[n] * pitch + places[p] * step, (size_t)bytes);
}

/* The comparer's rule. See `comparer.Rule`. */
typedef struct {
    double eps, least;        /* a unit is eps times scale, and `least` at least */
    double roundings;         /* that every element may have besides one in the last place */
    double largest, roundest; /* in units; and how many times its own roundings an error may be */
    double accumulator, mean, line;
    double mean_rounding, mean_spread;
} rule;

static inline double binade(double value) { /* 2 ** floor(log2 |value|) */
    uint64_t bits;
    memcpy(&bits, &value, 8);
    bits &= (uint64_t)0x7FF << 52;
    memcpy(&value, &bits, 8);
    return value;
}

static inline int mean_is_within(double errors, double places, double count, const rule *r, double base) {
    const double allowed = places / count * (r->mean_rounding + r->mean_spread / sqrt(count)) + (r->accumulator + base);
    return errors / count <= allowed;
}

#define JUDGE(type, value_of)                                                                        \
    for (int64_t i = 0; i < count; i++) {                                                            \
        const double value = value_of(((const type *)found)[i]);                                     \
        const int32_t agree = (value == exact[i]) | ((value != value) & (exact[i] != exact[i]));     \
        const double scaled = scales[i] * r->eps, per_unit = 1 / (scaled < r->least ? r->least : scaled); \
        const double binary = binade(exact[i]) * r->eps;                                             \
        const double place = (binary < r->least ? r->least : binary) * per_unit;                     \
        const double last = place < INFINITY ? place : 0;                                            \
        const double error = agree ? 0 : fabs(value - exact[i]) * per_unit;                          \
        const double own = last + r->roundings, most = own + r->largest, once = own * r->roundest;   \
        wrong |= !(error <= (most < once ? most : once)) & !agree;                                   \
        errors[i] = error;                                                                           \
        places[i] = last;                                                                            \
    }

static int32_t judge_row(double *restrict errors, double *restrict places, const void *found, int64_t count,
                         int64_t item_bytes, const double *restrict exact, const double *restrict scales, const rule *r) {
    int32_t wrong = 0;
    if (item_bytes == 4) {
        JUDGE(float, )
    } else {
        JUDGE(uint16_t, widen)
    }
    return wrong;
}

static double sum_of(const double *values, int64_t count) {
    double lanes[8] = {0}, sum = 0;
    for (int64_t i = 0; i < count / 8 * 8; i += 8)
        for (int64_t lane = 0; lane < 8; lane++) lanes[lane] += values[i + lane];
    for (int64_t i = count / 8 * 8; i < count; i++) sum += values[i];
    for (int64_t lane = 0; lane < 8; lane++) sum += lanes[lane];
    return sum;
}

/* What one output of some calls should be, one after the other, dense. */
typedef struct {
    const double *exact, *scales;
    int64_t rows, columns;
    rule rule;
} answer;

/* Whether `comparer.compare` would find nothing wrong with one call's output. */
static int32_t accept_one(const uint8_t *found, int64_t item_bytes, const answer *a, int64_t number, double *room) {
    const int64_t rows = a->rows, columns = a->columns;
    const int lines = rows > 1 && columns > 1;
    const double *exact = a->exact + number * rows * columns, *scales = a->scales + number * rows * columns;
    double *errors = room, *places = room + columns, *column_errors = room + 2 * columns, *column_places = room + 3 * columns;
    double all_errors = 0, all_places = 0;
    int32_t well = 1;
    memset(column_errors, 0, (size_t)columns * 2 * sizeof(double));
    for (int64_t row = 0; row < rows && well; row++, found += columns * item_bytes, exact += columns, scales += columns) {
        well = !judge_row(errors, places, found, columns, item_bytes, exact, scales, &a->rule);
        const double row_errors = sum_of(errors, columns), row_places = sum_of(places, columns);
        all_errors += row_errors;
        all_places += row_places;
        if (!lines) continue;
        well &= mean_is_within(row_errors, row_places, (double)columns, &a->rule, a->rule.line);
        for (int64_t i = 0; i < columns; i++) column_errors[i] += errors[i];
        for (int64_t i = 0; i < columns; i++) column_places[i] += places[i];
    }
    well &= mean_is_within(all_errors, all_places, (double)(rows * columns), &a->rule, a->rule.mean);
    for (int64_t i = 0; lines && i < columns && well; i++)
        well = mean_is_within(column_errors[i], column_places[i], (double)rows, &a->rule, a->rule.line);
    return well;
}

/* Whether all outputs of set numbers[n] are surely right, where they should be the answers cases[n] of group which[n]. A no
 * is for the comparer to look at. */
int32_t accept(const output_tensor *t, const answer *groups, int64_t outputs, const int64_t *which, const uint32_t *numbers,
               int64_t count, const int64_t *cases) {
    int64_t most = 0;
    for (int64_t n = 0; n < count; n++)
        for (int64_t i = 0; i < outputs; i++) {
            const int64_t columns = groups[which[n] * outputs + i].columns;
            most = columns > most ? columns : most;
        }
    double *room = malloc((size_t)most * 4 * sizeof(double));
    int32_t well = room != NULL;
    for (int64_t n = 0; n < count && well; n++)
        for (int64_t i = 0; i < outputs && well; i++) {
            const uint8_t *found = t[i].base + numbers[n] * t[i].pitch + t[i].offset;
            well = accept_one(found, t[i].item_bytes, &groups[which[n] * outputs + i], cases[n], room);
        }
    free(room);
    return well;
}

/* Whether two outputs of so many bytes are the same in so many sets, bit by bit. */
int32_t same(const uint8_t *before, int64_t before_pitch, const uint8_t *after, int64_t after_pitch, int64_t bytes,
             const uint32_t *numbers, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        if (memcmp(before + numbers[n] * before_pitch, after + numbers[n] * after_pitch, (size_t)bytes)) return 0;
    return 1;
}

/* For runners in Python. */
uint64_t arithmetic(void) { return settings_arithmetic(); }

void restore_arithmetic(uint64_t before) { settings_restore_arithmetic(before); }

void read_settings(settings *into) { settings_read(into); }

/* The name of what differs, or NULL. */
const char *changed_setting(const settings *before, const settings *after, int requests_between) {
    return settings_changed(before, after, requests_between ? UNTOUCHED : 0);
}
