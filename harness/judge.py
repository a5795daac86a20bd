"""The judge: takes a candidate through every gate and says what it is, with the evidence.

It owns the clock, the seeds, the expected outputs and the verdict; candidates run in sandboxed processes that see none
of them. What makes a candidate `faster` stands in `decision.py`.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import statistics
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from gristmill import records
from gristmill.workload import Workload
from harness import lease, scheduling, static_rules, timing
from harness.arena import Arena, Layout, SharedFile, lay_out
from harness.builder import Build, Builder, BuildPool
from harness.decision import decide, workload_evidence
from harness.draws import Draws, WeightBank
from harness.errors import BaselineError, FlagError
from harness.policy import JudgePolicy
from harness.runners import Runners
from harness.session import Finding, Session, as_baseline_error
from harness.trial import BASELINE_PATIENCE, CHECKED_SETS, Trial
from kernels import catalogue
from kernels.candidate import Candidate, Language
from kernels.definition import Definition
from kernels.errors import UnknownOperatorError
from kernels.inputs import edge_workloads
from kernels.roofline import Peaks
from kernels.verdict import Status, Verdict, WorkloadTiming

COMPILED_BASELINE = "compile"
KEPT_DRAWS_BYTES = 512 << 20
BUILD_WORKERS = 2


class Judge:
    """Judges candidates on this host's CPU. A context manager: it keeps warm runners, and ends them on exit.

    One judge serves one thread at a time; several judges, in any processes, take turns at measuring through the lease
    that bears the device's name.

    Raises:
        HostFaultError: the host lacks what a judge needs.
    """

    def __init__(self, work_dir: Path, policy: JudgePolicy, peaks: Peaks, *, device: str = "cpu") -> None:
        self.policy = policy
        self._device = device
        self.peaks = peaks
        self._work_dir = work_dir
        self._inputs = SharedFile("inputs", writable_by_runner=False)
        self._builder: Builder | None = None
        self._pool: BuildPool | None = None
        self._builds: dict[str, Future[Build]] = {}
        self._runners = Runners(policy.thread_count, self._inputs)
        self._draws: OrderedDict[tuple[str, str], Draws] = OrderedDict()
        self._draws_uses = 0
        self._seed = secrets.randbits(48)
        self._bank = WeightBank(self._seed)
        self._repeatable = False

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
        self._inputs.close()

    def prepare(self, candidate: Candidate) -> None:
        """Starts building a candidate in the background; `judge` will find it built."""
        if candidate.language is Language.CPP and candidate.digest not in self._builds:
            if self._pool is None:
                self._pool = BuildPool(self.builder, BUILD_WORKERS)
            self._builds[candidate.digest] = self._pool.submit(candidate)

    @property
    def builder(self) -> Builder:
        """The builder, made when it is first needed.

        Raises:
            NoCompilerError: there is no compiler.
        """
        if self._builder is None:
            self._builder = Builder(self._work_dir / "builds")
        return self._builder

    def judge(
        self,
        candidate: Candidate,
        workloads: Sequence[Workload],
        *,
        held_out: Sequence[Workload] = (),
        edges: bool = True,
        seed: int | None = None,
        baseline: str = "eager",
    ) -> Verdict:
        """The verdict on one candidate. `workloads` are checked and timed, `held_out` and edges only checked.

        Args:
            baseline: what to time against: `eager`, another of the definition's, or `compile` for torch.compile.
            seed: from which everything is drawn, so that a judgement can be repeated. If not given, base draws serve
                `draws_uses` candidates, and what is spliced from them is random.

        Raises:
            GristmillError: for faults of this host or of the caller, never for what a candidate does.
        """
        start = time.monotonic()
        self._turn_page(seed)
        blank = Verdict(
            status=Status.REJECTED,
            reason="",
            candidate=candidate.digest,
            operator=candidate.operator,
            seed=self._seed,
            host=self._host(candidate, baseline),
        )
        try:
            verdict = self._judge(blank, candidate, workloads, held_out, edges, baseline)
        except Finding as finding:
            verdict = _convict(blank, finding)
        return replace(verdict, duration_s=time.monotonic() - start)

    def time_baselines(self, workloads: Sequence[Workload], names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Median nanoseconds per call by baseline and workload label, each name timed in turn within this call.

        Raises:
            BaselineError: a baseline does not exist or does not run.
        """
        times: dict[str, dict[str, float]] = {name: {} for name in names}
        with lease.hold(self._device):
            for workload in workloads:
                definition = catalogue.operator(workload.operator)
                layout = lay_out(definition, workload)
                arena = Arena(self._inputs, layout.inputs, layout.sets)
                source = self._source(definition, workload, definition.regimes[0])
                everything = torch.arange(layout.sets)
                source.fill(arena, everything, range(len(layout.inputs)), torch.Generator().manual_seed(self._seed))
                for name in names:
                    times[name][workload.label] = self._time_baseline(definition, name, layout)
        return times

    def _time_baseline(self, definition: Definition, name: str, layout: Layout) -> float:
        session = self._runners.baseline(definition, name)
        rng = random.Random(self._seed)
        patience_s = self.policy.deadline_s * BASELINE_PATIENCE
        samples = []
        try:
            session.plan(layout, patience_s)
            per_call_ns = float(session.run([0], patience_s))
            with scheduling.measuring():
                session.hasten()
                for _ in range(self.policy.stop.min_pairs + 1):
                    count = timing.batch_size(per_call_ns, self.policy.batch_ns, layout.sets, rng)
                    per_call_ns = session.run(rng.sample(range(layout.sets), count), patience_s) / count
                    samples.append(per_call_ns)
        except Finding as finding:
            self._runners.drop_baseline()
            raise as_baseline_error(name, finding) from None
        return statistics.median(samples[1:])

    def _judge(
        self,
        blank: Verdict,
        candidate: Candidate,
        workloads: Sequence[Workload],
        held_out: Sequence[Workload],
        edges: bool,
        baseline: str,
    ) -> Verdict:
        definition = _definition(candidate)
        _check_baseline(definition, baseline)
        self._runners.start_baseline()  # it imports torch while the candidate is built
        admitted = [workload for workload in workloads if candidate.domain.admits(workload)]
        if not admitted:
            raise Finding(Status.REJECTED, f"its domain admits none of the {len(workloads)} workloads")
        why = static_rules.refusal(candidate)
        if why is not None:
            raise Finding(Status.REJECTED, why)
        notes = "".join(f"{sighting}\n" for sighting in static_rules.inspect_source(candidate))
        build = self._build(candidate)
        built = replace(blank, build_log=notes + build.log, object_sha256=build.sha256)
        if build.path is None and candidate.language is Language.CPP:
            return replace(built, status=Status.BUILD_FAILED, reason=_first_error(build.log))
        checked = [*(edge_workloads(definition, candidate.domain.dtype, candidate.domain) if edges else ())]
        checked += [workload for workload in held_out if candidate.domain.admits(workload)]
        runner = self._runners.candidate(candidate, build.path)
        with lease.hold(self._device), _single_threaded(), runner as (session, isolation):
            built = replace(built, isolation=isolation)
            deadline = time.monotonic() + self.policy.total_s
            try:
                return self._run(built, candidate, definition, admitted, checked, baseline, session, deadline)
            except Finding as finding:
                return _convict(built, finding)

    def _run(
        self,
        built: Verdict,
        candidate: Candidate,
        definition: Definition,
        workloads: Sequence[Workload],
        checked: Sequence[Workload],
        baseline: str,
        session: Session,
        deadline: float,
    ) -> Verdict:
        rng = random.Random(self._seed if self._repeatable else secrets.randbits(64))  # the candidate is loaded already
        for workload in (*checked, *workloads):
            trial = self._trial(definition, workload, session, candidate.needs_setup, rng, CHECKED_SETS)
            everywhere = workload in checked or self.policy.regimes_per_workload is None
            for regime in self._regimes(definition, everywhere, rng):
                trial.check(self._source(definition, workload, regime))
                if time.monotonic() > deadline:
                    raise Finding(Status.TIMED_OUT, f"not checked within {self.policy.total_s:.0f} s")
        timings: list[WorkloadTiming] = []
        setup_ns: dict[str, int] = {}
        for workload in workloads:
            trial = self._trial(definition, workload, session, candidate.needs_setup, rng, None)
            source = self._source(definition, workload, definition.regimes[0])
            paired = trial.time(source, self._runners.baseline(definition, baseline), deadline)
            built.host["scheduling"] = "real-time" if trial.real_time else "shared with the host's other processes"
            timings.append(workload_evidence(definition, trial.layout, paired, self.peaks))
            if candidate.needs_setup:
                setup_ns[workload.label] = trial.setup_ns
        return decide(replace(built, timings=tuple(timings), setup_ns=setup_ns), self.policy.min_gain)

    def _trial(
        self,
        definition: Definition,
        workload: Workload,
        session: Session,
        needs_setup: bool,
        rng: random.Random,
        sets: int | None,
    ) -> Trial:
        layout = lay_out(definition, workload) if sets is None else lay_out(definition, workload, sets)
        assert session.outputs is not None
        return Trial(
            definition,
            layout,
            Arena(self._inputs, layout.inputs, layout.sets),
            Arena(session.outputs, layout.outputs, layout.sets),
            session,
            needs_setup=needs_setup,
            policy=self.policy,
            rng=rng,
        )

    def _regimes(self, definition: Definition, everywhere: bool, rng: random.Random) -> list[str]:
        first, *others = definition.regimes
        count = len(others) if everywhere else (self.policy.regimes_per_workload or 1) - 1
        return [first, *rng.sample(others, min(count, len(others)))]

    def _source(self, definition: Definition, workload: Workload, regime: str) -> Draws:
        """Base draws by workload and regime; the oldest go when they take more than `KEPT_DRAWS_BYTES`."""
        key = (workload.digest, regime)
        if key not in self._draws:
            kept = sum(draws.size_bytes for draws in self._draws.values())
            while self._draws and kept > KEPT_DRAWS_BYTES:
                kept -= self._draws.popitem(last=False)[1].size_bytes
            first = definition.regimes[0]
            traffic = self._source(definition, workload, first) if regime != first else None
            seed = int(records.digest([self._seed, *key])[:15], 16)
            self._draws[key] = Draws(definition, workload, regime, seed, traffic, self._bank)
        self._draws.move_to_end(key)
        return self._draws[key]

    def _turn_page(self, seed: int | None) -> None:
        """New base draws when a seed is asked for, or when enough candidates have been judged on the old ones."""
        known, self._repeatable = self._repeatable, seed is not None
        self._draws_uses += 1
        worn = known or self._draws_uses > self.policy.draws_uses
        if worn if seed is None else seed != self._seed:
            self._draws.clear()
            self._draws_uses = 1
            self._seed = secrets.randbits(48) if seed is None else seed
            self._bank = WeightBank(self._seed)

    def _build(self, candidate: Candidate) -> Build:
        if candidate.language is not Language.CPP:
            return Build(None, "", "", cached=False)
        try:
            ahead = self._builds.pop(candidate.digest, None)
            return ahead.result() if ahead is not None else self.builder.build(candidate)
        except FlagError as error:
            raise Finding(Status.REJECTED, str(error)) from None

    def _host(self, candidate: Candidate, baseline: str) -> dict[str, str]:
        facts = {"hardware": self.peaks.hardware, "torch": torch.__version__, "baseline": baseline}
        if candidate.language is Language.CPP:
            facts["compiler"] = self.builder.compiler_version
        return facts


def _convict(verdict: Verdict, finding: Finding) -> Verdict:
    finding.__traceback__ = None  # its frames hold the buffers, and one of them the finding: a cycle
    return replace(verdict, status=finding.status, reason=finding.reason, mismatches=finding.mismatches)


def _definition(candidate: Candidate) -> Definition:
    try:
        return catalogue.operator(candidate.operator)
    except UnknownOperatorError as error:
        raise Finding(Status.REJECTED, str(error)) from None


def _check_baseline(definition: Definition, name: str) -> None:
    if name != COMPILED_BASELINE and name not in definition.baselines:
        known = ", ".join([*definition.baselines, COMPILED_BASELINE])
        raise BaselineError(f"operator {definition.name} has no baseline {name!r}: choose one of {known}")


def _first_error(log: str) -> str:
    lines = log.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "the compiler said nothing")


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """torch's threads spin for a while after they worked: here they would steal the cores that are being measured."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
