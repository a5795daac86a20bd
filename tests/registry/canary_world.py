"""Fleets that report on a canary: hosts with speeds and faults, as their reports tell them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gristmill.status_report import Received, Refused, StatusReport, TableCounts, Work
from gristmill.trust import Channel
from registry.canary import Assessment, WatchPolicy, look
from registry.witness import Canary, Watch, observe

PROMOTED_S = datetime(2026, 12, 2, 12, tzinfo=UTC).timestamp()
TABLE, OTHER = "rms_norm.float32", "softmax.float32"
TRIED = Canary(
    channel=Channel("canary", "chat", "llama", "hw"),
    state="5" * 64,
    number=7,
    promoted_s=PROMOTED_S,
    changed=(TABLE,),
    salt="salt",
    share_permille=0,
)
POLICY = WatchPolicy()
SOAKED_S = PROMOTED_S + POLICY.soak_s
SECOND_NS = 10**9


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class FakeHost:
    """One process; it reports at `seen_s` what it did since it swapped, at its speed."""

    name: str
    canary: bool
    speed: float = 1.0
    mismatches: int = 0
    failures: int = 0
    shadow_checks: int = 5
    hits: int = 5000
    generation: int | None = None
    changes: dict[str, object] = field(default_factory=dict)
    """Of the report."""

    def report(self, seen_s: float) -> StatusReport:
        swapped_s = PROMOTED_S + 20 if self.canary else PROMOTED_S - 5000
        busy = int(max(1.0, seen_s - swapped_s))
        timed = TableCounts(calls=busy * 17, timed_calls=busy, timed_ns=int(busy * 1000 / self.speed))
        tables = {TABLE: timed, OTHER: timed}
        if self.canary:
            tables[TABLE] += TableCounts(
                hits=self.hits, failures=self.failures, shadow_checks=self.shadow_checks, mismatches=self.mismatches
            )
        status = StatusReport(
            host=hashlib.sha256(self.name.encode()).hexdigest(),
            worker="",
            process="p1",
            follows="canary" if self.canary else "stable",
            channel="canary" if self.canary else "stable",
            generation=self.generation or (7 if self.canary else 3),
            work=Work(tables, int(busy * 100 * self.speed), busy * SECOND_NS),
            refusals=(),
            problem="",
            kill="",
            closing=False,
            swapped_utc=utc(swapped_s),
            created_utc=utc(seen_s),
        )
        return replace(status, **self.changes)  # type: ignore[arg-type]

    def received(self, seen_s: float) -> Received:
        status = self.report(seen_s)
        return Received(status.name, seen_s, status)


def fleet(canary: int = 4, rest: int = 6, **of_canary: object) -> list[FakeHost]:
    """Hosts whose speeds lie a little apart."""
    ours = [FakeHost(f"canary {n}", True, **{"speed": 1.10 + n / 500, **of_canary}) for n in range(canary)]  # type: ignore[arg-type]
    return ours + [FakeHost(f"rest {n}", False, 1.0 + n / 500) for n in range(rest)]


def looked(
    hosts: Iterable[FakeHost],
    now_s: float = SOAKED_S,
    policy: WatchPolicy = POLICY,
    extra: Iterable[Received] = (),
    canary: Canary = TRIED,
) -> tuple[Watch, Assessment]:
    """What is said after two looks: a minute after the promotion, and now, at the last report of each host."""
    hosts, extra = list(hosts), list(extra)
    watch = observe(Watch(canary), [host.received(PROMOTED_S + 60) for host in hosts])
    return look(watch, [*(host.received(now_s) for host in hosts), *extra], now_s, policy)


def refusing(host: FakeHost, reason: str = "elements differ") -> FakeHost:
    """It follows canary, and stays with what it had because of what it says of the new one."""
    refusal = Refused(7, "rms_norm", "c" * 64, reason)
    return replace(host, changes={"channel": "canary", "generation": 6, "refusals": (refusal,)})
