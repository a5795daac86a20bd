"""Every evil program gets the verdict that its header names, and the whole corpus leaves nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.census import descendants
from gristmill.hardware import local_cpu
from harness import builder
from harness.judge import Judge
from harness.policy import JudgePolicy
from harness.timing import StopRule
from kernels.candidate import Language
from kernels.roofline import Peaks
from tests.corpus import EVIL_FAMILIES, Program, judged, programs

PROGRAMS = programs(Path(__file__).parent)
ON_CPU = [program for program in PROGRAMS if not program.gpu]
ON_GPU = [program for program in PROGRAMS if program.gpu]
POLICY = JudgePolicy(
    stop=StopRule(min_pairs=3, max_pairs=3, budget_s=5.0, tolerance=0.5, margin=0.5),
    min_gain=0.05,
    batch_ns=3e5,
    deadline_s=20.0,
    regimes_per_workload=1,
)
"""With time for a slow machine: a program that never ends names a shorter deadline."""
BUILD_CPU_S = 3
"""Bombs for the compiler need not run for a minute to show that their end is bounded."""
BUILT_AHEAD = 6
SETTLE_S = 10.0


@pytest.fixture(scope="module")
def before() -> tuple[set[int], set[str]]:
    """Processes and descriptors before there is a judge."""
    gc.collect()
    return descendants(), _open_files()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evil")


@pytest.fixture(scope="module")
def judge(before: object, folder: Path) -> Iterator[Judge]:
    """One judge for all programs. Its peaks are such as no machine reaches: the roofline is not tested here."""
    peaks = Peaks(
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "LIMITS", dataclasses.replace(builder.LIMITS, cpu_s=BUILD_CPU_S))
        with Judge(folder, POLICY, peaks, device="test") as made:
            yield made


@pytest.mark.parametrize("index", range(len(ON_CPU)), ids=[program.name for program in ON_CPU])
def test_an_evil_program_gets_its_verdict(judge, index):
    for later in ON_CPU[index : index + BUILT_AHEAD]:
        candidate = later.candidate()
        if candidate.language is Language.CPP and later.family != "not_a_kernel":  # bombs would run at low priority
            judge.prepare(candidate)
    program = ON_CPU[index]
    verdict = judged(program, judge)
    assert verdict.status in program.statuses, f"{program.trick}: {verdict.status} {verdict.reason}"


def test_nothing_is_left_behind(before, judge, folder):
    """After all of them, and after the judge."""
    judge.close()
    deadline = time.monotonic() + SETTLE_S
    processes, files = before
    while time.monotonic() < deadline and (descendants() - processes or _open_files() - files):
        gc.collect()
        time.sleep(0.1)
    assert not descendants() - processes
    assert not _open_files() - files
    assert not any(path.is_dir() for path in (folder / "builds").iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("program", ON_GPU, ids=[program.name for program in ON_GPU])
def test_an_evil_program_for_gpus_gets_its_verdict(judge, program: Program):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    verdict = judged(program, judge)
    assert verdict.status in program.statuses, f"{program.trick}: {verdict.status} {verdict.reason}"


def test_the_corpus_covers_every_family_in_both_languages():
    assert len(ON_CPU) >= 60 and ON_GPU
    for family in EVIL_FAMILIES:
        of_family = [program for program in ON_CPU if program.family == family]
        assert len(of_family) >= 12, family
        assert {program.path.suffix for program in of_family} == {".cpp", ".py"}, family


def test_programs_are_distinct_and_lie_with_their_family():
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    assert len({program.path.read_text() for program in PROGRAMS}) == len(PROGRAMS)
    tricks = [(program.trick, program.path.suffix) for program in PROGRAMS]
    assert len(set(tricks)) == len(tricks)
    for program in PROGRAMS:
        assert program.path.parent.name == program.family, program.name
        assert 1 <= len(program.statuses) <= 3, program.name  # a race of threads may end in each of three


def _open_files() -> set[str]:
    """What this process has open, by descriptor."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one through which this folder is read
            found.add(f"{entry.name} {entry.readlink()}")
    return found
