"""How far a search has come: the engine's time in its traffic, what is left of it, and what the hardware needs."""

from __future__ import annotations

from collections.abc import Iterable

from agents.brief import Brief
from gristmill.workload import Workload
from kernels.verdict import Verdict


class Standing:
    """The best proven ratio per workload, weighted by time. Times are shares of what the engine spends in all of it."""

    def __init__(self, brief: Brief) -> None:
        self._shares = {workload.digest: brief.weight(workload) for workload in brief.workloads}
        self._ratios: dict[str, float] = {}
        self._floors: dict[str, float] = {}
        """Roofline time over the baseline's time, the least that was measured: doubt is for going on."""

    def learn(self, verdict: Verdict) -> None:
        """A gain counts where the interval lies above 1, as in `agents.swarm.Selection`."""
        for timing in verdict.timings:
            key = timing.workload.digest
            if timing.baseline_ns > 0:
                floor = timing.roofline_fraction * timing.candidate_ns / timing.baseline_ns
                self._floors[key] = min(self._floors.get(key, floor), floor)
            if verdict.won and timing.ratio_low > 1:
                self._ratios[key] = max(self._ratios.get(key, 1.0), timing.ratio)

    def time(self, workloads: Iterable[Workload] | None = None) -> float:
        """What is left with the best kernel for each of them (all, if none are named); 1 for all at the start."""
        return sum(self._share(key) for key in self._keys(workloads))

    def needed(self, workloads: Iterable[Workload] | None = None) -> float:
        """Of that, what the roofline says cannot be saved; 0 of a workload that nobody has timed."""
        return sum(min(self._share(key), self._floor(key)) for key in self._keys(workloads))

    def headroom(self, workloads: Iterable[Workload] | None = None) -> float:
        """What perfect kernels would still save."""
        chosen = None if workloads is None else list(workloads)
        return self.time(chosen) - self.needed(chosen)

    @property
    def roofline_fraction(self) -> float:
        """Needed over left: 1 is the hardware's limit on all traffic."""
        left = self.time()
        return self.needed() / left if left else 0.0

    def _keys(self, workloads: Iterable[Workload] | None) -> list[str]:
        if workloads is None:
            return list(self._shares)
        return [workload.digest for workload in workloads if workload.digest in self._shares]

    def _share(self, key: str) -> float:
        return self._shares[key] / self._ratios.get(key, 1.0)

    def _floor(self, key: str) -> float:
        return self._shares[key] * self._floors.get(key, 0.0)
