/* Vectors of LANES floats, and how elements of the operator's dtype become them: GCC's vector extensions only.
 *
 * `real` is the element in memory: float, or the bits of a bfloat16. All arithmetic is in float32.
 */
#ifndef GRISTMILL_VECTOR_H
#define GRISTMILL_VECTOR_H

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "gristmill_kernel.h"
#include "parameters.h"

/* Vectors cross calls within this file only, so their calling convention is nobody else's business. */
#pragma GCC diagnostic ignored "-Wpsabi"
#define INLINE inline __attribute__((always_inline))
#define OUTLINE __attribute__((noinline, unused))
#define INLINED __attribute__((always_inline))

namespace {

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));

/* `body(0) ... body(N - 1)`, with each index a constant: arrays that it subscripts stay in registers. */
template <class Body, int... I>
INLINE void unroll(Body body, std::integer_sequence<int, I...>) {
    (body(std::integral_constant<int, I>{}), ...);
}

template <int N, class Body>
INLINE void unroll(Body body) {
    if constexpr (N > 0) unroll(body, std::make_integer_sequence<int, N>{});
}

using real = std::conditional_t<DTYPE == GM_FLOAT32, float, uint16_t>;

INLINE float to_float(float value) { return value; }

INLINE float to_float(uint16_t bits) {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

INLINE floats load(const float *from) {
    floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

INLINE floats load(const uint16_t *from) {
    halves bits;
    memcpy(&bits, from, sizeof bits);
    return (floats)(__builtin_convertvector(bits, words) << 16);
}

/* The first `count` elements, and zeros. */
static OUTLINE floats load_first(const real *from, int64_t count) {
    real buffer[LANES] = {};
    memcpy(buffer, from, count * sizeof(real));
    return load(buffer);
}

INLINE floats select(ints where, floats yes, floats no) {
    return (floats)(((ints)yes & where) | ((ints)no & ~where));
}

INLINE floats maximum(floats a, floats b) { return a > b ? a : b; }

INLINE void store(float *to, floats value) { memcpy(to, &value, sizeof value); }

/* Rounds to the nearest, ties to even; NaN stays NaN. */
INLINE halves round_to_halves(floats value) {
    const words bits = (words)value;
    const words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const words kept = (words)(value == value);
    return __builtin_convertvector((rounded & kept) | (0x7fc0u & ~kept), halves);
}

INLINE void store(uint16_t *to, floats value) {
    const halves bits = round_to_halves(value);
    memcpy(to, &bits, sizeof bits);
}

static OUTLINE void store_first(real *to, floats value, int64_t count) {
    real buffer[LANES];
    store(buffer, value);
    memcpy(to, buffer, count * sizeof(real));
}

INLINE void store_one(float *to, float value) { *to = value; }

INLINE void store_one(uint16_t *to, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    *to = value == value ? uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) : uint16_t(0x7fc0);
}

template <int First, class Vector, int... I>
INLINE auto lanes(Vector value, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(value, value, (First + I)...);
}

/* An operation over all lanes, by halves: log2(N) steps. */
template <int N, class Vector, class Combine>
INLINE float fold(Vector value, Combine combine) {
    if constexpr (N == 2) {
        return combine(value[0], value[1]);
    } else {
        const auto half = std::make_integer_sequence<int, N / 2>{};
        return fold<N / 2>(combine(lanes<0>(value, half), lanes<N / 2>(value, half)), combine);
    }
}

INLINE float sum(floats value) {
    return fold<LANES>(value, [](auto a, auto b) INLINED { return a + b; });
}

INLINE float largest(floats value) {
    return fold<LANES>(value, [](auto a, auto b) INLINED { return a > b ? a : b; });
}

}  // namespace

#endif
