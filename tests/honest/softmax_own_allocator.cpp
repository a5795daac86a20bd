// trick: an arena per thread, which grows when a row is longer than ever, is used again by every call and never freed
// family: style
// operator: softmax
// axes: rows=4 columns=800
// edges: yes

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

#include "gristmill_kernel.h"

namespace {

class Arena {
 public:
  ~Arena() { std::free(memory); }

  float *take(int64_t count) {
    const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    if (bytes > room) {
      std::free(memory);
      room = std::max(bytes, 2 * room);
      memory = (char *)std::aligned_alloc(64, room);
      if (!memory) throw std::bad_alloc();
    }
    return (float *)memory;
  }

 private:
  char *memory = nullptr;
  size_t room = 0;
};

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static thread_local Arena arena;
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  float *powers = arena.take(columns);
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float *out = (float *)call->outputs[0].data + r * columns;
    float largest = x[0];
    for (int64_t c = 1; c < columns; c++) largest = x[c] > largest || x[c] != x[c] ? x[c] : largest;
    double sum = 0;
    for (int64_t c = 0; c < columns; c++) sum += powers[c] = std::exp(x[c] - largest);
    for (int64_t c = 0; c < columns; c++) out[c] = (float)(powers[c] / sum);
  }
  return 0;
}
