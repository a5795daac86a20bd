// trick: malloc and free of double scratch in every call
// family: style
// operator: softmax
// axes: rows=4 columns=512
// edges: yes

#include <math.h>
#include <stdlib.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  double *scratch = (double *)malloc(columns * sizeof(double));
  if (scratch == nullptr) return 12;
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    double largest = x[0], sum = 0;
    for (int64_t c = 0; c < columns; c++) largest = x[c] > largest ? x[c] : largest;
    for (int64_t c = 0; c < columns; c++) sum += scratch[c] = exp(x[c] - largest);
    for (int64_t c = 0; c < columns; c++) ((float *)call->outputs[0].data)[r * columns + c] = (float)(scratch[c] / sum);
  }
  free(scratch);
  return 0;
}
