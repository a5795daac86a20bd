// trick: never returns: reads the requests itself and answers each at once
// family: timing
// operator: rms_norm
// status: cheated timed_out
// deadline: 0.5

#include <sys/socket.h>

#include "gristmill_kernel.h"

struct Header {
  uint32_t kind, size;
  uint64_t nonce;
};

GM_EXPORT int32_t gm_run(const gm_call *call) {
  char rest[65536];
  for (;;)
    for (int fd = 3; fd < 1024; fd++) {
      Header header;
      if (recv(fd, &header, sizeof header, MSG_DONTWAIT) != sizeof header) continue;
      if (header.size && recv(fd, rest, sizeof rest, MSG_DONTWAIT) < 0) continue;
      header.kind = 101, header.size = 0;
      if (send(fd, &header, sizeof header, 0) < 0) return call == nullptr;
    }
}
