// trick: object oriented: an abstract row kernel, made by a factory and held by unique_ptr, called through std::function
// family: style
// operator: rms_norm
// axes: tokens=3 hidden=200
// edges: yes

#include <cmath>
#include <functional>
#include <memory>

#include "gristmill_kernel.h"

namespace {
struct Row {
  virtual ~Row() = default;
  virtual void operator()(const float *x, const float *weight, float *out) const = 0;
};

class Norm final : public Row {
 public:
  Norm(int64_t hidden, double eps) : hidden_(hidden), eps_(eps) {}
  void operator()(const float *x, const float *weight, float *out) const override {
    double sum = 0;
    for (int64_t h = 0; h < hidden_; ++h) sum += double(x[h]) * x[h];
    const double scale = 1 / std::sqrt(sum / double(hidden_) + eps_);
    for (int64_t h = 0; h < hidden_; ++h) out[h] = float(x[h] * scale * weight[h]);
  }

 private:
  int64_t hidden_;
  double eps_;
};

std::unique_ptr<Row> make(const gm_call &call) { return std::make_unique<Norm>(call.inputs[0].shape[1], call.scalars[0]); }
}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const auto row = make(*call);
  const std::function<void(int64_t)> one = [&](int64_t t) {
    const int64_t start = t * call->inputs[0].shape[1];
    (*row)(static_cast<const float *>(call->inputs[0].data) + start, static_cast<const float *>(call->inputs[1].data),
           static_cast<float *>(call->outputs[0].data) + start);
  };
  for (int64_t t = 0; t < call->inputs[0].shape[0]; ++t) one(t);
  return 0;
}
