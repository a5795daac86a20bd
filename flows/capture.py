"""The capture flow: spool to traffic profile, ranking, drift."""

from __future__ import annotations

from dataclasses import dataclass

from prefect import flow

from flows import cluster, fleet_events
from flows.parameters import WindowH
from flows.steps import Step, table_artifact, tracked
from kernels.drift import Drift, number
from kernels.profile import RankedOperator, TrafficProfile, rank
from kernels.roofline import cached_peaks
from tasks import object_store, traffic
from tasks.settings import Settings, from_environment


@dataclass(frozen=True)
class Captured:
    """What a capture found."""

    profile: TrafficProfile
    digest: str
    ranked: tuple[RankedOperator, ...]
    drift: Drift | None
    """Against the profile last compiled for; None if nothing was compiled yet."""

    @property
    def needs_compile(self) -> bool:
        return self.drift is None or self.drift.exceeds


def capture_steps(settings: Settings, window_h: float, step: Step) -> Captured:
    """Folds, keeps and ranks. Running it twice on one spool changes nothing."""
    with object_store.opened(settings) as opened:
        profile = step(traffic.capture_profile)(opened.store, settings, window_h, cluster.folding(settings, step))
        ranked = rank(profile, step(cached_peaks)(settings.peaks_path))
        digest = step(traffic.keep_profile)(opened.store, settings, profile)
        drift = step(traffic.drift_since_compiled)(opened.store, settings, profile)
    return Captured(profile, digest, ranked, drift)


@flow(name="capture")
def capture(window_h: WindowH = 24.0) -> str:
    """Captures the last hours of traffic; emits an event when it has drifted. Returns the profile's digest."""
    settings = from_environment()
    captured = capture_steps(settings, window_h, tracked)
    table_artifact("ranked-operators", ranking_rows(captured.ranked), "Operators by what optimising them could save")
    if captured.drift is not None:
        table_artifact("drift", drift_rows(captured.drift), "Traffic beside what was last compiled for")
        if captured.drift.exceeds:
            fleet_events.emit_drift(settings, captured.digest, captured.drift)
    return captured.digest


def drift_rows(drift: Drift) -> list[dict[str, str]]:
    """What moved and what did not, as a table, for artifacts and terminals."""
    return [
        {
            "traffic": f"{m.subject} {m.dtype}".rstrip(),
            "axis": m.axis,
            "before": number(m.before),
            "after": number(m.after),
            "octaves": f"{m.octaves:.2f} of {m.octaves_limit:.2f}",
            "psi": "" if m.time_share is None else f"{m.psi:.2f} of {m.psi_limit:.2f}",
            "time": "" if m.time_share is None else f"{m.time_share:.1%}",
            "moved": f"as {m.usual}" if m.usual else ("yes" if m.moved else "too few calls" if m.few else "no"),
        }
        for m in drift.moves
    ]


def ranking_rows(ranked: tuple[RankedOperator, ...]) -> list[dict[str, str]]:
    """The ranking as a table, for artifacts and terminals."""
    return [
        {
            "operator": f"{r.operator} {r.dtype}",
            "share of time": f"{r.time_share:.1%}",
            "headroom": f"{r.headroom:.0%}",
            "could save": f"{r.saving_share:.1%}",
            "workloads": str(r.workloads),
        }
        for r in ranked
    ]
