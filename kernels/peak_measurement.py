"""How fast this machine moves and multiplies numbers, measured with torch's own kernels.

On a busy host a measurement is as slow as the neighbours let it be, and never too fast: so each is the best of many
short calls, repeated until the best stays as it is, on all threads and on one. One thread waits for no other; what each
core has for itself (arithmetic, private caches) counts once per physical core then.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from kernels.processor import physical_cores

STREAM_BYTES = 256 << 20
STREAM_PARTS = 8
"""A pass takes them in turn: short enough to run undisturbed, and no cache holds what comes round again."""
PRIVATE_BYTES = 256 << 10
"""Of a buffer that the second level of one core holds."""
GEMM_SIZES = (256, 768)
WINDOW_S = 0.04
STEADY_WINDOWS = 3
"""In a row that do not beat the best by more than `STEADY_GAIN`: then it stands."""
STEADY_GAIN = 0.01
MOST_WINDOWS = 12


def memory_gb_s() -> float:
    """Best of reading, copying and filling buffers that no cache holds."""
    import torch

    source, target = torch.ones(STREAM_BYTES // 4), torch.empty(STREAM_BYTES // 4)
    part_bytes = STREAM_BYTES // STREAM_PARTS
    parts = list(zip(source.chunk(STREAM_PARTS), target.chunk(STREAM_PARTS), strict=True))
    streams: Sequence[tuple[Callable[[Any, Any], Any], int]] = (
        (lambda read, written: read.sum(), part_bytes),
        (lambda read, written: written.copy_(read), 2 * part_bytes),
        (lambda read, written: written.fill_(1.0), part_bytes),
    )
    best = 0.0
    for threads in _all_and_one():
        with _threads(threads):
            for stream, moved in streams:
                best = max(best, moved / best_ns(_in_turn(stream, parts)))
    return best


def _in_turn(stream: Callable[[Any, Any], Any], parts: Sequence[tuple[Any, Any]]) -> Callable[[], None]:
    turn = itertools.cycle(parts)

    def run() -> None:
        stream(*next(turn))

    return run


def private_cache_gb_s() -> float:
    """Reading a buffer that the private caches hold, all cores together.

    It sums over a buffer that is expanded to be read many times: one call of torch, no start-up cost per pass.
    """
    import torch

    repeated = torch.ones(PRIVATE_BYTES // 4).expand(256, -1)
    return _each_core(repeated.sum, repeated.numel() * 4)


def shared_cache_gb_s(size_bytes: int) -> float:
    """Reading two buffers of that size together, which the last level holds and the private ones do not."""
    import torch

    x, y = torch.ones(size_bytes // 8), torch.ones(size_bytes // 8)
    best = 0.0
    for threads in _all_and_one():
        with _threads(threads):
            best = max(best, size_bytes / best_ns(partial(torch.dot, x, y)))
    return best


def gflops() -> dict[str, float]:
    """Of a matrix product, by dtype, all cores together."""
    import torch

    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        squares = {size: torch.ones(size, size, dtype=dtype) for size in GEMM_SIZES}
        products = ((partial(torch.mm, square, square), 2 * size**3) for size, square in squares.items())
        rates[str(dtype).removeprefix("torch.")] = max(_each_core(call, work) for call, work in products)
    return rates


def _each_core(call: Callable[[], Any], work: int) -> float:
    """Work per nanosecond: of all threads in one call, or of one times the cores."""
    with _threads(1):
        alone = physical_cores() * work / best_ns(call)
    return max(alone, work / best_ns(call))


def _all_and_one() -> tuple[int, ...]:
    import torch

    return tuple({torch.get_num_threads(), 1})


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_ns(call: Callable[[], Any], window_s: float = WINDOW_S) -> int:
    """The shortest call, in as many windows as it takes for the best to stand."""
    call()
    best = _window_ns(call, window_s)
    steady = 0
    for _ in range(MOST_WINDOWS - 1):
        found = _window_ns(call, window_s)
        steady = steady + 1 if found > best * (1 - STEADY_GAIN) else 0
        best = min(best, found)
        if steady == STEADY_WINDOWS:
            break
    return best


def _window_ns(call: Callable[[], Any], window_s: float) -> int:
    times: list[int] = []
    deadline_ns = time.perf_counter_ns() + int(window_s * 1e9)
    while not times or time.perf_counter_ns() < deadline_ns:
        start_ns = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start_ns)
    return max(1, min(times))
