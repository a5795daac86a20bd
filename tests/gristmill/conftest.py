"""Small native kernels, tables and a tiny model for the runtime's tests. Kernels are compiled once per session."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gristmill
from gristmill.domain import AxisRange, Domain
from gristmill.generation import Generation
from gristmill.kernel_table import FileRef, KernelTable, TableEntry

ABI_DIR = Path(gristmill.__file__).parent / "abi"
HARDWARE = "test-hardware"

RMS_NORM = r"""
#include <atomic>
#include <cmath>
#include "gristmill_kernel.h"
#ifndef WRONG_AFTER
#define WRONG_AFTER -1
#endif
#ifndef REFUSE_AFTER
#define REFUSE_AFTER -1
#endif
#ifndef WRONG_ON_ONES
#define WRONG_ON_ONES 0
#endif
#ifndef CRASH_AFTER
#define CRASH_AFTER -1
#endif
static std::atomic<long> calls{0};
GM_EXPORT int32_t gm_run(const gm_call *call) {
    const long now = calls++;
    if (CRASH_AFTER >= 0 && now >= CRASH_AFTER) *(volatile int *)nullptr = 1;
    if (REFUSE_AFTER >= 0 && now >= REFUSE_AFTER) return 7;
    const gm_tensor &x = call->inputs[0];
    const float *w = (const float *)call->inputs[1].data;
    const int64_t n = x.shape[1];
#ifdef WAIT /* until somebody writes a weight */
    while (*(const volatile float *)w == 0) {}
#endif
    for (int64_t t = 0; t < x.shape[0]; ++t) {
        const float *row = (const float *)x.data + t * x.stride[0];
        float *out = (float *)call->outputs[0].data + t * n;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += double(row[i]) * row[i];
        const double scale = 1 / std::sqrt(sum / n + call->scalars[0]);
        for (int64_t i = 0; i < n; ++i) out[i] = float(w[i] * float(row[i] * scale));
        if (WRONG_AFTER >= 0 && now >= WRONG_AFTER) out[n - 1] += 2;
        if (WRONG_ON_ONES && row[0] == 1 && row[n - 1] == 1) out[n - 1] += 2;
    }
    return 0;
}
"""

SKINNY_LINEAR = r"""
#include "gristmill_kernel.h"
/* packed: the weight transposed to [in features, out features] */
GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
    return call->inputs[1].shape[0] * call->inputs[1].shape[1] * 4;
}
GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
    if (call->inputs[0].data || call->outputs[0].data || (uintptr_t)packed % 64) return 3;
    const gm_tensor &w = call->inputs[1];
    for (int64_t n = 0; n < w.shape[0]; ++n)
        for (int64_t k = 0; k < w.shape[1]; ++k)
            ((float *)packed)[k * w.shape[0] + n] = ((const float *)w.data)[n * w.shape[1] + k];
    return 0;
}
GM_EXPORT int32_t gm_run(const gm_call *call) {
    const gm_tensor &x = call->inputs[0], &w = call->inputs[1];
    if (!call->packed) return 9;
    for (int64_t t = 0; t < x.shape[0]; ++t)
        for (int64_t n = 0; n < w.shape[0]; ++n) {
            const float *row = (const float *)x.data + t * w.shape[1], *column = (const float *)call->packed + n;
            double sum = 0;
            for (int64_t k = 0; k < w.shape[1]; ++k) sum += double(row[k]) * column[k * w.shape[0]];
            ((float *)call->outputs[0].data)[t * w.shape[0] + n] = float(sum);
        }
    return 0;
}
"""

ROTARY = r"""
#include "gristmill_kernel.h"
static void rotate(const gm_tensor &x, const gm_tensor &out, const float *cos, const float *sin) {
    const int64_t heads = x.shape[1], d = x.shape[2];
    for (int64_t t = 0; t < x.shape[0]; ++t)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < d; ++i) {
                const float *in = (const float *)x.data + (t * heads + h) * d;
                const float other = i < d / 2 ? -in[i + d / 2] : in[i - d / 2];
                ((float *)out.data)[(t * heads + h) * d + i] = in[i] * cos[t * d + i] + other * sin[t * d + i];
            }
}
GM_EXPORT int32_t gm_run(const gm_call *call) {
    const float *cos = (const float *)call->inputs[2].data, *sin = (const float *)call->inputs[3].data;
    rotate(call->inputs[0], call->outputs[0], cos, sin);
    rotate(call->inputs[1], call->outputs[1], cos, sin);
    return 0;
}
"""

SOURCES = {"rms_norm": RMS_NORM, "skinny_linear": SKINNY_LINEAR, "rotary_embedding": ROTARY, "empty": "int nothing;"}

Compile = Callable[..., Path]
MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]


@pytest.fixture(scope="session")
def compile_kernel(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """`(source name, *macros) -> shared object`; every call gives a file, and so counters, of its own."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on the PATH")
    folder = tmp_path_factory.mktemp("kernels")
    built: dict[tuple[str, ...], bytes] = {}
    made = 0

    def build(name: str, *macros: str) -> Path:
        nonlocal made
        key = (name, *macros)
        made += 1
        target = folder / f"{made}.so"
        if key not in built:
            source = folder / f"{made}.cpp"
            source.write_text(SOURCES[name])
            flags = ["-O1", "-shared", "-fPIC", f"-I{ABI_DIR}", *(f"-D{macro}" for macro in macros)]
            subprocess.run(["g++", *flags, "-o", str(target), str(source)], check=True)
            built[key] = target.read_bytes()
        target.write_bytes(built[key] + made.to_bytes(4, "big"))
        return target

    return build


@pytest.fixture
def make_entry(compile_kernel: Compile) -> MakeEntry:
    """`(operator, low, high, *macros, **constants) -> (entry, object path)`."""

    def make(operator: str, low: int, high: int, *macros: str, **constants: int) -> tuple[TableEntry, Path]:
        path = compile_kernel(operator, *macros)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        ranges = (AxisRange("tokens", low, high), *(AxisRange(name, n, n) for name, n in constants.items()))
        entry = TableEntry(
            domain=Domain(operator, "float32", ranges),
            candidate=f"{operator}-{path.stem}",
            object=FileRef(f"objects/{sha256}", sha256, path.stat().st_size),
            needs_setup=operator == "skinny_linear",
            sources=(),
            ratio="2.0",
            ratio_low="1.5",
        )
        return entry, path

    return make


@pytest.fixture
def make_generation() -> MakeGeneration:
    """`(number, *entries) -> Generation`."""

    def make(number: int, *entries: tuple[TableEntry, Path]) -> Generation:
        operators = sorted({entry.domain.operator for entry, _ in entries})
        tables = tuple(
            KernelTable(name, "float32", HARDWARE, tuple(e for e, _ in entries if e.domain.operator == name))
            for name in operators
        )
        return Generation(number, "stable", HARDWARE, tables, {e.object.sha256: path for e, path in entries})

    return make


@pytest.fixture
def tiny_model() -> Iterator[Any]:
    """Two layers, hidden 64; single-threaded, so that a busy machine does not make tests wait for barriers."""
    import torch

    from gristmill.serving.model import ModelShape, build_model

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield build_model(
        ModelShape(
            layers=2, hidden=64, intermediate=96, query_heads=4, key_heads=2, head_dim=16, vocabulary=128, positions=512
        ),
        seed=3,
    )
    torch.set_num_threads(threads)
