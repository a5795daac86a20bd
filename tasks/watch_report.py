"""What a look at a canary found, as tables and sentences for terminals and artifacts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from gristmill import cohort, limits, records
from gristmill.status_report import StatusReport, TableCounts
from registry.canary import Outcome, Role, role_of
from registry.witness import Witness, host_of
from tasks.canary import Looked

STEP = 2
"""How many times as many hosts a larger share is to reach."""
SUMMED = ("silent", "hits", "failures", "mismatches")
"""What is added up over the processes that serve the same."""


def sentence(looked: Looked) -> str:
    """One channel in words."""
    if looked.watch is None or looked.assessment is None:
        if looked.entry is None:
            return f"{looked.channel}: nothing was published yet"
        return f"{looked.channel}: tries nothing that stable does not serve; last change: {looked.entry.index.reason}"
    canary = looked.watch.canary
    since = datetime.fromtimestamp(canary.promoted_s, UTC)
    return limits.one_line(
        f"{looked.channel}: generation {canary.number}, promoted {since:%Y-%m-%d %H:%M} UTC, tries "
        f"{', '.join(canary.changed)} on {looked.share_permille / 10:g} % of auto hosts: "
        f"{looked.assessment.outcome.value}: {looked.assessment.reason}"
    )


def next_step(looked: Looked) -> str:
    """What only a person can do now, who has the offline key that signs the share; empty if that would change nothing.

    A canary is not tried on more hosts by itself: whoever steals the keys of the watch must not lead hosts onto it.
    """
    if looked.assessment is None or looked.assessment.outcome is Outcome.FAILED:
        return ""
    heard = [fact for fact in process_facts(looked) if not (fact["silent"] or fact["closing"])]
    auto = {host_of(fact["process"]) for fact in heard if fact["follows"] == cohort.AUTO}
    trying = {host_of(fact["process"]) for fact in heard if fact["role"] in (Role.CANARY.value, Role.PENDING.value)}
    if not auto or looked.share_permille == cohort.ALL_PERMILLE:
        return ""
    wider = _wider(looked.share_permille, len(auto), looked.policy.min_hosts)
    command = f"./mill canary --share {wider / 10:g} (needs the targets key, which the watch does not have)"
    if looked.assessment.outcome is Outcome.SUCCEEDED:
        return f"to try it on more hosts before all have it: {command}"
    if len(trying) >= looked.policy.min_hosts:
        return ""
    return f"{len(trying)} hosts try it, {looked.policy.min_hosts} must before it can succeed: {command}"


def _wider(share_permille: int, auto_hosts: int, min_hosts: int) -> int:
    """A share at least twice as large, and so large that twice the least number of hosts may be expected in it."""
    enough = math.ceil(100 * STEP * min_hosts / auto_hosts) * 10
    return min(cohort.ALL_PERMILLE, max(STEP * share_permille, enough))


def host_rows(looks: Iterable[Looked]) -> list[dict[str, str]]:
    """How many processes serve what, per channel and generation, and what they counted there."""
    rows = []
    for looked in looks:
        groups: dict[tuple[str, int, str, str], Counter[str]] = defaultdict(Counter)
        for fact in process_facts(looked):
            counts = groups[fact["channel"], fact["generation"], fact["role"], fact["follows"]]
            counts.update({"processes": 1, **{name: int(fact[name]) for name in SUMMED}})
        rows += [
            {
                "hardware": looked.channel.hardware,
                "channel": channel,
                "generation": str(generation),
                "role": role,
                "follows": follows,
                **{name: str(counts[name]) for name in ("processes", *SUMMED)},
            }
            for (channel, generation, role, follows), counts in sorted(groups.items())
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


def trouble_rows(looks: Iterable[Looked]) -> list[dict[str, str]]:
    """Processes that somebody should look at, and why."""
    rows = []
    for looked in looks:
        told = {name: [f"does not count: {flaw}"] for name, flaw in flaws(looked).items()}
        for report, written_s, _ in _processes(looked):
            silent = looked.now_s - written_s > looked.policy.silent_s and not report.closing
            reasons = [
                f"silent for {(looked.now_s - written_s) / 60:.0f} min" if silent else "",
                f"kill switch: {report.kill}" if report.kill else "",
                f"cannot poll: {report.problem}" if report.problem else "",
                *(
                    f"refused {one.operator} of generation {one.generation}: {one.reason}"
                    for one in report.refusals[-1:]
                ),
            ]
            told.setdefault(report.name, []).extend(filter(None, reasons))
        rows += [
            {"hardware": looked.channel.hardware, "process": name[:10], "trouble": reason}
            for name, reasons in sorted(told.items())
            for reason in reasons
        ]
    return rows


def facts(looked: Looked) -> dict[str, Any]:
    """All of it, JSON-ready."""
    assessment = looked.assessment
    return {
        "channel": str(looked.channel),
        "generation": looked.entry.index.number if looked.entry else None,
        "tried": list(looked.watch.canary.changed) if looked.watch else [],
        "share_percent": looked.share_permille / 10,
        "outcome": assessment.outcome.value if assessment else None,
        "reason": assessment.reason if assessment else sentence(looked),
        "next": next_step(looked),
        "missing": list(assessment.missing) if assessment else [],
        "comparisons": records.encode(assessment.comparisons) if assessment else [],
        "processes": process_facts(looked),
        "flaws": flaws(looked),
    }


def process_facts(looked: Looked) -> list[dict[str, Any]]:
    """Each process that has reported something that can be true."""
    facts = []
    for report, written_s, witness in _processes(looked):
        work = witness.work if witness else report.work
        total = sum(work.tables.values(), TableCounts())
        role = role_of(witness, looked.watch.canary).value if witness and looked.watch else "-"
        facts.append(
            {
                "process": report.name,
                "follows": report.follows,
                "channel": report.channel,
                "generation": report.generation,
                "role": role,
                "silent": looked.now_s - written_s > looked.policy.silent_s,
                "closing": report.closing,
                "restarts": witness.restarts if witness else 0,
                "hits": total.hits,
                "failures": total.failures,
                "mismatches": total.mismatches,
                "shadow_checks": total.shadow_checks,
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
