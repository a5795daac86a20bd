"""`./mill approve`: sign for stable what a channel serves, after having looked at it."""

from __future__ import annotations

import argparse
import json

from cli.table import compact_table
from gristmill.trust import CHANNELS
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="TABLE|CHANNEL", help="a table, e.g. rms_norm.float32; or canary: all it serves"
    )
    parser.add_argument("--release", action="store_true", help="then make stable serve what canary serves")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.approve import approve_steps, rows
    from flows.promote import release_steps
    from tasks.mlflow_mirror import keep_mirror

    settings = from_environment()
    channel, table = (arguments.what, "") if arguments.what in CHANNELS else ("canary", arguments.what)
    approvals = approve_steps(settings, steps.plain, channel=channel, table=table)
    released = release_steps(settings, steps.plain) if arguments.release else None
    if arguments.json:
        number = released.number if released else None
        print(json.dumps({"approved": [vars(one) for one in approvals], "stable": number}, indent=2))
    elif approvals:
        print(compact_table([list(row.values()) for row in rows(approvals)], ["table", "manifest", "reason"]))
        end = (
            f"{released.channel} is at {released.number}" if released else "./mill promote --release moves it to stable"
        )
        print(end)
    else:
        print(f"{channel} serves nothing, so there is nothing to approve")
    keep_mirror(settings)
    return 0
