"""`./mill approve`: sign for stable what a channel serves, after having looked at it."""

from __future__ import annotations

import argparse
import json

from cli.errors import ApproveArgumentsError
from cli.table import compact_table
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="STATE|TABLE",
        help="what was looked at, e.g. canary:12, refused if another one has taken its place; or canary: whatever it "
        "serves now; or one table of that, e.g. rms_norm.float32",
    )
    parser.add_argument("--table", default="", help="only this table of the state, e.g. rms_norm.float32")
    parser.add_argument("--release", action="store_true", help="then make stable serve what canary serves")
    parser.add_argument(
        "--despite-failure",
        action="store_true",
        help="although the watch has found it to fail; the approver's signature says so",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.approve import approve_steps, rows
    from tasks.mlflow_mirror import keep_mirror

    settings = from_environment()
    named = "." in arguments.what  # no state has a point in its name, and every table has
    if named and arguments.table:
        raise ApproveArgumentsError(f"approve: found the tables {arguments.what} and {arguments.table}, expected one")
    done = approve_steps(
        settings,
        steps.plain,
        state="canary" if named else arguments.what,
        table=arguments.what if named else arguments.table,
        release=arguments.release,
        despite_failure=arguments.despite_failure,
    )
    released = done.released
    if arguments.json:
        facts = {"channel": done.channel, "generation": done.number or None}
        approved = [vars(one) for one in done.approvals]
        print(json.dumps({**facts, "approved": approved, "stable": released.number if released else None}, indent=2))
    elif done.approvals:
        print(compact_table([list(row.values()) for row in rows(done.approvals)], ["table", "manifest", "reason"]))
        print(f"generation {done.number} of {done.channel} is what was approved")
        print(
            f"{released.channel} is at {released.number}" if released else "./mill promote --release moves it to stable"
        )
    else:
        print(f"{done.channel} serves nothing, so there is nothing to approve")
    keep_mirror(settings)
    return 0
