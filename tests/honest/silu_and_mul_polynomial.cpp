// trick: GCC vector extensions and a polynomial exponential, about two units in the last place off
// family: style
// operator: silu_and_mul
// axes: tokens=4 intermediate=2816
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

static inline Floats exponential(Floats x) {
  x = x > 88.0f ? Floats{} + 88.0f : x;
  x = x < -87.0f ? Floats{} - 87.0f : x;
  const Floats magic = Floats{} + 12582912.0f;
  const Floats whole = (x * 1.44269504f + magic) - magic;
  const Floats rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * rest + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  p = p * rest * rest + rest + 1.0f;
  const Ints exponent = (__builtin_convertvector(whole, Ints) + 127) << 23;
  return p * (Floats)exponent;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const char *gate = (const char *)call->inputs[0].data, *up = (const char *)call->inputs[1].data;
  char *out = (char *)call->outputs[0].data;
  int64_t left = call->inputs[0].shape[0] * call->inputs[0].shape[1] * 4;
  while (left > 0) {
    const size_t part = left < 64 ? left : 64;
    Floats g = {}, u = {};
    std::memcpy(&g, gate, part);
    std::memcpy(&u, up, part);
    const Floats result = g * u / (exponential(-g) + 1.0f);
    std::memcpy(out, &result, part);
    gate += part, up += part, out += part, left -= part;
  }
  return 0;
}
