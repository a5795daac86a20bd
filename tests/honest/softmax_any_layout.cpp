// trick: all rows advance together, column by column, whatever the strides are
// family: style
// operator: softmax
// axes: rows=12 columns=50 x_RC:1,12; rows=3 columns=50 x_RC:0,1
// layout: any
// edges: yes

#include <cmath>
#include <memory>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const auto largest = std::make_unique<float[]>(rows), sum = std::make_unique<float[]>(rows);
  const auto value = [&](int64_t r, int64_t c) {
    return static_cast<const float *>(x.data)[r * x.stride[0] + c * x.stride[1]];
  };
  float *to = static_cast<float *>(out.data);
  for (int64_t r = 0; r < rows; r++) largest[r] = -INFINITY;
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = 0; r < rows; r++) largest[r] = std::max(largest[r], value(r, c));
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = 0; r < rows; r++) sum[r] += to[r * columns + c] = std::exp(value(r, c) - largest[r]);
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = 0; r < rows; r++) to[r * columns + c] /= sum[r];
  return 0;
}
