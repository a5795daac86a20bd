"""`./mill capture`: fold what hosts sampled into a traffic profile, and rank its operators."""

from __future__ import annotations

import argparse
import json

from cli.amount import positive
from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--window-h", type=positive, default=24.0, help="hours of spool to fold, up to now")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.capture import capture_steps, ranking_rows
    from kernels.profile import unknown

    settings = from_environment()
    captured = steps.run("capture", lambda step: capture_steps(settings, arguments.window_h, step))
    if arguments.json:
        facts = {
            "profile": captured.digest,
            "ranked": captured.ranked,
            "drift": captured.drift,
            "unknown": unknown(captured.profile),
            "operator_share": captured.profile.operator_share,
            "requests": captured.profile.requests,
            "dropped_calls": captured.profile.dropped,
        }
        print(json.dumps({name: records.encode(value) for name, value in facts.items()}, indent=2))
        return 0
    profile = captured.profile
    rows = ranking_rows(captured.ranked)
    print(
        f"{sum(w.calls for w in profile.workloads):,} calls of {len(profile.workloads)} workloads in "
        f"{profile.requests.count} requests, {profile.window_start_utc} to {profile.window_end_utc}"
    )
    if profile.operator_share is not None:
        print(f"the sampled operators are {profile.operator_share:.0%} of the engine's steps")
    if profile.dropped or profile.requests.dropped:
        print(
            f"hosts lost {profile.dropped:,} calls and {profile.requests.dropped:,} requests because neither store nor "
            "disk took them: look at their space and at the way to the store"
        )
    print(compact_table([list(row.values()) for row in rows], list(rows[0])))
    strange = unknown(profile)
    if strange:
        print(f"{sum(strange.values()):.1%} of the time is in what this release knows nothing of: {', '.join(strange)}")
    drift = captured.drift
    moved = "has drifted: compile again" if drift and drift.exceeds else "is what was compiled for"
    print(
        f"profile {records.short(captured.digest)}: "
        + (f"traffic {moved}" if drift else "nothing was compiled for it yet")
    )
    return 0
