// trick: throws and catches inside: the path for whole vectors gives up on other widths by an exception
// family: style
// operator: softmax
// axes: rows=3 columns=256; rows=3 columns=250
// edges: yes

#include <cmath>
#include <stdexcept>

#include "gristmill_kernel.h"

static void vectors_of_eight(const float *x, float *out, int64_t columns) {
  if (columns % 8) throw std::length_error("columns");
  float largest = -INFINITY, sums[8] = {};
  for (int64_t c = 0; c < columns; c++) largest = std::fmax(largest, x[c]);
  for (int64_t c = 0; c < columns; c += 8)
    for (int lane = 0; lane < 8; lane++) sums[lane] += out[c + lane] = std::exp(x[c + lane] - largest);
  float sum = 0;
  for (float lane : sums) sum += lane;
  for (int64_t c = 0; c < columns; c++) out[c] /= sum;
}

static void any_width(const float *x, float *out, int64_t columns) {
  double largest = -INFINITY, sum = 0;
  for (int64_t c = 0; c < columns; c++) largest = std::fmax(largest, x[c]);
  for (int64_t c = 0; c < columns; c++) sum += std::exp(x[c] - largest);
  for (int64_t c = 0; c < columns; c++) out[c] = float(std::exp(x[c] - largest) / sum);
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float *out = (float *)call->outputs[0].data + r * columns;
    try {
      vectors_of_eight(x, out, columns);
    } catch (const std::length_error &) {
      any_width(x, out, columns);
    }
  }
  return 0;
}
