"""`./mill rank`: the newest profile's operators by what optimising them could save, and how a budget would be split.

With `--fusions`, operators that feed one another, by what fusing them could save.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from cli.amount import positive
from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment

if TYPE_CHECKING:
    from kernels.profile import TrafficProfile
    from kernels.roofline import Peaks

NO_SEQUENCE = (
    "the profile holds no sequence of operators: let the fleet serve with sampling on (./mill serve, until it has "
    "served a few steps and 10 s have passed, or has ended), then ./mill capture and ask again"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget-s", type=positive, default=120.0, help="seconds of search to split")
    parser.add_argument("--fusions", action="store_true", help="rank operators that could be fused instead")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from kernels.profile import rank, split_budget
    from kernels.roofline import cached_peaks
    from tasks import object_store, search_plan, traffic

    settings = from_environment()
    with object_store.opened(settings) as opened:
        profile = traffic.latest_profile(opened.store, settings)
    peaks = cached_peaks(settings.peaks_path)
    if arguments.fusions:
        print(_fusions(profile, peaks, as_json=arguments.json))
        return 0
    ranked = rank(profile, peaks)
    budget = split_budget(ranked, arguments.budget_s, search_plan.MINIMUM_S)
    seconds = [budget.get((r.operator, r.dtype), 0.0) for r in ranked]
    if arguments.json:
        rows = [{**records.encode(r), "budget_s": s} for r, s in zip(ranked, seconds, strict=True)]
        print(json.dumps(rows, indent=2))
        return 0
    table = [
        [
            r.operator,
            r.dtype,
            f"{r.time_share:.1%}",
            f"{r.headroom:.0%}",
            f"{r.saving_share:.1%}",
            r.workloads,
            f"{s:.0f} s",
        ]
        for r, s in zip(ranked, seconds, strict=True)
    ]
    print(compact_table(table, ["operator", "dtype", "share", "headroom", "could save", "workloads", "budget"]))
    return 0


def _fusions(profile: TrafficProfile, peaks: Peaks, *, as_json: bool) -> str:
    from agents import fusion

    proposals = fusion.propose(profile, peaks)
    if as_json:
        return json.dumps([records.encode(proposal) for proposal in proposals], indent=2)
    if not profile.edges:
        return NO_SEQUENCE
    if not proposals:
        return "nothing to fuse: no neighbours in this traffic compose and are limited by memory"
    table = [
        [
            p.operator,
            p.dtype,
            f"{p.time_share:.1%}",
            f"{p.traffic_saved:.1%}",
            f"{p.saving_share:.2%}",
            len(p.workloads),
        ]
        for p in proposals
    ]
    return compact_table(table, ["fused operator", "dtype", "share", "traffic saved", "could save", "workloads"])
