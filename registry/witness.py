"""Witnesses: what hosts have said of a canary so far, remembered from one look to the next. Pure, without IO.

A report stands for one moment of one process; a witness for all that this process and those before it counted while
they served one generation. A report that can't be true changes no witness. It is kept as a flaw, for whoever decides
to count its host as missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gristmill.cohort import AUTO, CANARY, in_cohort
from gristmill.status_report import Received, StatusReport, Work
from gristmill.trust import Channel

MAX_CLOCK_SKEW_S = 300.0
"""A host whose clock is further from the store's has no idea of when it swapped."""
MAX_COUNT = 1 << 62


@dataclass(frozen=True)
class Canary:
    """What is tried: a state of a canary channel that stable does not serve."""

    channel: Channel
    state: str
    """SHA-256 of the index."""
    number: int
    promoted_s: float
    """When it was made current: seconds since 1970, by the store's clock."""
    changed: tuple[str, ...]
    """Tables that stable does not serve, or serves otherwise."""
    salt: str
    share_permille: int
    """Of the fleet's `auto` hosts; see `gristmill.cohort`."""
    manifests: dict[str, str] = field(default_factory=dict)
    """Table to the digest of its manifest, for those that changed."""
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Likewise, to the digests of the objects and candidates that stable does not serve in it: what a failure is the
    fault of, whichever manifest brings them."""

    def expects(self, host: str, follows: str) -> bool:
        """Whether a host with this setting has to serve it."""
        return follows == CANARY or (follows == AUTO and in_cohort(host, self.channel, self.salt, self.share_permille))

    def named(self, table: str) -> frozenset[str]:
        """The digests that a failure of this table is remembered by."""
        return frozenset((self.manifests[table], *self.kernels.get(table, ())))

    def is_served(self, report: StatusReport) -> bool:
        return (report.channel, report.generation) == (CANARY, self.number)


@dataclass(frozen=True)
class Witness:
    """One process of a host, and those whose place it took, under one generation."""

    report: StatusReport
    """The last one that can be true."""
    written_s: float
    earlier: Work = field(default_factory=Work)
    """Counted under this generation before the current process, or its current swap."""
    unwatched: Work = field(default_factory=Work)
    """Counted before the canary was promoted."""
    restarts: int = 0

    @property
    def work(self) -> Work:
        """All that was counted under this generation."""
        return self.earlier + self.report.work

    @property
    def watched(self) -> Work:
        """The part of it since the promotion."""
        return self.work - self.unwatched


@dataclass(frozen=True)
class Flaw:
    """A report that does not count."""

    reason: str
    written_s: float


@dataclass(frozen=True)
class Watch:
    """What is remembered of one canary between two looks."""

    canary: Canary
    witnesses: dict[str, Witness] = field(default_factory=dict)
    """By `StatusReport.name`."""
    flaws: dict[str, Flaw] = field(default_factory=dict)
    """Likewise: newest reports that do not count."""
    failed: str = ""
    """Why the canary has failed. Once it has, it stays so: what is to be undone must not look well meanwhile."""
    inherited: dict[str, str] = field(default_factory=dict)
    """Manifest, object or candidate to why it failed, for those that canary has served without a break since a state
    before, which failed: a promotion between a failure and what is done about it must not wash it off, nor must
    another manifest of the same code."""

    @property
    def failed_before(self) -> dict[str, str]:
        """Tables that are tried and failed under an earlier state, and why."""
        found = {table: self.inherited.keys() & self.canary.named(table) for table in self.canary.manifests}
        return {table: self.inherited[min(digests)] for table, digests in found.items() if digests}

    @property
    def failures(self) -> dict[str, str]:
        """Tables that are tried and have failed, under this state or an earlier one, and why."""
        own = dict.fromkeys(self.canary.manifests, self.failed) if self.failed else {}
        return {**own, **self.failed_before}

    @property
    def condemned(self) -> dict[str, str]:
        """Manifest, object or candidate to why it has failed, under this state or an earlier one: all that is tried,
        if this one failed."""
        tried = frozenset[str]().union(*map(self.canary.named, self.canary.manifests))
        own = dict.fromkeys(tried, self.failed) if self.failed else {}
        return {**own, **self.inherited}

    schema_version: int = 1


def observe(watch: Watch, received: Iterable[Received]) -> Watch:
    """The watch after one more look at the latest reports. Looking twice at the same ones changes nothing."""
    witnesses, flaws = dict(watch.witnesses), dict[str, Flaw]()
    for one in received:
        before = witnesses.get(one.name)
        flaw = one.flaw or _flaw(one, before)
        if flaw:
            flaws[one.name] = Flaw(flaw, one.written_s)
        else:
            assert one.report is not None, "it is not flawed"
            witnesses[one.name] = _heard(watch.canary, before, one.report, one.written_s)
    return replace(watch, witnesses=witnesses, flaws=flaws)


def _heard(canary: Canary, before: Witness | None, report: StatusReport, written_s: float) -> Witness:
    if before is None or _generation(before.report) != _generation(report):
        counted_before = not canary.is_served(report) and _seconds(report.swapped_utc) < canary.promoted_s
        return Witness(report, written_s, unwatched=report.work if counted_before else Work())
    if _stretch(before.report) == _stretch(report):
        return replace(before, report=report, written_s=written_s)
    restarted = before.report.process != report.process and not before.report.closing
    return replace(
        before,
        report=report,
        written_s=written_s,
        earlier=before.work,
        restarts=before.restarts + restarted,
    )


def _flaw(received: Received, before: Witness | None) -> str:
    """Why a report can't be true; empty if it can. Counts of several threads may be off by a few, so they may fall."""
    report = received.report
    assert report is not None, "it could be read"
    counts = [
        report.generation,
        report.work.decode_tokens,
        report.work.decode_ns,
        *(count for table in report.work.tables.values() for count in dataclasses.astuple(table)),
    ]
    impossible = [count for count in counts if not 0 <= count <= MAX_COUNT]
    if impossible:
        return f"a count is {'negative' if impossible[0] < 0 else 'larger than any can be'}"
    try:
        created_s, swapped_s = _seconds(report.created_utc), _seconds(report.swapped_utc)
    except (ValueError, OverflowError):
        return f"its times are none ({report.created_utc[:40]!r}, {report.swapped_utc[:40]!r})"
    if abs(created_s - received.written_s) > MAX_CLOCK_SKEW_S:
        return f"its clock is {created_s - received.written_s:+.0f} s off the store's"
    if swapped_s > created_s:
        return "it was made before the swap that it tells of"
    if before is None:
        return ""
    if created_s < _seconds(before.report.created_utc):
        return "it is older than one that was seen before"
    if _stretch(before.report) == _stretch(report) and _fell(before.report.work, report.work):
        return "what it counts has fallen"
    return ""


def _fell(before: Work, after: Work) -> bool:
    """Fallbacks are counted without a lock: where several threads run the engine, their number may fall."""
    grown = after - before
    tables = {name: replace(counts, fallbacks=0) for name, counts in grown.tables.items()}
    return replace(grown, tables=tables).has_negative


def _generation(report: StatusReport) -> tuple[str, int]:
    return report.channel, report.generation


def _stretch(report: StatusReport) -> tuple[str, str, int, str]:
    """As long as this stays, counters only grow."""
    return report.process, report.channel, report.generation, report.swapped_utc


def _seconds(utc: str) -> float:
    moment = datetime.fromisoformat(utc)
    if moment.tzinfo is None:
        raise ValueError(f"{utc}: no time zone")
    return moment.timestamp()


def host_of(name: str) -> str:
    """The host in a `StatusReport.name`."""
    return name.partition(".")[0]


def by_host(witnesses: Mapping[str, Witness]) -> dict[str, Work]:
    """What each host has counted since the promotion, all its processes together."""
    total: dict[str, Work] = {}
    for name, witness in witnesses.items():
        host = host_of(name)
        total[host] = total.get(host, Work()) + witness.watched
    return total
