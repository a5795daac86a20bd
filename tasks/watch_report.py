"""What a look at a canary found, as tables and sentences for terminals and artifacts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from gristmill.status_report import StatusReport
from registry.canary import role_of
from registry.witness import Witness
from tasks.canary import Looked


@dataclass
class _Group:
    processes: int = 0
    silent: int = 0
    hits: int = 0
    failures: int = 0
    mismatches: int = 0


def sentence(looked: Looked) -> str:
    """One channel in words."""
    if looked.watch is None or looked.assessment is None:
        if looked.entry is None:
            return f"{looked.channel}: nothing was published yet"
        return f"{looked.channel}: nothing is tried, stable serves the same; last change: {looked.entry.index.reason}"
    canary = looked.watch.canary
    since = datetime.fromtimestamp(canary.promoted_s, UTC)
    return (
        f"{looked.channel}: generation {canary.number}, promoted {since:%Y-%m-%d %H:%M} UTC, tries "
        f"{', '.join(canary.changed) or 'fewer tables'} on {looked.share_permille / 10:g} % of auto hosts: "
        f"{looked.assessment.outcome.value}: {looked.assessment.reason}"
    )


def host_rows(looks: Iterable[Looked]) -> list[dict[str, str]]:
    """How many processes serve what, per channel and generation. One that is silent has not reported for 3 minutes."""
    rows = []
    for looked in looks:
        groups: dict[tuple[str, int, str, str], _Group] = defaultdict(_Group)
        for fact in process_facts(looked):
            key = (str(fact["channel"]), int(str(fact["generation"])), str(fact["role"]), str(fact["follows"]))
            group = groups[key]
            group.processes += 1
            group.silent += bool(fact["silent"])
            for name in ("hits", "failures", "mismatches"):
                setattr(group, name, getattr(group, name) + int(str(fact[name])))
        rows += [
            {
                "hardware": looked.channel.hardware,
                "channel": channel,
                "generation": str(generation),
                "role": role,
                "follows": follows,
                **{name: str(count) for name, count in vars(group).items()},
            }
            for (channel, generation, role, follows), group in sorted(groups.items())
        ]
    return rows


def comparison_rows(looks: Iterable[Looked]) -> list[dict[str, str]]:
    """How fast canary hosts are beside the rest."""
    return [
        {
            "hardware": looked.channel.hardware,
            "what": one.what,
            "canary hosts": str(one.canary_hosts),
            "others": str(one.rest_hosts),
            "ratio": f"{one.ratio:.3f}x",
            "95 % interval": f"{one.ratio_low:.3f} to {one.ratio_high:.3f}",
            "at least": f"{one.least:g}x",
        }
        for looked in looks
        if looked.assessment is not None
        for one in looked.assessment.comparisons
    ]


def process_facts(looked: Looked) -> list[dict[str, object]]:
    """Each process that has reported something that can be true."""
    facts = []
    for report, written_s, witness in _processes(looked):
        work = witness.work if witness else report.work
        role = role_of(witness, looked.watch.canary).value if witness and looked.watch else "-"
        facts.append(
            {
                "process": report.name,
                "follows": report.follows,
                "channel": report.channel,
                "generation": report.generation,
                "role": role,
                "silent": looked.now_s - written_s > looked.silent_s,
                "closing": report.closing,
                "restarts": witness.restarts if witness else 0,
                "hits": sum(counts.hits for counts in work.tables.values()),
                "failures": sum(counts.failures for counts in work.tables.values()),
                "mismatches": sum(counts.mismatches for counts in work.tables.values()),
                "shadow_checks": sum(counts.shadow_checks for counts in work.tables.values()),
                "problem": report.problem,
                "kill": report.kill,
                "reported_s_ago": round(looked.now_s - written_s),
            }
        )
    return facts


def flaws(looked: Looked) -> dict[str, str]:
    """Processes whose latest report does not count, and why."""
    if looked.watch is not None:
        return {name: flaw.reason for name, flaw in sorted(looked.watch.flaws.items())}
    return {one.name: one.flaw for one in looked.received if one.flaw}


def _processes(looked: Looked) -> Iterable[tuple[StatusReport, float, Witness | None]]:
    if looked.watch is not None:
        for _, witness in sorted(looked.watch.witnesses.items()):
            yield witness.report, witness.written_s, witness
        return
    for one in looked.received:
        if one.report is not None:
            yield one.report, one.written_s, None
