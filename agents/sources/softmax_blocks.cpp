/* out = exp(x - max) / sum(exp(x - max)) along each row, in two passes instead of three: exponentials under the maximum
 * so far, block by block, then for each block what the final maximum and the sum make of them. x is read once, and each
 * exponential computed once. With SPREAD, threads share each row; without, they share out the rows.
 *
 * Tensors: x, out [rows, columns]. Entries of -inf give 0; a row of nothing else gives NaN, as does a NaN or
 * +inf anywhere in it.
 */
#include <omp.h>

#include <cstdlib>

#include "exponential.h"

constexpr int STREAM_FROM_KIB = 0; /* what was just written is read again */

#include "rows.h"

namespace {

constexpr float LOWEST = -__builtin_inff();

/* Of the part of a row that one thread has. */
struct Part {
    float most, total;
};

/* Where the exponentials wait: in `out` where that loses nothing, else in a buffer with room for a whole last vector. */
struct Row {
    const real *x;
    real *out;
    float *kept, *levels; /* one per column; one per block */
};

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE float larger(float a, float b) { return a > b ? a : b; }
INLINE float exponential_of(float x) { return exponential(floats{} + x)[0]; }

/* What to subtract under that maximum: of nothing but masked entries so far, nothing. */
INLINE float level_under(float most) { return most == LOWEST ? 0.0f : most; }

INLINE floats load_or_lowest(const real *from, Whole some) { return some.load(from); }

INLINE floats load_or_lowest(const real *from, First some) {
    float buffer[LANES];
    for (int i = 0; i < LANES; i++) buffer[i] = i < some.count ? to_float(from[i]) : LOWEST;
    floats value;
    memcpy(&value, buffer, sizeof value);
    return value;
}

INLINE float maximum_of(const real *x, int64_t size) {
    floats most[UNROLL];
    unroll<UNROLL>([&](auto u) INLINED { most[u] = floats{} + LOWEST; });
    int64_t i = 0;
    for (; i + UNROLL * LANES <= size; i += UNROLL * LANES)
        unroll<UNROLL>([&](auto u) INLINED { most[u] = maximum(load(x + i + u * LANES), most[u]); });
    for (; i + LANES <= size; i += LANES) most[0] = maximum(load(x + i), most[0]);
    if (i < size) most[0] = maximum(load_or_lowest(x + i, First{size - i}), most[0]);
    unroll<UNROLL - 1>([&](auto u) INLINED { most[0] = maximum(most[0], most[u + 1]); });
    return largest(most[0]);
}

template <class Some>
INLINE void keep(const Row &row, int64_t column, floats value, Some some) {
    if constexpr (DTYPE == GM_FLOAT32) some.store(row.out + column, value);
    else store(row.kept + column, value);
}

template <class Some>
INLINE floats kept(const Row &row, int64_t column, Some some) {
    if constexpr (DTYPE == GM_FLOAT32) return some.load(row.out + column);
    else return load(row.kept + column);
}

Part exponentials(const Row &row, int64_t columns, int64_t first, int64_t last) {
    Part part = {LOWEST, 0.0f};
    for (int64_t block = first; block < last; block++) {
        const int64_t start = block * BLOCK, size = smaller(BLOCK, columns - start);
        const float most = larger(maximum_of(row.x + start, size), part.most), level = level_under(most);
        const float total = sum_over_row(size, [&](int64_t i, auto some) INLINED {
            const floats value = exponential(load_or_lowest(row.x + start + i, some) - level);
            keep(row, start + i, value, some);
            return value;
        });
        const float before = part.most == LOWEST ? part.total : part.total * exponential_of(part.most - level);
        part = {most, before + total};
        row.levels[block] = level;
    }
    return part;
}

Part both(Part a, Part b) {
    const float most = larger(a.most, b.most), level = level_under(most);
    const float first = a.most == LOWEST ? a.total : a.total * exponential_of(a.most - level);
    const float second = b.most == LOWEST ? b.total : b.total * exponential_of(b.most - level);
    return {most, first + second};
}

void correct(const Row &row, int64_t columns, int64_t first, int64_t last, Part all) {
    const float level = level_under(all.most), scale = 1.0f / all.total;
    for (int64_t block = first; block < last; block++) {
        const int64_t start = block * BLOCK;
        const float factor = exponential_of(row.levels[block] - level) * scale;
        for_row<Whole>(smaller(BLOCK, columns - start), [&](int64_t i, auto some) INLINED {
            some.store(row.out + start + i, kept(row, start + i, some) * factor);
        });
    }
}

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
    const int64_t rows = x.shape[0], columns = x.shape[1], blocks = (columns + BLOCK - 1) / BLOCK;
    const bool parallel = THREADS > 1 && (SPREAD ? blocks > 1 : rows > 1) && rows * columns >= PARALLEL_FROM;
    /* Rows at work at a time: with SPREAD all of them, so that threads wait for one another only once. */
    const int64_t places = SPREAD ? rows : parallel ? THREADS : 1;
    const int64_t width = (blocks + 15) / 16 * 16 + (DTYPE == GM_FLOAT32 ? 0 : (columns + 31) / 16 * 16);
    float *const buffer = (float *)aligned_alloc(64, places * width * sizeof(float));
    Part *const parts = (Part *)malloc(places * THREADS * sizeof(Part));
    if (!buffer || !parts) return free(buffer), free(parts), 1;
    const auto row_at = [&](int64_t row, int64_t place) {
        float *const own = buffer + place * width;
        return Row{input_row(x, row), output_row(out, row), own + (blocks + 15) / 16 * 16, own};
    };
    if (!parallel) {
        for (int64_t row = 0; row < rows; row++) {
            const Row own = row_at(row, SPREAD ? row : 0);
            correct(own, columns, 0, blocks, exponentials(own, columns, 0, blocks));
        }
    } else if (!SPREAD) {
#pragma omp parallel for schedule(static) num_threads(THREADS)
        for (int64_t row = 0; row < rows; row++) {
            const Row own = row_at(row, omp_get_thread_num());
            correct(own, columns, 0, blocks, exponentials(own, columns, 0, blocks));
        }
    } else {
#pragma omp parallel num_threads(THREADS)
        {
            const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
            const int64_t first = blocks * thread / threads, last = blocks * (thread + 1) / threads;
            for (int64_t row = 0; row < rows; row++)
                parts[row * threads + thread] = exponentials(row_at(row, row), columns, first, last);
#pragma omp barrier
            for (int64_t row = 0; row < rows; row++) {
                Part all = parts[row * threads];
                for (int64_t t = 1; t < threads; t++) all = both(all, parts[row * threads + t]);
                correct(row_at(row, row), columns, first, last, all);
            }
        }
    }
    free(buffer), free(parts);
    return 0;
}
