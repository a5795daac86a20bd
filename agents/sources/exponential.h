/* exp of a vector of floats, to about one unit in the last place: 2^n times a polynomial in the rest. */
#ifndef GRISTMILL_EXPONENTIAL_H
#define GRISTMILL_EXPONENTIAL_H

#include "vector.h"

namespace {

/* 0 where the result would be below the smallest normal number, +inf where above the largest, NaN for NaN.
 *
 * x = n ln(2) + r with |r| <= ln(2) / 2; ln(2) is subtracted in two parts, so that r keeps its bits. The polynomial
 * 1 + r + r^2 q(r) has q fitted for the least relative error (4e-9); n is added to the exponent of its value.
 */
INLINE floats exponential(floats x) {
    constexpr float LOWEST = -87.33654f, HIGHEST = 88.72283f;
    constexpr float ROUNDER = 12582912.0f; /* 1.5 * 2^23: adding it rounds, and leaves n in the low bits */
    const floats shifted = x * 1.44269504088896341f + ROUNDER, n = shifted - ROUNDER;
    const floats r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
    floats q = r * 0.0013814539415761828f + 0.00836874544620514f;
    q = q * r + 0.04166838899254799f;
    q = q * r + 0.1666652113199234f;
    q = q * r + 0.4999999403953552f;
    const floats p = q * (r * r) + r + 1.0f;
    const floats scaled = (floats)((words)p + ((words)shifted << 23));
    return select(x < LOWEST, floats{}, select(x <= HIGHEST, scaled, x + __builtin_inff()));
}

}  // namespace

#endif
