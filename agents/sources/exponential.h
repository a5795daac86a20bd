/* exp of a vector of floats, to about one unit in the last place: 2^n times a polynomial in the rest. */
#ifndef GRISTMILL_EXPONENTIAL_H
#define GRISTMILL_EXPONENTIAL_H

#include "vector.h"

namespace {

/* Below the smallest normal number it returns 0, above the largest +inf; NaN stays NaN. Taylor's series to degree 7 on
 * |r| <= ln(2) / 2 leaves a relative error of 6e-9, and ln(2) is subtracted in two parts so that r is exact. */
INLINE floats exponential(floats x) {
    constexpr float LOWEST = -87.33654f, HIGHEST = 88.72283f, ROUNDER = 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    const floats bounded = select(x > HIGHEST, floats{} + HIGHEST, select(x < LOWEST, floats{} + LOWEST, x));
    const floats shifted = bounded * 1.44269504088896341f + ROUNDER, n = shifted - ROUNDER;
    const floats r = (bounded - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
    floats p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    const ints exponent = (ints)shifted - 0x4b400000; /* n as an integer: the low bits of n + ROUNDER */
    const ints half = exponent >> 1; /* in two steps, as 2^128 has no bits of its own */
    const floats scaled = p * (floats)((half + 127) << 23) * (floats)((exponent - half + 127) << 23);
    return select(x > HIGHEST, floats{} + __builtin_inff(), select(x < LOWEST, floats{}, scaled));
}

}  // namespace

#endif
