"""`./mill report`: what the mill did in the last week, or in as many days: tables, and a page with the same."""

from __future__ import annotations

import argparse
import json

from cli.amount import days
from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment

WEEK_DAYS = 7.0


def configure(parser: argparse.ArgumentParser) -> None:
    period = parser.add_mutually_exclusive_group()
    # Without SUPPRESS its default, none, would count: of two options that set the same, the first one's does.
    week = {"action": "store_const", "const": WEEK_DAYS, "dest": "days", "default": argparse.SUPPRESS}
    period.add_argument("--week", **week, help="of seven days")
    period.add_argument("--days", type=days, default=WEEK_DAYS, help="of so many days, up to now")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.week import week_steps

    settings = from_environment()
    found, path = steps.run("week", lambda step: week_steps(settings, step, arguments.days))
    if arguments.json:
        print(json.dumps(records.encode(found), indent=2))
        return 0
    for heading, rows in found.parts.items():
        print(f"{heading}\n")
        print(compact_table([list(row.values()) for row in rows], list(rows[0])) if rows else "nothing")
        print()
    print(f"page: {path}")
    return 0
