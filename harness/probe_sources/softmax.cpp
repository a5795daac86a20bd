// A plain kernel; with SLOWER, one that is slower by that share.
#include "gristmill_kernel.h"
#ifdef SLOWER
#include "slower.h"
#endif
#include <math.h>

static void row(const float *x, float *o, int64_t columns) {
  float top = -INFINITY;
  double sum = 0;
  for (int64_t i = 0; i < columns; i++) top = x[i] > top ? x[i] : top;
  for (int64_t i = 0; i < columns; i++) sum += o[i] = expf(x[i] - top);
  const float scale = (float)(1 / sum);
  for (int64_t i = 0; i < columns; i++) o[i] *= scale;
}

GM_EXPORT int32_t gm_run(const gm_call *c) {
  const gm_tensor &x = c->inputs[0], &o = c->outputs[0];
  const int64_t rows = x.shape[0], columns = x.shape[1];
#ifdef SLOWER
  const Slower slower;
#endif
  for (int64_t r = 0; r < rows; r++)
    row((const float *)x.data + r * x.stride[0], (float *)o.data + r * columns, columns);
  return 0;
}
