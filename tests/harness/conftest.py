"""One judge for all tests of this folder, and candidates from short sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gristmill.domain import Domain
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness import native as own_code
from harness.builder import Builder
from harness.judge import Judge
from harness.native import Native
from harness.policy import JudgePolicy
from harness.timing import StopRule
from kernels import catalogue
from kernels.candidate import Candidate, Language, Origin
from kernels.inputs import workload
from kernels.roofline import Peaks

SOURCES = Path(__file__).parent / "sources"
TEST_POLICY = JudgePolicy(
    stop=StopRule(min_pairs=5, max_pairs=5, budget_s=5.0, tolerance=0.5, margin=0.5),
    min_gain=0.05,
    batch_ns=3e5,
    deadline_s=5.0,
    regimes_per_workload=1,
)


@pytest.fixture(scope="session")
def peaks() -> Peaks:
    """Peaks that no machine reaches: what is tested here is not the roofline."""
    return Peaks(
        hardware=local_cpu().key,
        cores=2,
        memory_bandwidth_gb_s=1e6,
        cache_bandwidth_gb_s=1e6,
        cache_ceiling_gb_s=1e6,
        gflops={"float32": 1e6, "bfloat16": 1e6},
        gflops_ceiling={"float32": 1e6, "bfloat16": 1e6},
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        l3_bytes=32 << 20,
    )


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    """The judge's own compiled parts."""
    builder = Builder(tmp_path_factory.mktemp("native"))
    return own_code.build(builder.cache, builder.compiler, builder.identity)


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory, peaks: Peaks) -> Iterator[Judge]:
    with Judge(tmp_path_factory.mktemp("judge"), TEST_POLICY, peaks, device="test") as made:
        yield made


@pytest.fixture(scope="session")
def source() -> Callable[[str], str]:
    """Text of an honest kernel by operator name."""
    return lambda name: (SOURCES / f"{name}.cpp").read_text()


@pytest.fixture(scope="session")
def cpp() -> Callable[..., Candidate]:
    """A C++ candidate for an operator."""

    def make(operator: str, text: str, *, needs_setup: bool = False, flags: tuple[str, ...] = ()) -> Candidate:
        return Candidate(
            operator=operator,
            language=Language.CPP,
            files={"main.cpp": text},
            domain=Domain(operator, "float32"),
            origin=Origin("test"),
            needs_setup=needs_setup,
            compile_flags=flags,
        )

    return make


@pytest.fixture(scope="session")
def rms_norm_workloads() -> list[Workload]:
    definition = catalogue.operator("rms_norm")
    return [workload(definition, "float32", tokens=tokens, hidden=512) for tokens in (1, 6)]
