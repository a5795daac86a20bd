"""`./mill approve`: sign for stable what a channel serves, after having looked at it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cli import hardware
from cli.errors import ApproveArgumentsError
from cli.table import compact_table
from tasks.settings import Settings, from_environment

if TYPE_CHECKING:
    from flows.approve import Approved


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
    hardware.configure(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.approve import approve_steps
    from tasks.mlflow_mirror import keep_mirror

    named = "." in arguments.what  # no state has a point in its name, and every table has
    if named and arguments.table:
        raise ApproveArgumentsError(f"approve: found the tables {arguments.what} and {arguments.table}, expected one")

    def approve(settings: Settings) -> dict[str, Any]:
        done = approve_steps(
            settings,
            steps.plain,
            state="canary" if named else arguments.what,
            table=arguments.what if named else arguments.table,
            release=arguments.release,
            despite_failure=arguments.despite_failure,
        )
        if not arguments.json:
            _print(done)
        return {
            "channel": done.channel,
            "generation": done.number or None,
            "approved": [vars(one) for one in done.approvals],
            "stable": done.released.number if done.released else None,
        }

    settings = from_environment()
    code = hardware.run(settings, arguments, approve)
    keep_mirror(settings)
    return code


def _print(done: Approved) -> None:
    from flows.approve import rows

    if not done.approvals:
        print(f"{done.channel} serves nothing, so there is nothing to approve")
        return
    print(compact_table([list(row.values()) for row in rows(done.approvals)], ["table", "manifest", "reason"]))
    print(f"generation {done.number} of {done.channel} is what was approved")
    if done.released:
        print(f"{done.released.channel} is at {done.released.number}")
    else:
        print("./mill promote --release moves it to stable")
