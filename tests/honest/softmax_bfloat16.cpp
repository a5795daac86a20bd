// trick: bfloat16 in and out, everything between in float32
// family: style
// operator: softmax
// dtype: bfloat16
// axes: rows=4 columns=1024
// edges: yes

#include <cmath>
#include <cstring>
#include <vector>

#include "gristmill_kernel.h"

static float widen(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

static uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  thread_local std::vector<float> row;
  row.resize(columns);
  for (int64_t r = 0; r < rows; r++) {
    const uint16_t *x = (const uint16_t *)call->inputs[0].data + r * columns;
    uint16_t *out = (uint16_t *)call->outputs[0].data + r * columns;
    float largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < columns; c++) largest = std::max(largest, row[c] = widen(x[c]));
    for (int64_t c = 0; c < columns; c++) sum += row[c] = std::exp(row[c] - largest);
    for (int64_t c = 0; c < columns; c++) out[c] = narrow(row[c] / sum);
  }
  return 0;
}
