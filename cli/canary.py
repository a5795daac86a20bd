"""`./mill canary`: what is tried on which hosts, how they fare beside the rest, and what follows from it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from cli.amount import permille
from cli.errors import CanaryArgumentsError
from cli.table import compact_table
from tasks.settings import Settings, from_environment

if TYPE_CHECKING:
    from tasks.canary import Looked


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--act", action="store_true", help="release, or roll back, as the scheduled watch does")
    parser.add_argument(
        "--share",
        type=permille,
        metavar="PERCENT",
        help="first sign how many of the fleet's auto hosts follow canary; needs the targets key",
    )
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="judge by another number than the policy's, e.g. soak_s=600; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.watch import line, watch_steps
    from tasks.canary import policy_of
    from tasks.mlflow_mirror import keep_mirror
    from tasks.watch_report import facts, next_step

    settings, policy = from_environment(), policy_of(_numbers(arguments.changes))
    if arguments.share is not None:
        _sign_share(settings, arguments.share)
    found = watch_steps(settings, steps.plain, policy, act=arguments.act)
    if arguments.json:
        print(json.dumps([facts(one.looked) | {"action": one.action} for one in found], indent=2))
    else:
        _print_tables([one.looked for one in found])
        for one in found:
            print(line(one))
            if step := next_step(one.looked):
                print(f"  {step}")
        if not found:
            print("nothing was published to canary yet")
    if any(one.action for one in found):
        keep_mirror(settings)
    return 0


def _numbers(changes: list[str]) -> dict[str, float]:
    numbers = {}
    for change in changes:
        name, _, value = change.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            raise CanaryArgumentsError(f"canary --set: found {change!r}, expected NAME=NUMBER") from None
    return numbers


def _sign_share(settings: Settings, permille: int) -> None:
    from registry.share import set_share
    from tasks import object_store, promotion

    with object_store.opened(settings) as opened:
        set_share(opened.store, promotion.keyring_of(settings), settings.fleet, permille)


def _print_tables(looks: list[Looked]) -> None:
    from tasks import watch_report

    for rows in (watch_report.host_rows(looks), watch_report.comparison_rows(looks), watch_report.trouble_rows(looks)):
        if rows:
            print(compact_table([list(row.values()) for row in rows], list(rows[0])))
            print()
