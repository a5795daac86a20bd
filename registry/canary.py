"""The watch on a canary: whether it has succeeded, has failed, or what is missing to tell. Pure decisions, without IO.

Reports are unsigned, so a host is believed only as far as a host may be. One that lies can make a canary fail, and
is then one host for its owners to look at. It can't make one succeed: faults that others report stand, what
it says of itself counts as one host of several, and the interval of a comparison ends among the honest ones. Whoever
can write the reports of many hosts can feign success; what stable serves still needs the approver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gristmill.cohort import CANARY
from gristmill.status_report import Received, TableCounts, Work
from registry.comparison import Comparison, compare
from registry.witness import Canary, Watch, Witness, by_host, observe

TOKENS = "tokens/s"
NAMED = 3
"""Hosts or reasons that a sentence names; it counts the others."""


class Outcome(StrEnum):
    """What the watch says of a canary."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class Role(StrEnum):
    """What a process is to a canary."""

    CANARY = "canary"
    """It serves the generation that is tried."""
    PENDING = "pending"
    """It should, and does not yet."""
    REST = "rest"
    """It serves something else, as it should: what the canary is compared with."""


@dataclass(frozen=True)
class WatchPolicy:
    """What hosts must have said before a canary may have succeeded, and what makes it fail."""

    min_hosts: int = 3
    """Canary hosts, and of the rest as many. With fewer than three, one that lies would be believed."""
    min_calls: int = 100
    """Calls of each changed table that kernels must have served on each of so many hosts: hits prove use."""
    min_shadow_checks: int = 1
    """Of each changed table, on all canary hosts together."""
    min_timed_calls: int = 20
    """Of an operator on a host, for its time to count."""
    soak_s: float = 1800.0
    """Time since the promotion before which nothing succeeds."""
    deadline_s: float = 3600.0
    """Time since the promotion, or since anybody reported, from which no report is a failure."""
    silent_s: float = 180.0
    """A process that has not reported for so long is gone. Hosts report every 15 s."""
    alive_s: float = 60.0
    """One that reported so shortly before the promotion was alive at it."""
    max_failures: int = 0
    """Calls in which a kernel raised or refused."""
    max_mismatches: int = 0
    max_refusals: int = 0
    """Hosts that would not run what is tried."""
    max_lost: int = 0
    """Canary processes that fell silent without a last word."""
    max_restarts: int = 2
    """Of one canary process."""
    min_tokens_ratio: float = 0.98
    """Tokens/s of canary hosts over that of the rest: the interval must lie above, and fails the canary if below."""
    min_operator_ratio: float = 0.95
    """The same for the speed of each operator."""


DEFAULT_POLICY = WatchPolicy()


@dataclass(frozen=True)
class Assessment:
    """What the watch says, and on what grounds."""

    outcome: Outcome
    reason: str
    missing: tuple[str, ...] = ()
    """What would have to be known."""
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class _View:
    """A watch at one moment."""

    watch: Watch
    policy: WatchPolicy
    now_s: float

    @property
    def canary(self) -> Canary:
        return self.watch.canary

    @property
    def age_s(self) -> float:
        return self.now_s - self.canary.promoted_s

    def of(self, role: Role) -> dict[str, Witness]:
        return {name: one for name, one in self.watch.witnesses.items() if role_of(one, self.canary) is role}

    def silent(self, witness: Witness) -> bool:
        return self.now_s - witness.written_s > self.policy.silent_s

    def present(self, name: str, witness: Witness) -> bool:
        return not (self.silent(witness) or witness.report.closing or name in self.watch.flaws)

    def flaws(self) -> dict[str, str]:
        """Recent reports that do not count and may be of a canary host: of one, or of nobody knows whom."""
        return {
            name: flaw.reason
            for name, flaw in sorted(self.watch.flaws.items())
            if self.now_s - flaw.written_s <= self.policy.silent_s
            and not ((known := self.watch.witnesses.get(name)) and role_of(known, self.canary) is Role.REST)
        }

    def comparable(self, role: Role) -> dict[str, Work]:
        """Work of the hosts of a role whose word counts now and that run kernels as they should."""
        return by_host(
            {name: one for name, one in self.of(role).items() if self.present(name, one) and not one.report.kill}
        )


def role_of(witness: Witness, canary: Canary) -> Role:
    """What a process is to a canary."""
    if canary.is_served(witness.report):
        return Role.CANARY
    report = witness.report
    if canary.expects(report.host, report.follows) or report.channel == CANARY:
        return Role.PENDING
    return Role.REST


def look(
    watch: Watch, received: Iterable[Received], now_s: float, policy: WatchPolicy = DEFAULT_POLICY
) -> tuple[Watch, Assessment]:
    """One look at the latest reports: what is to be remembered, and what it says.

    Args:
        now_s: by the clock that stamped the reports.
    """
    watch = observe(watch, received)
    assessment = assess(watch, now_s, policy)
    if assessment.outcome is Outcome.FAILED and not watch.failed_before:
        watch = replace(watch, failed=assessment.reason)
    return watch, assessment


def assess(watch: Watch, now_s: float, policy: WatchPolicy = DEFAULT_POLICY) -> Assessment:
    """Succeeded if nothing speaks against it and nothing is missing; failed if something does; else inconclusive."""
    view = _View(watch, policy, now_s)
    comparisons = _comparisons(view)
    failed = (
        watch.failed or next(_relapses(view), "") or next(_faults(view), "") or next(_slower(comparisons, policy), "")
    )
    if failed:
        return Assessment(Outcome.FAILED, failed, (), comparisons)
    missing = (*_missing(view), *_unsure(view, comparisons))
    if missing:
        more = f", and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        return Assessment(Outcome.INCONCLUSIVE, "; ".join(missing[:NAMED]) + more, missing, comparisons)
    return Assessment(Outcome.SUCCEEDED, _praise(view, comparisons), (), comparisons)


def _relapses(view: _View) -> Iterator[str]:
    for table, why in view.watch.failed_before.items():
        yield f"{table} failed before, and was promoted again with others before it was taken back: {why}"


def _faults(view: _View) -> Iterator[str]:
    """Why the canary has failed whatever its speed, worst first."""
    policy, served = view.policy, view.of(Role.CANARY)
    for what, limit in (("mismatches", policy.max_mismatches), ("failures", policy.max_failures)):
        counted = {
            f"{table} on {_short(name)}": count
            for name, one in served.items()
            for table, counts in one.work.tables.items()
            if (count := getattr(counts, what))
        }
        if sum(counted.values()) > limit:
            yield f"{sum(counted.values())} {what} ({_named(counted)}), at most {limit} allowed"
    refused = dict(_refusals(view))
    if len(refused) > policy.max_refusals:
        name, reason = next(iter(refused.items()))
        yield f"{len(refused)} hosts refused it, e.g. {_short(name)}: {reason}"
    crashed = [name for name, one in served.items() if one.restarts > policy.max_restarts]
    if crashed:
        yield f"restarted more than {policy.max_restarts} times while serving it: {_named(map(_short, crashed))}"
    yield from _silence(view)


def _silence(view: _View) -> Iterator[str]:
    policy = view.policy
    served = view.of(Role.CANARY)
    gone = {
        name: one
        for name, one in {**served, **view.of(Role.PENDING)}.items()
        if view.silent(one) and not one.report.closing and _was_alive(one, view)
    }
    others = [view.silent(one) for one in view.of(Role.REST).values() if not one.report.closing]
    outage = others and all(others)
    if len(gone) > policy.max_lost and not outage:
        yield f"fell silent after the promotion: {_named(map(_short, gone))}"
    heard_s = max((one.written_s for one in view.watch.witnesses.values()), default=0.0)
    if view.age_s > policy.deadline_s and not served:
        yield f"no host has reported that it serves it, {_minutes(view.age_s)} after the promotion"
    if view.now_s - max(heard_s, view.canary.promoted_s) > policy.deadline_s:
        yield f"no host has reported for {_minutes(policy.deadline_s)}"


def _was_alive(witness: Witness, view: _View) -> bool:
    return view.canary.is_served(witness.report) or witness.written_s >= view.canary.promoted_s - view.policy.alive_s


def _refusals(view: _View) -> Iterator[tuple[str, str]]:
    canary = view.canary
    operators = {table.partition(".")[0] for table in canary.changed}
    for name, one in {**view.of(Role.PENDING), **view.of(Role.CANARY)}.items():
        for refused in one.report.refusals:
            if refused.generation == canary.number and refused.operator in operators:
                yield name, refused.reason
                break


def _comparisons(view: _View) -> tuple[Comparison, ...]:
    """Of tokens/s, and of each operator that both kinds of hosts have timed."""
    canary, rest = view.comparable(Role.CANARY), view.comparable(Role.REST)
    found = []
    for what in _measured(view, canary, rest):
        ours, theirs = (_speeds(work, what, view.policy) for work in (canary, rest))
        if ours and theirs:
            least = view.policy.min_tokens_ratio if what == TOKENS else view.policy.min_operator_ratio
            found.append(compare(what, ours, theirs, least, view.canary.number))
    return tuple(found)


def _measured(view: _View, canary: Mapping[str, Work], rest: Mapping[str, Work]) -> list[str]:
    """What can be compared at all: what some host has measured."""
    tables = {name for work in (*canary.values(), *rest.values()) for name in work.tables}
    return [
        what
        for what in (TOKENS, *sorted(tables))
        if _speeds(canary, what, view.policy) or _speeds(rest, what, view.policy)
    ]


def _speeds(hosts: Mapping[str, Work], what: str, policy: WatchPolicy) -> list[float]:
    """Tokens, or calls, per nanosecond of each host that has measured it."""
    if what == TOKENS:
        return [w.decode_tokens / w.decode_ns for w in hosts.values() if w.decode_ns > 0 and w.decode_tokens > 0]
    counts = [work.of(what) for work in hosts.values()]
    return [c.timed_calls / c.timed_ns for c in counts if c.timed_calls >= policy.min_timed_calls and c.timed_ns > 0]


def _enough(comparison: Comparison, policy: WatchPolicy) -> bool:
    return min(comparison.canary_hosts, comparison.rest_hosts) >= policy.min_hosts


def _slower(comparisons: Iterable[Comparison], policy: WatchPolicy) -> Iterator[str]:
    for one in comparisons:
        if _enough(one, policy) and one.ratio_high < one.least:
            yield f"{_told(one)}, at least {one.least:g}x was asked for"


def _missing(view: _View) -> Iterator[str]:
    """What hosts have not said yet, apart from how fast they are."""
    policy, canary = view.policy, view.canary
    if view.age_s < policy.soak_s:
        yield f"it has run for {_minutes(view.age_s)} of {_minutes(policy.soak_s)}"
    for role in (Role.CANARY, Role.REST):
        hosts = view.comparable(role)
        if len(hosts) < policy.min_hosts:
            yield f"{len(hosts)} of {policy.min_hosts} {role.value} hosts report"
    served = by_host(view.of(Role.CANARY))
    for table in canary.changed:
        counts = [work.of(table) for work in served.values()]
        users = sum(count.hits >= policy.min_calls for count in counts)
        if users < policy.min_hosts:
            yield f"{table} has served {policy.min_calls} calls on {users} of {policy.min_hosts} hosts"
        checks = sum(count.shadow_checks for count in counts)
        if checks < policy.min_shadow_checks:
            yield f"{table} was shadow-checked {checks} times, {policy.min_shadow_checks} were asked for"
    for name, flaw in view.flaws().items():
        yield f"the report of {_short(name)} does not count: {flaw}"


def _unsure(view: _View, comparisons: tuple[Comparison, ...]) -> Iterator[str]:
    """Speeds that may be too low, or that too few hosts have measured."""
    canary, rest = view.comparable(Role.CANARY), view.comparable(Role.REST)
    found = {one.what: one for one in comparisons}
    needed = [what for what in _measured(view, canary, rest) if what == TOKENS or what in view.canary.changed]
    if not needed:
        yield "no host has measured tokens/s or the time of an operator that changed"
    for what in needed:
        one = found.get(what)
        if one is None or not _enough(one, view.policy):
            have = (one.canary_hosts, one.rest_hosts) if one else (0, 0)
            yield f"{what} is known of {have[0]} canary hosts and {have[1]} others, expected {view.policy.min_hosts}"
    for one in comparisons:
        if _enough(one, view.policy) and one.ratio_low < one.least <= one.ratio_high:
            yield f"{_told(one)}: not known to be at least {one.least:g}x"


def _praise(view: _View, comparisons: tuple[Comparison, ...]) -> str:
    hosts = view.comparable(Role.CANARY)
    counts = [work.of(table) for work in hosts.values() for table in view.canary.changed]
    total = sum(counts, TableCounts())
    return (
        f"{len(hosts)} hosts, {total.hits} calls served, {total.shadow_checks} shadow-checked, no faults; "
        + ", ".join(map(_told, comparisons[:NAMED]))
    )


def _told(one: Comparison) -> str:
    return f"{one.what} {one.ratio:.3f}x ({one.ratio_low:.3f} to {one.ratio_high:.3f})"


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:NAMED]) + (f" and {len(listed) - NAMED} more" if len(listed) > NAMED else "")


def _short(name: str) -> str:
    host, dot, worker = name.partition(".")
    return host[:10] + dot + worker


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
