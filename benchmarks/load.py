"""Busy neighbours for a benchmark: processes of ordinary priority that add up and multiply without end.

`python -m benchmarks.load` is one of them; it ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

STREAM_BYTES = 64 << 20
SQUARE = 256
PASSES = 4
PRODUCTS = 30


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many busy processes, for as long as the context lasts."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes = [subprocess.Popen([sys.executable, "-m", "benchmarks.load"], env=environment) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Memory for a while, then arithmetic, as servers do."""
    parent = os.getppid()
    source = np.ones(STREAM_BYTES // 8)
    target = np.empty_like(source)
    square = np.full((SQUARE, SQUARE), 0.5)
    while os.getppid() == parent:
        for _ in range(PASSES):
            np.add(source, 1.0, out=target)
        for _ in range(PRODUCTS):
            square @ square


if __name__ == "__main__":
    main()
