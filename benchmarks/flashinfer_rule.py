"""`python -m benchmarks.flashinfer_rule`: both corpora under the correctness rule of FlashInfer-Bench.

What is theirs: the inputs (standard normal values, three draws per workload, scalars at their defaults), the reference
(our float64 one, rounded to the dtype, through their schema), the evaluator that their registry picks, and its whole
check: shape, dtype, NaN and infinity, then 1e-2 absolute or 1e-2 relative. All of it is called, none of it rewritten.

What is ours: every program really runs, sandboxed, one call per draw and each draw at an address of its own, into
outputs that their evaluator allocated; weights are packed before each call where a setup phase is declared. A program
that would tamper with their evaluator, which shares its process with what it evaluates, finds nothing to tamper with
here: that flatters them.

What cannot be compared: their timing needs CUDA, so only their comparison is measured. It looks at calls that are not
timed, and never at those that are, so a program that is right at first and replays later is right for them. Their
workloads are dense, so is one that errs on strided inputs only; held-out shapes and edges are unknown to them. What
does not build, crashes, hangs or declines counts as caught by both. Programs that give right answers (the judge
says `slower`: they only meant to fool a clock) are left out, since no rule about answers can catch them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import torch

from benchmarks import corpora
from benchmarks.corpora import EVIL, HONEST, ISSUE, judge_all
from benchmarks.figures import Figure, record
from benchmarks.figures import Outcome as Verdict
from cli.table import compact_table
from gristmill.workload import Workload
from harness import native
from harness.arena import InputArena, OutputArena
from harness.builder import Builder
from harness.errors import FlagError
from harness.layout import Sets, lay_out
from harness.policy import screening
from harness.runners import Runners
from harness.session import Finding, Session
from harness.shared_file import SharedFile
from kernels import catalogue, flashinfer_schema, inputs
from kernels.candidate import Language
from kernels.flashinfer_documents import dump
from tests.corpus import HONEST_FAMILY, RIGHT, Program, programs

COMMAND = "python -m benchmarks.flashinfer_rule"
CPU = "cpu"
DEADLINE_S = 10.0
"""For each request. Theirs is 300 s for a whole evaluation; nothing here that ends takes a second."""
DRAWS = 3
"""Of inputs, per workload: their default."""
WORDS = {True: "accepts", False: "rejects"}


@dataclass(frozen=True)
class Outcome:
    """Whether the judge and their rule accept a program."""

    program: Program
    ours: bool
    theirs: bool


class SandboxedProgram:
    """What their evaluator calls: each call runs the program once in its runner, each draw at an address of its own."""

    metadata = SimpleNamespace(destination_passing_style=True)

    def __init__(self, session: Session, bench: Bench, workload: Workload, needs_setup: bool) -> None:
        layout = lay_out(catalogue.operator(workload.operator), workload, Sets(most=DRAWS))
        assert session.outputs is not None
        self._inputs = InputArena(bench.native, bench.inputs, layout, 0)
        self._outputs = OutputArena(bench.native, session.outputs, layout)
        self._session = session
        self._needs_setup = needs_setup
        self._calls = 0
        session.plan(layout.plan(0, guarded=DRAWS), DEADLINE_S)

    def __call__(self, *arguments: Any) -> None:
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        number = self._calls % DRAWS
        self._calls += 1
        buffers = [tensor[number] for tensor in (*self._inputs.tensors, *self._outputs.tensors)]
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor)
        pool = np.array([number], np.uint32)
        if self._needs_setup:
            self._session.setup(pool, DEADLINE_S)
        self._session.run(pool, 1, number, DEADLINE_S)
        for buffer, tensor in zip(buffers, tensors, strict=True):
            tensor.copy_(buffer)


class Bench:
    """Builds programs, and runs them under FlashInfer-Bench's evaluator."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.builder = Builder(folder / "builds")
        self.native = native.build(folder / "native", self.builder.compiler, self.builder.identity)
        self.inputs = SharedFile("inputs", writable_by_runner=False)
        self._runners = Runners(threads, self.inputs, self.native)

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends every runner."""
        self._runners.close()
        self.inputs.close()

    def accepts(self, program: Program) -> bool:
        """Whether their rule finds nothing wrong with it on any workload that its domain admits."""
        candidate, workloads = program.candidate(), dense_workloads(program)
        object_path = None
        try:
            if candidate.language is Language.CPP:
                object_path = self.builder.build(candidate).path
                if object_path is None:
                    return False
            with self._runners.candidate(candidate, object_path, DEADLINE_S) as session:
                runs = ((SandboxedProgram(session, self, w, program.setup), w) for w in workloads)
                return bool(workloads) and all(_passes(run, workload) for run, workload in runs)
        except (FlagError, Finding):
            return False


def dense_workloads(program: Program) -> list[Workload]:
    """Its workloads as FlashInfer-Bench can say them."""
    definition = catalogue.operator(program.operator)
    dense = [inputs.workload(definition, program.dtype, **w.axes) for w in program.shapes()]
    domain = program.candidate().domain
    return list({w.digest: w for w in dense if domain.admits(w)}.values())


def _passes(runnable: SandboxedProgram, workload: Workload) -> bool:
    """Their evaluator's word on one workload, three draws."""
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.evaluators.registry import resolve_evaluator
    from flashinfer_bench.data import Definition as TheirDefinition
    from flashinfer_bench.data import Workload as TheirWorkload

    ours = catalogue.operator(workload.operator)
    constants = {axis: workload.axes[axis] for axis in ours.constant_axes}
    document = flashinfer_schema.export_definition(ours, workload.dtype, constants)
    definition = TheirDefinition.model_validate_json(dump(document))
    wanted = TheirWorkload.model_validate_json(dump(flashinfer_schema.export_workload(ours, workload)))
    evaluator = resolve_evaluator(definition)
    config = BenchmarkConfig(num_trials=DRAWS, profile_baseline=False)
    with _without_cuda(), contextlib.redirect_stderr(io.StringIO()):  # their traceback of a refused call
        baseline = evaluator.build_baseline(definition, wanted, config, CPU)
        _, fault = evaluator.check_correctness(definition, runnable, baseline.inputs, baseline.outputs, config, "", CPU)
    return fault is None


@contextlib.contextmanager
def _without_cuda() -> Iterator[None]:
    """Their evaluator waits for a GPU after each call; here everything has happened when a call returns."""
    wait = torch.cuda.synchronize
    torch.cuda.synchronize = lambda device=None: None
    try:
        yield
    finally:
        torch.cuda.synchronize = wait


def run_all(bench: Bench, chosen: Sequence[Program]) -> Iterator[bool]:
    """Whether their rule accepts program after program; says how far it is."""
    for number, program in enumerate(chosen, start=1):
        accepted = bench.accepts(program)
        print(f"{number:4}/{len(chosen)} {program.name:50} {WORDS[accepted]}", flush=True)
        yield accepted


def figures(outcomes: Sequence[Outcome], version: str) -> list[Figure]:
    """A row for cheats and one for honest programs; met if the judge catches at least as many and rejects no more."""
    rows = []
    for what, wanted, honest in (("cheats caught", False, False), ("honest rejected", False, True)):
        of_kind = [one for one in outcomes if (one.program.family == HONEST_FAMILY) == honest]
        theirs = sum(one.theirs is wanted for one in of_kind)
        ours = sum(one.ours is wanted for one in of_kind)
        rows.append(
            Figure(
                f"{what}, flashinfer-bench {version} rule",
                ISSUE,
                "side by side",
                f"of {len(of_kind)}",
                COMMAND,
                float(theirs),
                verdict=Verdict.MET if (ours <= theirs if honest else ours >= theirs) else Verdict.MISSED,
                note=f"the judge: {ours} of {len(of_kind)}",
            )
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only programs whose name holds this text; writes no figures")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    chosen = [
        program
        for program in (*programs(EVIL), *programs(HONEST))
        if arguments.only in program.name and not program.gpu and can_be_told(program)
    ]
    policy = dataclasses.replace(screening(), deadline_s=corpora.DEADLINE_S)
    ours = [judged.verdict.status in RIGHT for judged in judge_all(chosen, policy)]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, Bench(Path(folder), policy.thread_count) as bench:
        theirs = list(run_all(bench, chosen))
    outcomes = [Outcome(*one) for one in zip(chosen, ours, theirs, strict=True)]
    differing = [
        [one.program.name, one.program.trick, WORDS[one.ours], WORDS[one.theirs]]
        for one in outcomes
        if one.ours != one.theirs
    ]
    print(compact_table(differing, ["program", "trick", "the judge", "their rule"]))
    for row in figures(outcomes, importlib.metadata.version("flashinfer-bench")):
        print(f"{row.name}: {row.measured:.0f} {row.unit}; {row.note}")
        if not (arguments.only or arguments.dry_run):
            record(row)
    return 0


def can_be_told(program: Program) -> bool:
    """Whether its answers can show what it is: those of a cheat that only fools clocks are right."""
    return program.family == HONEST_FAMILY or not set(program.statuses) & set(RIGHT)


if __name__ == "__main__":
    sys.exit(main())
