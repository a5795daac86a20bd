"""`./mill compile`: search for faster kernels for the newest profile, within a budget in seconds."""

from __future__ import annotations

import argparse
import json

from cli import caps
from cli.amount import positive, whole
from cli.table import compact_table
from gristmill import records
from kernels import catalogue
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget-s", type=positive, default=120.0, help="seconds of search, all operators together")
    parser.add_argument("--seed", type=whole, default=0, help="of the agents; another seed is another search")
    parser.add_argument("--operator", action="append", default=[], help="search only this operator (repeatable)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    caps.configure(parser)


def run(arguments: argparse.Namespace) -> int:
    from cli.watch import Watch
    from flows import steps
    from flows.compile import compile_steps, search_rows

    for name in arguments.operator:
        catalogue.operator(name)
    settings, watch = from_environment(), Watch()
    options = {"budget_s": arguments.budget_s, "seed": arguments.seed, "only": arguments.operator}
    options["caps"] = caps.budget_caps(arguments, settings)
    result = steps.run("compile", lambda step: compile_steps(settings, step, progress=watch, **options))
    if arguments.json:
        print(json.dumps(records.encode(result), indent=2))
        return 0
    rows = search_rows(result)
    if not rows:
        print("nothing was searched: every operator already runs at the roofline")
        return 0
    print(compact_table([list(row.values()) for row in rows], list(rows[0])))
    for ended in filter(None, (s.ended for s in result.operators)):
        print(f"ended early: {ended}")
    print(f"search {result.search_id}; ./mill promote publishes what is confirmed, ./mill ui shows every run")
    return 0
