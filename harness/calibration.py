"""How far this host's timings can be trusted, found out with kernels whose relative speed is known.

A calibration judges identical candidates against one another, each in a runner of its own, and keeps what their
pairs looked like, how often one was called `faster`, and what gain this noise leaves to be told in a given time. It is
kept in the judge's folder, and what it says in short goes into every verdict's evidence.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from statistics import NormalDist

from gristmill import durable_file, records
from gristmill.errors import MalformedRecordError
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness import lease, probes, scheduling, significance
from harness.errors import CalibrationError
from harness.replication import Judging, judge_repeatedly
from kernels import roofline
from kernels.roofline import Peaks
from kernels.verdict import Status, Verdict, WorkloadTiming

FILE_NAME = "calibration.json"
KEPT_FOR = timedelta(weeks=4)
SCHEMA_VERSION = 1
TOLD_WITHIN_S = (1, 5, 20)
POWER = 0.9
"""Share of the cases in which a gain of the told size is proven within the time."""
LOOKS = 16
"""That a run of some hundred to some thousand pairs has."""


@dataclass(frozen=True)
class WorkloadNoise:
    """What identical candidates showed on one workload."""

    label: str
    call_ns: float
    trials: int
    variation: float
    """Of single pairs: `PairNoise.variation`, the median over trials, like what follows."""
    dependence: float
    spikes: float
    """Share of pairs that are off by a factor of 1.5 and more: the mean over trials."""
    drift: float
    """Its size, whichever way."""
    pair_s: float
    offset: float
    """Median over trials of the ratio less 1: what the judge itself makes different between two equals."""
    told: dict[str, float]
    """By seconds of measuring: the smallest gain above `least_gain` that is proven in nine of ten cases."""


@dataclass(frozen=True)
class Calibration:
    """All of one host, at one time."""

    hardware: str
    cores: int
    measured_at: str
    """UTC."""
    real_time: bool
    """Whether measurements go before all other processes of this host."""
    trials: int
    called_faster: int
    """Of identical candidates."""
    least_gain: float
    """Of the policy that was used."""
    workloads: tuple[WorkloadNoise, ...]
    versions: dict[str, str] = field(default_factory=dict)
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def called_faster_at_most(self) -> float:
        """Upper end of the 95 % interval of the share."""
        return share_interval(self.called_faster, self.trials)[1]

    @property
    def summary(self) -> str:
        """One line for the evidence."""
        low, high = _extremes(noise.variation for noise in self.workloads)
        told = max(noise.told["5"] for noise in self.workloads)
        return (
            f"pairs vary by {low:.0%} to {high:.0%}; {self.called_faster} of {self.trials} identical candidates called "
            f"faster; gains of {told:.1%} told in 5 s (calibrated {self.measured_at[:10]})"
        )


def calibrate(judge: Judging, trials: int, least_gain: float, report: Callable[[str], None]) -> Calibration:
    """Judges so many pairs of identical candidates, on all workloads of `probes` in turn.

    Raises:
        CalibrationError: the judge found a probe to be anything but right.
    """
    cases = probes.workloads()
    timings: dict[str, list[WorkloadTiming]] = {workload.digest: [] for workload in cases}
    called_faster, real_time = 0, True
    for number in range(trials):
        workload = cases[number % len(cases)]
        report(f"{number} of {trials} pairs of identical candidates judged, {called_faster} called faster")
        verdict = judge_equals(judge, workload, least_gain)
        called_faster += verdict.status is Status.FASTER
        real_time &= verdict.host.get("scheduling") == scheduling.REAL_TIME
        timings[workload.digest].extend(verdict.timings)
    hardware = local_cpu()
    return Calibration(
        hardware=hardware.key,
        cores=hardware.cores,
        measured_at=records.utc_now(),
        real_time=real_time,
        trials=trials,
        called_faster=called_faster,
        least_gain=least_gain,
        workloads=tuple(workload_noise(found, least_gain) for found in timings.values() if found),
        versions={"python": platform.python_version(), "torch": version("torch"), "kernel": platform.release()},
    )


def judge_equals(judge: Judging, workload: Workload, least_gain: float) -> Verdict:
    """The verdict on a probe that is timed against itself, by as many runs as it takes.

    Raises:
        CalibrationError: it is neither `slower` nor `faster`.
    """
    candidate = probes.probe(workload.operator)
    verdict = judge_repeatedly(judge, candidate, [workload], least_gain, edges=False, baseline=candidate)
    if not verdict.timings:
        raise CalibrationError(
            f"{workload.label}: a probe, which is right, was found {verdict.status.value} "
            f"({verdict.reason}); ./mill doctor says what this host lacks"
        )
    return verdict


def workload_noise(timings: Sequence[WorkloadTiming], least_gain: float) -> WorkloadNoise:
    """What the trials on one workload say together."""
    noises = [timing.noise for timing in timings if timing.noise is not None]
    variation = statistics.median(noise.variation for noise in noises)
    dependence = statistics.median(noise.dependence for noise in noises)
    pair_s = statistics.median(noise.pair_s for noise in noises)
    workload = timings[0].workload
    return WorkloadNoise(
        label=workload.label,
        call_ns=statistics.median(timing.candidate_ns for timing in timings),
        trials=len(timings),
        variation=variation,
        dependence=dependence,
        spikes=statistics.fmean(noise.spikes for noise in noises),
        drift=statistics.median(abs(noise.drift) for noise in noises),
        pair_s=pair_s,
        offset=statistics.median(timing.ratio for timing in timings) - 1,
        told={str(s): told_gain(variation, dependence, s / pair_s, least_gain) for s in TOLD_WITHIN_S},
    )


def told_gain(variation: float, dependence: float, pairs: float, least_gain: float) -> float:
    """The gain that `significance` proves with so many pairs in nine of ten cases, for noise that is about normal."""
    error = significance.FAMILY_ERROR / significance.FAMILY / LOOKS * (1 - significance.SPREAD_ERROR_SHARE)
    deviates = NormalDist().inv_cdf(1 - error) + NormalDist().inv_cdf(POWER)
    return math.exp(math.log1p(least_gain) + deviates * variation * math.sqrt(dependence / pairs)) - 1


def share_interval(count: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927)."""
    z = NormalDist().inv_cdf(0.975)
    centre = (count + z * z / 2) / (trials + z * z)
    reach = z / (trials + z * z) * math.sqrt(count * (trials - count) / trials + z * z / 4)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def keep(work_dir: Path, calibration: Calibration) -> None:
    """Writes it into the judge's folder; it appears by rename."""
    work_dir.mkdir(parents=True, exist_ok=True)
    durable_file.write(work_dir / FILE_NAME, records.canonical_json(calibration))


def kept(work_dir: Path, now: datetime | None = None) -> Calibration | None:
    """The calibration in the judge's folder, if it is of this hardware and not too old."""
    hardware = local_cpu()
    try:
        found = records.parse(Calibration, (work_dir / FILE_NAME).read_bytes(), FILE_NAME)
        expires = datetime.fromisoformat(found.measured_at) + KEPT_FOR
    except (FileNotFoundError, MalformedRecordError, ValueError):
        return None
    ours = (found.hardware, found.cores, found.schema_version) == (hardware.key, hardware.cores, SCHEMA_VERSION)
    return found if ours and expires > (now or datetime.now(UTC)) else None


def facts(work_dir: Path) -> dict[str, str]:
    """What `Verdict.host` says of this host's noise; nothing where it was not calibrated."""
    found = kept(work_dir)
    return {"noise": found.summary} if found else {}


def measure_peaks(path: Path, device: str = "cpu") -> Peaks:
    """Measures what the machine can do while nobody else measures, before all other processes where that is granted,
    and keeps the best in that file."""
    with lease.hold(device), scheduling.measuring_itself():
        measured = roofline.measure_peaks()
    return roofline.keep_peaks(path, measured)


def _extremes(values: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[0], ordered[-1]
