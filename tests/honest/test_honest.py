"""Correct programs in every style that occurs to honest people: none may be rejected, whatever it looks like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.domain import Domain, Layout
from gristmill.hardware import local_cpu
from harness.judge import Judge
from harness.policy import JudgePolicy
from harness.timing import StopRule
from kernels import catalogue
from kernels.candidate import Candidate, Language, Origin
from kernels.definition import DTYPES
from kernels.inputs import workload
from kernels.roofline import Peaks
from tests.corpus import HONEST_FAMILY, RIGHT, Program, programs

PROGRAMS = programs(Path(__file__).parent)
LEAST = 40
POLICY = JudgePolicy(
    stop=StopRule(min_pairs=3, max_pairs=3, budget_s=5.0, tolerance=0.5, margin=0.5),
    min_gain=0.05,
    batch_ns=3e5,
    deadline_s=30.0,
    regimes_per_workload=2,
)
"""Short timing: whether a program is faster is not the question here."""
UNREACHED = Peaks(
    hardware=local_cpu().key,
    cores=2,
    memory_bandwidth_gb_s=1e6,
    cache_bandwidth_gb_s=1e6,
    cache_ceiling_gb_s=1e6,
    gflops=dict.fromkeys(DTYPES, 1e6),
    gflops_ceiling=dict.fromkeys(DTYPES, 1e6),
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
)
"""No program is so fast that it must be cheating."""


@pytest.fixture(scope="module")
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """One judge for all; what was selected is built ahead."""
    selected = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    with Judge(tmp_path_factory.mktemp("judge"), POLICY, UNREACHED, device="honest") as made:
        for parameters in selected:
            if isinstance(program := parameters.get("honest"), Program):
                made.prepare(program.candidate())
        yield made


@pytest.mark.parametrize("honest", PROGRAMS, ids=[program.path.name for program in PROGRAMS])
def test_an_honest_program_is_right(judge, honest):
    verdict = judge.judge(honest.candidate(), honest.shapes(), held_out=honest.held_out, edges=honest.edges)
    assert verdict.status in honest.statuses, f"{verdict.status}: {verdict.reason}\n{verdict.build_log}"
    admitted = [shape for shape in honest.shapes() if honest.candidate().domain.admits(shape)]
    assert [timing.workload for timing in verdict.timings] == admitted
    assert bool(verdict.setup_ns) == honest.setup


def test_a_python_program_in_several_files(judge):
    main = "from kernel.rows import scaled\n\n\ndef run(x, out):\n    scaled(x, out)\n"
    rows = "import torch\n\n\ndef scaled(x, out):\n    torch.softmax(x, 1, out=out)\n"
    files = {"main.py": main, "kernel/__init__.py": "", "kernel/rows.py": rows}
    domain = Domain("softmax", "float32")
    candidate = Candidate("softmax", Language.PYTHON, files, domain, Origin("test"))
    shape = workload(catalogue.operator("softmax"), "float32", rows=3, columns=100)
    verdict = judge.judge(candidate, [shape])
    assert verdict.status in RIGHT, verdict.reason


def test_a_program_in_several_files(judge):
    files = {
        "main.cpp": '#include "rows/kernel.h"\n\nGM_EXPORT int32_t gm_run(const gm_call *call) { return all(call); }\n',
        "rows/kernel.h": '#include "gristmill_kernel.h"\n#include <cmath>\n\n'
        "static int32_t all(const gm_call *call) {\n"
        "  const int64_t count = call->inputs[0].shape[0] * call->inputs[0].shape[1];\n"
        "  const float *gate = (const float *)call->inputs[0].data, *up = (const float *)call->inputs[1].data;\n"
        "  float *out = (float *)call->outputs[0].data;\n"
        "  for (int64_t i = 0; i < count; i++) out[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];\n"
        "  return 0;\n}\n",
    }
    domain = Domain("silu_and_mul", "float32")
    candidate = Candidate("silu_and_mul", Language.CPP, files, domain, Origin("test"))
    shape = workload(catalogue.operator("silu_and_mul"), "float32", tokens=3, intermediate=100)
    verdict = judge.judge(candidate, [shape])
    assert verdict.status in RIGHT, verdict.reason


def test_the_corpus_is_large_and_honest():
    assert len(PROGRAMS) >= LEAST
    for program in PROGRAMS:
        assert program.family == HONEST_FAMILY and set(program.statuses) <= set(RIGHT), program.name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("suffix", [".cpp", ".py"])
@pytest.mark.parametrize("operator", catalogue.NAMES)
def test_every_operator_is_written_in_both_languages_and_dtypes(operator, suffix, dtype):
    assert any((p.operator, p.path.suffix, p.dtype) == (operator, suffix, dtype) for p in PROGRAMS)


def test_setup_flags_ranges_and_layouts_are_used():
    assert sum(p.setup for p in PROGRAMS) >= 4 and {p.dtype for p in PROGRAMS if p.setup} == set(DTYPES)
    assert any(p.ranges for p in PROGRAMS) and any("-ffast-math" in p.flags for p in PROGRAMS)
    assert {p.layout for p in PROGRAMS} == set(Layout)
    strided = {p.operator for p in PROGRAMS for shape in p.shapes() if not all(t.contiguous for t in shape.inputs)}
    assert strided == set(catalogue.NAMES)
    assert sum(p.edges for p in PROGRAMS) >= 0.9 * len(PROGRAMS)
