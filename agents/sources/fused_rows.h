/* Parts of fused operators on one row, and how they pass their results on.
 *
 * A value gives the elements of a row from a place on, as a vector: `value(i, some)`, where `some` says whether the
 * row has a whole vector there. Parts compute when they are asked, so that what feeds an element-wise part stays in
 * registers. A part with a sum over the row takes it at once, and asks for its input again for every element: that is
 * either computed again, or read from where it was kept.
 */
#ifndef GRISTMILL_FUSED_ROWS_H
#define GRISTMILL_FUSED_ROWS_H

#include <cstdlib>

#include "exponential.h"
#include "rows.h"

namespace {

/* Rows of a tensor, `step` elements apart. */
struct Rows {
    real *data;
    int64_t step;
    INLINE real *operator[](int64_t row) const { return data + row * step; }
};

INLINE Rows rows_of(const gm_tensor &tensor) { return {(real *)tensor.data, tensor.stride[0]}; }

/* Memory of one call. Without `data` there is none left. */
struct Buffer {
    void *const data;
    explicit Buffer(int64_t bytes) : data(aligned_alloc(64, (bytes + 63) / 64 * 64)) {}
    Buffer(const Buffer &) = delete;
    ~Buffer() { free(data); }
};

/* A row as it lies in memory. */
struct Given {
    const real *row;
    template <class Some>
    INLINE floats operator()(int64_t i, Some some) const {
        return some.load(row + i);
    }
};

INLINE Given at(Rows rows, int64_t row) { return {rows[row]}; }

/* A value that whoever sums over it leaves in memory, for those that ask again. It is rounded as the engine rounds it. */
template <class Value>
struct Kept : Given {
    Value value;
    real *to;
    INLINE Kept(Value value, real *to) : Given{to}, value(value), to(to) {}
};

template <int KEEP, class Value>
INLINE auto keep(Value value, real *row) {
    if constexpr (KEEP)
        return Kept<Value>(value, row);
    else
        return value;
}

/* A value that is asked for in order, for the first time. */
template <class Value, class Some>
INLINE floats at_first(const Value &value, int64_t i, Some some) {
    return value(i, some);
}

template <class Value, class Some>
INLINE floats at_first(const Kept<Value> &kept, int64_t i, Some some) {
    some.store(kept.to + i, kept.value(i, some));
    return kept(i, some);
}

/* The lanes that the row has, and `other` in those past its end, where a value may be anything. */
INLINE floats within(floats value, Whole, float = 0.0f) { return value; }

INLINE floats within(floats value, First some, float other = 0.0f) {
    float buffer[LANES];
    memcpy(buffer, &value, sizeof value);
    for (int64_t i = some.count; i < LANES; i++) buffer[i] = other;
    memcpy(&value, buffer, sizeof value);
    return value;
}

template <class X, class Residual>
INLINE auto residual_add(X x, Residual residual) {
    return [=](int64_t i, auto some) INLINED { return residual(i, some) + x(i, some); };
}

template <class Gate, class Up>
INLINE auto silu_and_mul(Gate gate, Up up) {
    return [=](int64_t i, auto some) INLINED {
        const floats value = gate(i, some);
        return value / (1.0f + exponential(-value)) * up(i, some);
    };
}

template <class X, class Weight>
INLINE auto rms_norm(int64_t size, X x, Weight weight, double eps) {
    const float squares = sum_over_row(size, [&](int64_t i, auto some) INLINED {
        const floats value = within(at_first(x, i, some), some);
        return value * value;
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / float(size) + float(eps));
    return [=](int64_t i, auto some) INLINED { return x(i, some) * scale * weight(i, some); };
}

template <class X>
INLINE auto softmax(int64_t size, X x) {
    floats most = floats{} - __builtin_inff();
    for_row<Whole>(size, [&](int64_t i, auto some) INLINED {
        most = maximum(within(at_first(x, i, some), some, -__builtin_inff()), most);
    });
    const float level = largest(most);
    const float total = sum_over_row(size, [&](int64_t i, auto some) INLINED {
        return within(exponential(x(i, some) - level), some);
    });
    const float scale = 1.0f / total;
    return [=](int64_t i, auto some) INLINED { return exponential(x(i, some) - level) * scale; };
}

}  // namespace

#endif
