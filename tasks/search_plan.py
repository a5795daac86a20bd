"""What a session searches, and for how long each: the profile's operators, and where asked for what they could be fused
to. A fused operator's share of the budget follows what fusing itself saves; what a better kernel for one of its parts
saves is that part's own. A call can be fused in one way only, so what is a part of a fusion that saves more is not
tried, unless it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agents import fusion
from agents.fusion import Proposal
from gristmill.workload import Workload
from kernels import fusion_plan
from kernels.profile import RankedOperator, TrafficProfile, rank, split_budget
from kernels.roofline import Peaks
from tasks.errors import NoProfileError

MINIMUM_S = 6.0
"""A search shorter than this finishes no round; operators that would get less are left out."""
NOBODY = "no pattern writes it, and there is no language model to ask"
NO_SECONDS = f"its share of the budget is below {MINIMUM_S:.0f} s"
NOT_RELEASED = "proven, not released: hosts cannot call fused operators yet"


Key = tuple[str, str]
"""Operator and dtype."""


@dataclass(frozen=True)
class Skipped:
    """An operator that was to be searched, and why it is not."""

    operator: str
    dtype: str
    reason: str


@dataclass(frozen=True)
class SearchPlan:
    """Seconds per operator and dtype, in the order in which they are searched."""

    ranked: tuple[RankedOperator, ...]
    """All operators of the profile."""
    fusions: tuple[Proposal, ...]
    """Those to be searched, or skipped."""
    seconds: dict[Key, float]
    skipped: tuple[Skipped, ...]


def plan(
    profile: TrafficProfile,
    peaks: Peaks,
    budget_s: float,
    *,
    only: Sequence[str],
    fusions: bool,
    is_writable: Callable[[str, str], bool],
) -> SearchPlan:
    """
    Args:
        only: names of operators to search, fused ones too; if empty, all that the profile holds.
        fusions: whether to search what could be fused as well.
        is_writable: whether anybody can propose candidates for an operator and dtype.

    Raises:
        EmptyProfileError, NoProfileError: there is nothing to search for.
    """
    ranked = rank(profile, peaks)
    wanted = [one for one in ranked if not only or one.operator in only]
    named = any(map(fusion_plan.is_fused, only))
    proposals = fusion.propose(profile, peaks) if named or fusions else ()
    chosen = [one for one in proposals if not only or one.operator in only]
    wanted += map(_ranked, chosen)
    if not wanted:
        raise _nothing_of(only, ranked, proposals)
    reasons = {} if only else _parts(chosen)
    for one in wanted:
        if not is_writable(one.operator, one.dtype):
            reasons.setdefault((one.operator, one.dtype), NOBODY)
    seconds = split_budget([one for one in wanted if _key(one) not in reasons], budget_s, MINIMUM_S)
    reasons |= {_key(one): NO_SECONDS for one in chosen if _key(one) not in {*seconds, *reasons}}
    skipped = tuple(Skipped(operator, dtype, reason) for (operator, dtype), reason in reasons.items())
    return SearchPlan(ranked, tuple(chosen), seconds, skipped)


def _parts(proposals: Sequence[Proposal]) -> dict[Key, str]:
    """Those that are a part of one that saves more, and of which."""
    found: dict[Key, str] = {}
    for place, one in enumerate(proposals):
        larger = [p for p in proposals[:place] if p.dtype == one.dtype and _key(p) not in found]
        whole = next((p.operator for p in larger if fusion_plan.is_part(one.operator, p.operator)), "")
        if whole:
            found[_key(one)] = f"it is a part of {whole}, which saves more"
    return found


def _key(one: RankedOperator | Proposal) -> Key:
    return one.operator, one.dtype


def workloads_of(
    profile: TrafficProfile, fusions: Iterable[Proposal], operator: str, dtype: str
) -> tuple[Workload, ...]:
    """What an operator of the profile is called with, or a fused one would be; nothing if there is no such."""
    if not fusion_plan.is_fused(operator):
        return profile.of(operator, dtype)
    return next((one.workloads for one in fusions if (one.operator, one.dtype) == (operator, dtype)), ())


def _ranked(proposal: Proposal) -> RankedOperator:
    return RankedOperator(
        proposal.operator,
        proposal.dtype,
        proposal.time_share,
        headroom=proposal.traffic_saved,
        saving_share=proposal.saving_share,
        workloads=len(proposal.workloads),
    )


def _nothing_of(only: Sequence[str], ranked: Sequence[RankedOperator], proposals: Sequence[Proposal]) -> NoProfileError:
    held = ", ".join(sorted({one.operator for one in ranked}))
    fused = ", ".join(sorted({one.operator for one in proposals})) or "nothing"
    could = f"; of these could be fused {fused}" if any(map(fusion_plan.is_fused, only)) else ""
    return NoProfileError(f"operators {', '.join(only)}: not in the profile, which holds {held}{could}")
