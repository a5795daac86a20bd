// A call that holds a `Slower` takes longer by SLOWER: that share of what it took until the end of its scope. The share is
// read, not known, so that kernels differ in it alone.
#include <time.h>

static volatile double slower_share = SLOWER;

struct Slower {
  const long long start_ns = now_ns();

  ~Slower() {
    const long long end_ns = now_ns(), until_ns = end_ns + (long long)((end_ns - start_ns) * slower_share);
    while (now_ns() < until_ns) {
    }
  }

  static long long now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
  }
};
