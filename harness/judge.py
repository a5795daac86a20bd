"""The judge: takes a candidate through every gate and says what it is, with the evidence.

It owns the clock, the seeds, the expected outputs and the verdict; candidates run in sandboxed processes that see none
of them. What makes a candidate `faster` stands in `decision.py`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from gristmill.domain import Domain
from gristmill.workload import Workload
from harness import calibration, compiler_log, lease, native, scheduling, static_rules
from harness.arena import OutputArena
from harness.bout import Bout
from harness.builder import Build, Builder, BuildPool
from harness.draws import WeightBank
from harness.errors import BaselineError, FlagError
from harness.layout import Sets
from harness.opponent import Baseline, Opponent, RivalCandidate
from harness.policy import JudgePolicy
from harness.runners import Runners
from harness.session import Finding, Session, as_baseline_error
from harness.shared_file import SharedFile
from harness.stock import Stock, Stocks
from kernels import catalogue
from kernels.candidate import Candidate, Language
from kernels.definition import Definition
from kernels.errors import UnknownOperatorError
from kernels.inputs import edge_workloads, far_workload
from kernels.roofline import Peaks
from kernels.verdict import Status, Verdict

COMPILED_BASELINE = "compile"
BUILD_WORKERS = 2


class Judge:
    """Judges candidates on this host's CPU. A context manager: it keeps warm runners, and ends them on exit.

    `judge` is for one thread at a time; `prepare`, `is_built`, `build` and `assembly` are for any beside it. Several
    judges, in any processes, take turns at measuring through the lease that bears the device's name.

    Raises:
        HostFaultError, NoCompilerError: the host lacks what a judge needs.
    """

    def __init__(self, work_dir: Path, policy: JudgePolicy, peaks: Peaks, *, device: str = "cpu") -> None:
        self.policy = policy
        self._device = device
        self.peaks = peaks
        self.builder = Builder(work_dir / "builds")
        self._native = native.build(work_dir / "native", self.builder.compiler, self.builder.identity)
        self._inputs = SharedFile("inputs", writable_by_runner=False)
        self._pool: BuildPool | None = None
        self._builds: dict[str, Future[Build]] = {}
        self._building = threading.Lock()
        self._runners = Runners(policy.thread_count, self._inputs, self._native)
        self._stocks = Stocks(self._native, self._inputs)
        self._uses = 0
        self._seed = secrets.randbits(48)
        self._bank = WeightBank(self._seed)
        self._repeatable = False
        self._noise = calibration.facts(work_dir)

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every runner and gives back all shared memory."""
        if self._pool is not None:
            self._pool.close()
        self._runners.close()
        self._stocks.clear()
        self._inputs.close()
        gc.collect()  # tensors over shared memory die with the cycles that they are part of

    def prepare(self, candidate: Candidate) -> None:
        """Starts building a candidate in the background; `judge` will find it built."""
        if candidate.language is Language.CPP:
            with self._building:
                if candidate.digest not in self._builds:
                    self._builds[candidate.digest] = self._built_ahead(candidate)

    def is_built(self, candidate: Candidate) -> bool:
        """Whether `judge` would not have to wait for the compiler, as far as is known without looking at the disk."""
        ahead = self._builds.get(candidate.digest)
        return candidate.language is not Language.CPP or (ahead is not None and ahead.done())

    def build(self, candidate: Candidate) -> Verdict | None:
        """Static rules and compiler alone, in the calling thread and beside what is measured, whose builds do not wait
        for it: `rejected`, `build_failed`, or None.

        Raises:
            HostFaultError: as `Builder.build`.
        """
        blank = self._blank(candidate, "eager")
        try:
            built, _ = self._build(blank, candidate, background=True)
        except Finding as finding:
            return _convict(blank, finding)
        return built if built.status is Status.BUILD_FAILED else None

    def assembly(self, candidate: Candidate) -> str:
        """Disassembly of the innermost loops of a candidate that was built before; empty where there is none."""
        return self.builder.loops(candidate)

    def judge(
        self,
        candidate: Candidate,
        workloads: Sequence[Workload],
        *,
        held_out: Sequence[Workload] = (),
        edges: bool = True,
        seed: int | None = None,
        baseline: str | Candidate = "eager",
        policy: JudgePolicy | None = None,
    ) -> Verdict:
        """The verdict on one candidate. `workloads` are checked and timed, `held_out` and edges only checked.

        Args:
            baseline: what to time against: `eager`, another of the definition's, `compile` for torch.compile, or
                another candidate, which is taken to be right.
            seed: from which everything is drawn, so that a judgement can be repeated. If not given, base draws serve
                `draws_uses` candidates, and what is made of them is random.
            policy: another than the judge's own, for this candidate. What is kept ready stays as it is: threads, sets
                and draws are the judge's own.

        Raises:
            GristmillError: for faults of this host or of the caller, never for what a candidate does.
        """
        start = time.monotonic()
        self._turn_page(seed)
        blank = self._blank(candidate, baseline)
        try:
            verdict = self._judge(blank, candidate, workloads, held_out, edges, baseline, self._sized(policy))
        except Finding as finding:
            verdict = _convict(blank, finding)
        return replace(verdict, duration_s=time.monotonic() - start)

    def _judge(
        self,
        blank: Verdict,
        candidate: Candidate,
        workloads: Sequence[Workload],
        held_out: Sequence[Workload],
        edges: bool,
        baseline: str | Candidate,
        policy: JudgePolicy,
    ) -> Verdict:
        definition = _definition(candidate)
        if isinstance(baseline, str):
            _check_baseline(definition, baseline)
            self._runners.start_baseline()  # it imports torch while the candidate is built
        admitted = [workload for workload in workloads if candidate.domain.admits(workload)]
        if not admitted:
            raise Finding(Status.REJECTED, f"its domain admits none of the {len(workloads)} workloads")
        built, build = self._build(blank, candidate)
        if built.status is Status.BUILD_FAILED:
            return built
        checked = list(_edges(candidate.operator, candidate.domain)) if edges else []
        checked += [workload for workload in held_out if candidate.domain.admits(workload)]
        with contextlib.ExitStack() as stack:
            stack.enter_context(lease.hold(self._device))
            stack.enter_context(_undisturbed())
            stack.enter_context(scheduling.measuring())  # compilers beside it would double what it takes to check
            session = stack.enter_context(self._runners.candidate(candidate, build.path, policy.deadline_s))
            built = replace(built, isolation=session.isolation)
            opponent = self._opponent(definition, baseline, stack, policy)
            shared = replace(policy, stop=replace(policy.stop, workloads=len(admitted)))
            bout = Bout(shared, self.peaks, self._stock_of(definition), self._outputs_of(session), session)
            try:
                return bout.judge(built, candidate, admitted, checked, opponent, self._random())
            except Finding as finding:
                return _convict(built, finding)

    def _opponent(
        self, definition: Definition, baseline: str | Candidate, stack: contextlib.ExitStack, policy: JudgePolicy
    ) -> Opponent:
        """Raises BaselineError if it does not load."""
        if isinstance(baseline, str):
            return Baseline(baseline, self._runners.baseline(definition, baseline), policy)
        build = self._object(baseline)
        if build.path is None and baseline.language is Language.CPP:
            raise BaselineError(f"the candidate to compare with does not build: {compiler_log.first_error(build.log)}")
        try:
            session = stack.enter_context(self._runners.candidate(baseline, build.path, policy.deadline_s))
        except Finding as finding:
            raise as_baseline_error("given as a candidate", finding) from None
        outputs = self._outputs_of(session)
        return RivalCandidate(
            baseline.digest,
            session,
            outputs,
            policy,
            needs_setup=baseline.needs_setup,
        )

    def _stock_of(self, definition: Definition) -> Callable[[Workload, Sets], Stock]:
        return lambda workload, sets: self._stocks.stock(definition, workload, self._seed, self._bank, sets=sets)

    def _outputs_of(self, session: Session) -> Callable[[Stock], OutputArena]:
        file = session.outputs
        assert file is not None
        return lambda stock: stock.outputs(file)

    def _random(self) -> np.random.Generator:
        """Known to nobody before the candidate is loaded, unless a seed was asked for."""
        return np.random.default_rng(self._seed if self._repeatable else secrets.randbits(128))

    def _turn_page(self, seed: int | None) -> None:
        """New base draws when a seed is asked for, or when enough candidates have been judged on the old ones."""
        known, self._repeatable = self._repeatable, seed is not None
        self._uses += 1
        worn = known or self._uses > self.policy.draws_uses
        if worn if seed is None else seed != self._seed:
            self._stocks.clear()
            self._uses = 1
            self._seed = secrets.randbits(48) if seed is None else seed
            self._bank = WeightBank(self._seed)

    def _blank(self, candidate: Candidate, baseline: str | Candidate) -> Verdict:
        return Verdict(
            status=Status.REJECTED,
            reason="",
            candidate=candidate.digest,
            operator=candidate.operator,
            seed=self._seed,
            host=self._host(candidate, baseline),
        )

    def _sized(self, policy: JudgePolicy | None) -> JudgePolicy:
        own = self.policy
        return own if policy is None else replace(policy, sets=own.sets, threads=own.threads)

    def _build(self, blank: Verdict, candidate: Candidate, *, background: bool = False) -> tuple[Verdict, Build]:
        """What the static rules saw and the compiler made of it; the verdict is final where it says `build_failed`.

        Raises:
            Finding: it is not even built.
        """
        why = static_rules.refusal(candidate)
        if why is not None:
            raise Finding(Status.REJECTED, why)
        notes = "".join(f"{sighting}\n" for sighting in static_rules.inspect_source(candidate))
        start = time.monotonic()
        build = self._object(candidate, background=background)
        built = replace(
            blank,
            build_log=notes + build.log,
            build_errors=build.errors,
            build_s=time.monotonic() - start,
            object_sha256=build.sha256,
            object_report=build.report,
        )
        if build.path is None and candidate.language is Language.CPP:
            built = replace(built, status=Status.BUILD_FAILED, reason=compiler_log.first_error(build.log))
        return built, build

    def _object(self, candidate: Candidate, *, background: bool = False) -> Build:
        """Raises Finding: it asks for a flag that is not allowed."""
        if candidate.language is not Language.CPP:
            return Build(None, "", "", cached=False)
        try:
            if background:
                return self.builder.build(candidate, background=True)
            with self._building:
                ahead = self._builds.pop(candidate.digest, None)
            if ahead is None or ahead.cancel():  # one that has not begun would have to wait for others
                return self.builder.build(candidate)
            return ahead.result()
        except FlagError as error:
            raise Finding(Status.REJECTED, str(error)) from None

    def _built_ahead(self, candidate: Candidate) -> Future[Build]:
        """What was built before is done at once, however much waits for the compiler."""
        try:
            found = self.builder.find(candidate)
        except FlagError:
            found = None  # told when it is judged
        if found is not None:
            done: Future[Build] = Future()
            done.set_result(found)
            return done
        if self._pool is None:
            self._pool = BuildPool(self.builder, BUILD_WORKERS)
        return self._pool.submit(candidate)

    def _host(self, candidate: Candidate, baseline: str | Candidate) -> dict[str, str]:
        name = baseline if isinstance(baseline, str) else baseline.digest
        facts = {"hardware": self.peaks.hardware, "torch": torch.__version__, "baseline": name, **self._noise}
        if candidate.language is Language.CPP:
            facts["compiler"] = self.builder.compiler_version
        return facts


def _convict(verdict: Verdict, finding: Finding) -> Verdict:
    finding.__traceback__ = None  # its frames hold the buffers, and one of them the finding: a cycle
    return replace(
        verdict,
        status=finding.status,
        reason=finding.reason,
        mismatches=finding.mismatches,
        failing=finding.failing,
    )


@functools.lru_cache(64)
def _edges(operator: str, domain: Domain) -> tuple[Workload, ...]:
    definition = catalogue.operator(operator)
    far = far_workload(definition, domain.dtype, domain)
    return (*edge_workloads(definition, domain.dtype, domain), *([far] if far is not None else []))


def _definition(candidate: Candidate) -> Definition:
    try:
        return catalogue.operator(candidate.operator)
    except UnknownOperatorError as error:
        raise Finding(Status.REJECTED, str(error)) from None


def _check_baseline(definition: Definition, name: str) -> None:
    if name != COMPILED_BASELINE and name not in definition.baselines:
        known = ", ".join([*definition.baselines, COMPILED_BASELINE])
        raise BaselineError(f"operator {definition.name} has no baseline {name!r}: choose one of {known}")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """torch's threads spin for a while after they worked: here they would steal the cores that are being measured. Nor
    is this the time to look for garbage.
    """
    threads, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()
