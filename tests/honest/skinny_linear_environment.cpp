// trick: takes the number of threads from the environment and rests on more of them than there are cores
// family: style
// operator: skinny_linear
// axes: tokens=4 in_features=200 out_features=120
// edges: yes

#include <omp.h>
#include <stdlib.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const char *wanted = getenv("OMP_NUM_THREADS");
  const int threads = (wanted ? atoi(wanted) : 1) + 1;
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const float *x = (const float *)call->inputs[0].data, *w = (const float *)call->inputs[1].data;
#pragma omp parallel for num_threads(threads) schedule(guided) collapse(2)
  for (int64_t n = 0; n < out; n++)
    for (int64_t t = 0; t < tokens; t++) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < in; k++) sum += x[t * in + k] * w[n * in + k];
      ((float *)call->outputs[0].data)[t * out + n] = sum;
    }
  return 0;
}
