"""`./mill figures`: measured figures beside their targets; renders `docs/figures.md` again."""

from __future__ import annotations

import argparse
import json

from benchmarks import figures
from cli.table import compact_table
from gristmill import records


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def run(arguments: argparse.Namespace) -> int:
    rows = figures.load()
    if arguments.json:
        print(json.dumps(records.encode(rows), indent=1))
        return 0
    figures.write_page(rows)
    print(
        compact_table(
            [(r.issue, r.name, r.target, figures.measurement(r), r.verdict.value) for r in rows],
            ("issue", "figure", "target", "measured", "verdict"),
        )
    )
    return 0
