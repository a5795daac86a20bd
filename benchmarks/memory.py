"""`python -m benchmarks.memory`: how many candidates a search needs that remembers, against one that does not.

Per operator and seed: a first search on some shapes fills a memory. Then two more search other shapes of the operator,
in turn, candidate by candidate, in the same process and with the same judge: one cold, one that recalls. All have the
same number of candidates.

Two levels are asked for. *The first one's best* is what the best candidates of the first search give on the new shapes:
the traffic-weighted gain with the best of them for each workload; the search that recalls is compared with the
candidates that the first search needed for its own best, on its own shapes. *A cold search's best* is what the cold
search ends with, and it is compared with the candidates that one needed. A search has *reached* a level with the n-th
candidate if the best of its first n give 95 % of it: nearer than that a search's own timings cannot tell them apart. So
that luck in a quick timing neither sets a level nor hides who reached it, the five best of each search on each workload
are judged again three times, and the median of those ratios is what counts. The figures are the sum of the candidates
with memory over the sum of those without, over all operators and seeds, so that an operator whose first default is the
best already weighs no more than it costs; a search that never reaches the level counts with all its candidates and one
more.

Both are measured twice. Searches run as they are: pattern agents begin with constants that were set by hand for
hardware like this. Or nobody has set any, as for a language model's own program (`--unset`): what memory brings where
experience is not in the sources already.

All operators are searched with one seed after another, until it is sure on which side of the target the figures lie
(their 99 % intervals over pairs of searches exclude the target), but with no more than `--seeds` of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.agent import Agent
from agents.brief import Brief
from agents.memory import Remembered
from agents.pattern_agent import PatternAgent
from agents.swarm import pattern_agents, remembered_first
from benchmarks.figures import Figure, Outcome, report
from cli.table import compact_table
from gristmill.directory_store import DirectoryStore
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness.judge import Judge
from harness.policy import search
from kernels import catalogue, inputs
from kernels.candidate import Candidate
from kernels.roofline import Peaks, cached_peaks
from kernels.verdict import Verdict
from tasks.compilation import weighted_gain
from tasks.search_memory import SearchMemory

COMMAND = "python -m benchmarks.memory"
ISSUE = 4
TARGET = 0.5
REACHED = 0.95
"""The tolerance of `harness.policy.search`."""
CANDIDATES = 24
SEEDS = 3
SURE = 0.99
AGAIN = 3
"""Judgements of each contender."""
CONTENDERS = 5
LEVELS = "the first one's best", "a cold search's best"
UNSET = ", where nobody has set constants by hand"
BUILD_AHEAD = 3
RESAMPLES = 4000


Recruit = Callable[[Brief, int, Sequence[Remembered]], list[Agent]]


@dataclass(frozen=True)
class Case:
    """One operator with the shapes of a first search and those of the next: another model, other batch sizes."""

    operator: str
    dtype: str
    first: tuple[Mapping[str, int], ...]
    then: tuple[Mapping[str, int], ...]

    @property
    def name(self) -> str:
        return f"{self.operator} {self.dtype}"


def _tokens(extents: Sequence[int], **constant: int) -> tuple[Mapping[str, int], ...]:
    return tuple({"tokens": extent, **constant} for extent in extents)


BATCHES = ((1, 8, 256), (2, 16, 384))
LINEARS = (((1024, 1024), (2816, 1024)), ((1536, 1536), (1536, 2048)))


def _rows(operator: str, dtype: str, first: Mapping[str, int], then: Mapping[str, int]) -> Case:
    return Case(operator, dtype, *(_tokens(b, **constant) for b, constant in zip(BATCHES, (first, then), strict=True)))


def _linear(dtype: str) -> Case:
    batches = (1, 8), (2, 6)
    shapes = (
        tuple(shape for k, n in layers for shape in _tokens(batch, in_features=k, out_features=n))
        for layers, batch in zip(LINEARS, batches, strict=True)
    )
    return Case("skinny_linear", dtype, *shapes)


HEADS = {"query_heads": 16, "key_heads": 4, "head_dim": 64}, {"query_heads": 12, "key_heads": 4, "head_dim": 128}
CASES = (
    _rows("rms_norm", "float32", {"hidden": 1024}, {"hidden": 1536}),
    _rows("fused_add_rms_norm", "bfloat16", {"hidden": 1024}, {"hidden": 1536}),
    _rows("silu_and_mul", "float32", {"intermediate": 2816}, {"intermediate": 2048}),
    _rows("rotary_embedding", "float32", *HEADS),
    _linear("float32"),
    _linear("bfloat16"),
)


@dataclass(frozen=True)
class Comparison:
    """How soon a search without memory and one with it reached a level."""

    operator: str
    """And dtype."""
    seed: int
    level: float
    without: int
    warm: int

    @property
    def ratio(self) -> float:
        return self.warm / self.without


@dataclass(frozen=True)
class Trial:
    """One judged candidate."""

    candidate: Candidate
    verdict: Verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", action="append", default=[], help="only this one (repeatable); writes no figure")
    parser.add_argument("--unset", action="store_true", help="without constants that were set by hand")
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help="of each search")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="that each operator is searched with at most")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.operator or case.operator in arguments.operator]
    recruit = unset_agents if arguments.unset else pattern_agents
    found: list[tuple[Comparison, ...]] = []
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        peaks = cached_peaks(Path(folder) / "peaks.json")
        for seed in range(arguments.seeds):
            for case in cases:
                home = Path(folder) / f"{case.operator}-{case.dtype}-{seed}"
                both = compare(case, seed, arguments.candidates, home, peaks, recruit)
                for level, one in zip(LEVELS, both, strict=True):
                    reached_with = f"{one.level:.2f}x with {one.warm} instead of {one.without}"
                    print(f"{one.operator}, seed {seed}, {level}: {reached_with}", flush=True)
                found.append(both)
            if all(is_sure(of_level) for of_level in zip(*found, strict=True)):
                break
    rows = []
    for level, of_level in zip(LEVELS, zip(*found, strict=True), strict=True):
        print(f"\n{level}\n{table(of_level)}")
        rows.append(figure(of_level, level, arguments.candidates, unset=arguments.unset))
    return report(rows, keep=not (arguments.dry_run or arguments.operator))


def unset_agents(brief: Brief, seed: int, remembered: Sequence[Remembered] = ()) -> list[Agent]:
    """Pattern agents whose first values are not set by hand."""
    agents = pattern_agents(brief, seed, remembered)
    for agent in agents:
        assert isinstance(agent, PatternAgent)
        agent.pattern = dataclasses.replace(agent.pattern, defaults=lambda target: ())
    return agents


def compare(
    case: Case, seed: int, count: int, folder: Path, peaks: Peaks, recruit: Recruit
) -> tuple[Comparison, Comparison]:
    """One operator and seed, from an empty memory: to each of `LEVELS`."""
    first, then = (workloads_of(case, axes) for axes in (case.first, case.then))
    with memory_in(folder) as memory, Judge(folder / "judge", search(), peaks) as judge:
        brief = brief_of(first, peaks)
        before = list(explored(judge, brief, seed, memory, count, recruit))
        for trial in before:
            memory.record(trial.candidate, trial.verdict)
        brief = brief_of(then, peaks)
        cold = explored(judge, brief, seed + 1000, None, count, recruit)
        warm = explored(judge, brief, seed + 1000, memory, count, recruit)
        pairs = list(zip(cold, warm, strict=False))
        searches = [list(trials) for trials in zip(*pairs, strict=True)]
        best = contenders(before)
        ratios_before = judged_again(judge, first, best)
        ratios = judged_again(judge, then, [*best, *contenders(searches[0]), *contenders(searches[1])])
    before_gains = gains(before, first, ratios_before)
    cold_gains, warm_gains = (gains(trials, then, ratios) for trials in searches)
    winners = gains([trial for trial in before if trial.candidate in best], then, ratios)
    level = winners[-1] if winners else 1.0
    return (
        Comparison(case.name, seed, level, reached(before_gains, before_gains[-1]), reached(warm_gains, level)),
        Comparison(
            case.name, seed, cold_gains[-1], reached(cold_gains, cold_gains[-1]), reached(warm_gains, cold_gains[-1])
        ),
    )


def contenders(trials: Sequence[Trial]) -> list[Candidate]:
    """The best few of a search on each workload, by their first timings; each once."""
    timed: dict[str, list[tuple[float, Candidate]]] = {}
    for trial in trials:
        for timing in trial.verdict.timings if trial.verdict.won else ():
            if timing.ratio_low > 1:
                timed.setdefault(timing.workload.digest, []).append((timing.ratio, trial.candidate))
    best = [sorted(found, key=lambda pair: -pair[0])[:CONTENDERS] for found in timed.values()]
    return list({candidate.digest: candidate for found in best for _, candidate in found}.values())


def judged_again(
    judge: Judge, workloads: Sequence[Workload], candidates: Sequence[Candidate]
) -> dict[tuple[str, str], float]:
    """Median ratios by `(candidate, workload)`. Candidates take turns, so that a slow minute hits all of them."""
    chosen = {candidate.digest: candidate for candidate in candidates}
    ratios: dict[tuple[str, str], list[float]] = {}
    for _ in range(AGAIN):
        for digest in sorted(chosen):
            for timing in judge.judge(chosen[digest], workloads).timings:
                ratios.setdefault((digest, timing.workload.digest), []).append(timing.ratio)
    return {key: statistics.median(found) for key, found in ratios.items()}


def gains(
    trials: Sequence[Trial], workloads: Sequence[Workload], ratios: Mapping[tuple[str, str], float]
) -> list[float]:
    """The traffic-weighted gain with the best so far for each workload, after each candidate; by these ratios."""
    best: dict[str, float] = {}
    course = []
    for trial in trials:
        for workload in workloads:
            key = workload.digest
            best[key] = max(best.get(key, 1.0), ratios.get((trial.candidate.digest, key), 1.0))
        course.append(weighted_gain(workloads, best))
    return course


def reached(gains: Sequence[float], level: float) -> int:
    """With how many candidates; one more than there were, if never."""
    return next((n for n, gain in enumerate(gains, start=1) if gain >= REACHED * level), len(gains) + 1)


def table(found: Sequence[Comparison]) -> str:
    rows = [[one.operator, one.seed, f"{one.level:.2f}x", one.without, one.warm, f"{one.ratio:.2f}"] for one in found]
    return compact_table(rows, ["operator", "seed", "level", "without", "with memory", "ratio"])


def figure(found: Sequence[Comparison], level: str, count: int, *, unset: bool = False) -> Figure:
    """The row."""
    low, high = interval(found)
    measured = total_ratio(found)
    ratios = [one.ratio for one in found]
    operators = len({one.operator for one in found})
    warm, without = (sum(counts) for counts in zip(*((one.warm, one.without) for one in found), strict=True))
    return Figure(
        f"second search of an operator on new shapes: candidates to {level}{UNSET if unset else ''}",
        ISSUE,
        f"at most {TARGET} of those without memory",
        "x",
        f"{COMMAND} --unset" if unset else COMMAND,
        round(measured, 3),
        (round(low, 3), round(high, 3)),
        Outcome.MET if measured <= TARGET else Outcome.MISSED,
        note=f"{warm} instead of {without} candidates over {operators} operators and {len(found)} pairs of searches of "
        f"{count}; per pair: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}",
    )


def total_ratio(found: Sequence[Comparison]) -> float:
    return sum(one.warm for one in found) / sum(one.without for one in found)


def is_sure(found: Sequence[Comparison]) -> bool:
    """Whether the target lies outside of the interval."""
    low, high = interval(found, SURE)
    return high <= TARGET or low > TARGET


def interval(found: Sequence[Comparison], sure: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval of the ratio of sums, over pairs of searches."""
    chance = random.Random(0)
    ratios = sorted(total_ratio(chance.choices(found, k=len(found))) for _ in range(RESAMPLES))
    outside = (1 - sure) / 2
    return ratios[int(outside * RESAMPLES)], ratios[int((1 - outside) * RESAMPLES)]


def workloads_of(case: Case, shapes: Sequence[Mapping[str, int]]) -> tuple[Workload, ...]:
    """Every shape with the same share of the engine's time."""
    definition = catalogue.operator(case.operator)
    return tuple(
        dataclasses.replace(inputs.workload(definition, case.dtype, **axes), calls=1, time_ns=1) for axes in shapes
    )


def brief_of(workloads: tuple[Workload, ...], peaks: Peaks) -> Brief:
    operator, dtype = workloads[0].operator, workloads[0].dtype
    speed = peaks.memory_bandwidth_gb_s, peaks.gflops["float32"]
    return Brief(operator, dtype, workloads, local_cpu(), peaks.cores, *speed)


def explored(
    judge: Judge, brief: Brief, seed: int, memory: SearchMemory | None, count: int, recruit: Recruit = pattern_agents
) -> Iterator[Trial]:
    """A search of so many candidates, or of all there are, by the pattern agents in turn; with a memory, it starts from
    what that holds.
    """
    remembered = memory.recall(brief.operator, brief.dtype, brief.hardware).candidates if memory else ()
    every = recruit(brief, seed, remembered)
    agents, waiting = deque(every), deque(remembered_first(every, remembered, brief))
    for _ in range(count):
        while agents and len(waiting) < BUILD_AHEAD:
            agent = agents.popleft()
            for candidate in agent.propose(brief, 1):
                judge.prepare(candidate)
                waiting.append(candidate)
                agents.append(agent)
        if not waiting:
            return
        candidate = waiting.popleft()
        verdict = judge.judge(candidate, brief.workloads)
        for agent in every:
            agent.learn(candidate, verdict)
        yield Trial(candidate, verdict)


def memory_in(folder: Path) -> SearchMemory:
    folder.mkdir(parents=True)
    (folder / "store").mkdir()
    store = DirectoryStore(folder / "store")
    return SearchMemory(folder, local_cpu().key, lambda: contextlib.nullcontext(store))


if __name__ == "__main__":
    sys.exit(main())
