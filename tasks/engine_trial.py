"""The A/B of live replays in an engine: the same requests with kernels and without, one replay after the other.

The arms take turns in one process, so that a pair meets the same machine; several starts of the process, because where
memory lies and threads run changes from one start to the next, and a gain must outlive that. The local kill switch is
what turns kernels off: it is obeyed at the next step, and is there in every fleet.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill import durable_file
from gristmill.traces import Request
from tasks.errors import ServingError
from tasks.serving_client import ServingProcess

ENGINE, KERNELS = "engine", "kernels"
KILL_WORD = "baseline-only"
BOOTSTRAP_ROUNDS = 4000


@dataclass(frozen=True)
class ArmTimes:
    """One replay, as its clients saw it."""

    tokens_per_s: float
    ttft_s: float
    """Median over its requests; so is the next."""
    tpot_s: float


@dataclass(frozen=True)
class ReplayPair:
    """The same requests in both arms, right after one another."""

    start: int
    """Which start of the process."""
    concurrency: int
    first: str
    engine: ArmTimes
    kernels: ArmTimes


@dataclass(frozen=True)
class TokenDifference:
    """Where the arms first chose different tokens for one request."""

    request: int
    position: int
    engine_token: int
    kernels_token: int
    gap: float | None = None
    """How much the engine's best token stood out there, as `ReplayedRequest.gaps`; None where that was not asked."""


@dataclass(frozen=True)
class Start:
    """What one start of the process gave."""

    pairs: tuple[ReplayPair, ...]
    hits: dict[str, int]
    """By candidate, counted in the engine's workers while kernels were on."""
    hits_off: int
    """And while they were off."""
    compared_requests: int
    """Replayed in both arms."""
    compared_tokens: int
    differences: tuple[TokenDifference, ...]
    operator_ns: dict[str, dict[str, float]]
    """By arm and operator: estimated time per generated token."""
    cpu_ns: dict[str, float] = field(default_factory=dict)
    """By arm: processor time of the worker per generated token, which other work on the host hardly changes."""


@dataclass(frozen=True)
class Ratio:
    """With kernels over without, over all pairs of one concurrency."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Trial:
    """All starts."""

    starts: tuple[Start, ...]
    seed: int

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(sorted({pair.concurrency for start in self.starts for pair in start.pairs}))

    @property
    def hits(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for start in self.starts:
            for candidate, hits in start.hits.items():
                totals[candidate] = totals.get(candidate, 0) + hits
        return totals

    def pairs(self, concurrency: int) -> tuple[ReplayPair, ...]:
        return tuple(pair for start in self.starts for pair in start.pairs if pair.concurrency == concurrency)

    def ratio(self, measure: str, concurrency: int) -> Ratio:
        """Of `tokens_per_s`, `ttft_s` or `tpot_s`: the median over pairs and its 95 % interval. Starts are drawn again
        as well as the pairs in each, so that what differs between starts widens it.
        """
        by_start = [
            [
                getattr(pair.kernels, measure) / max(getattr(pair.engine, measure), 1e-12)
                for pair in start.pairs
                if pair.concurrency == concurrency
            ]
            for start in self.starts
        ]
        return bootstrapped([ratios for ratios in by_start if ratios], self.seed)


@dataclass
class TrialSettings:
    """How long a start is measured."""

    concurrency: tuple[int, ...] = (4, 8)
    pairs: int = 6
    seed: int = 0
    kill_file: Path = field(default_factory=Path)
    """What the process was given as its kill switch file."""


def run_start(
    process: ServingProcess,
    requests: Sequence[Request],
    settings: TrialSettings,
    number: int,
    tell: Callable[[str], None] = lambda text: None,
) -> Start:
    """Measures one running process. Kernels are on afterwards.

    Raises:
        ServingError: the process failed, or replayed something else than it was given.
    """
    chooser = random.Random(f"{settings.seed}/{number}")
    pairs: list[ReplayPair] = []
    compared = 0
    differences: list[TokenDifference] = []
    sampled: dict[str, dict[str, dict[str, int]]] = {ENGINE: {}, KERNELS: {}}
    hits: dict[str, dict[str, int]] = {ENGINE: {}, KERNELS: {}}
    tokens, cpu_ns = {ENGINE: 0, KERNELS: 0}, {ENGINE: 0, KERNELS: 0}
    try:
        for concurrency in settings.concurrency:
            for pair in range(-1, settings.pairs):
                order = [ENGINE, KERNELS]
                chooser.shuffle(order)
                replays = {}
                for arm in order:
                    _switch(settings.kill_file, arm)
                    before = process.status()
                    replays[arm] = process.replay(requests, concurrency, settings.seed)
                    after = process.status()
                    if pair >= 0:  # the first pair of each concurrency warms both arms up
                        tokens[arm] += replays[arm]["generated_tokens"]
                        cpu_ns[arm] += after["cpu_ns"] - before["cpu_ns"]
                        _add(hits[arm], _grown(before["served"], after["served"]))
                        for name, counted in after["sampled"].items():
                            more = _grown(before["sampled"].get(name, {}), counted)
                            _add(sampled[arm].setdefault(name, {}), more)
                if pair < 0:
                    continue
                times = {arm: _times(replay) for arm, replay in replays.items()}
                pairs.append(ReplayPair(number, concurrency, order[0], times[ENGINE], times[KERNELS]))
                found, same = _compared(replays[ENGINE], replays[KERNELS], len(requests))
                compared += same
                differences += found
                tell(
                    f"start {number + 1}, {concurrency} at a time, pair {pair + 1} of {settings.pairs}: "
                    f"{times[ENGINE].tokens_per_s:.1f} -> {times[KERNELS].tokens_per_s:.1f} tokens/s"
                )
        explained = _explained(process, requests, settings, differences)
    finally:
        _switch(settings.kill_file, KERNELS)
    per_token = {arm: _per_token(sampled[arm], tokens[arm]) for arm in sampled}
    off, replayed = sum(hits[ENGINE].values()), len(pairs) * len(requests)
    cpu_per_token = {arm: cpu_ns[arm] / max(1, tokens[arm]) for arm in cpu_ns}
    return Start(tuple(pairs), hits[KERNELS], off, replayed, compared, explained, per_token, cpu_per_token)


def bootstrapped(by_start: Sequence[Sequence[float]], seed: int) -> Ratio:
    """Median of all, and the 95 % percentile interval over starts drawn again and their values drawn again."""
    import numpy

    if not by_start:
        return Ratio(0.0, 0.0, 0.0)
    groups = [numpy.asarray(group) for group in by_start]
    generator = numpy.random.default_rng(seed)
    medians = []
    for _ in range(BOOTSTRAP_ROUNDS):
        drawn = generator.integers(0, len(groups), len(groups))
        medians.append(numpy.median(numpy.concatenate([generator.choice(groups[i], len(groups[i])) for i in drawn])))
    low, high = numpy.percentile(medians, (2.5, 97.5))
    return Ratio(float(numpy.median(numpy.concatenate(groups))), float(low), float(high))


def _switch(kill_file: Path, arm: str) -> None:
    durable_file.write(kill_file, b"" if arm == KERNELS else KILL_WORD.encode())


def _times(replay: Mapping[str, Any]) -> ArmTimes:
    requests = replay["requests"]
    return ArmTimes(
        replay["tokens_per_s"],
        statistics.median(one["ttft_s"] for one in requests),
        statistics.median(one["tpot_s"] for one in requests),
    )


def _compared(
    engine: Mapping[str, Any], kernels: Mapping[str, Any], expected: int
) -> tuple[list[TokenDifference], int]:
    """First differences, and how many tokens were compared: those after a difference follow from it."""
    if len(engine["requests"]) != expected or len(kernels["requests"]) != expected:
        raise ServingError(f"replay: {len(kernels['requests'])} of {expected} requests finished; see the engine's log")
    found, compared = [], 0
    for number, (one, other) in enumerate(zip(engine["requests"], kernels["requests"], strict=True)):
        for position, (own, ours) in enumerate(zip(one["tokens"], other["tokens"], strict=True)):
            compared += 1
            if own != ours:
                found.append(TokenDifference(number, position, own, ours))
                break
    return found, compared


def _explained(
    process: ServingProcess, requests: Sequence[Request], settings: TrialSettings, found: Sequence[TokenDifference]
) -> tuple[TokenDifference, ...]:
    """How clear the engine's choice was where the arms parted: it replays these requests once more, and tells."""
    if not found:
        return ()
    _switch(settings.kill_file, ENGINE)
    replay = process.replay(requests, settings.concurrency[-1], settings.seed, detail=True)
    told = []
    for one in found:
        request = replay["requests"][one.request]
        same_path = request["tokens"][one.position] in (one.engine_token, one.kernels_token)
        gap = request["gaps"][one.position] if same_path and one.position < len(request["gaps"]) else None
        told.append(TokenDifference(one.request, one.position, one.engine_token, one.kernels_token, gap))
    return tuple(told)


def _per_token(sampled: Mapping[str, Mapping[str, int]], tokens: int) -> dict[str, float]:
    return {
        name: one["timed_ns"] * one["calls"] / max(1, one["timed_calls"]) / max(1, tokens)
        for name, one in sampled.items()
    }


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def _add(totals: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value
