"""`./mill replay RUN`: how a candidate came about; `./mill replay SEARCH`: which ones a search has judged."""

from __future__ import annotations

import argparse
import json

from gristmill import records
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a candidate's MLflow run or the beginning of its digest, an episode, or a search, to list what it judged",
    )
    parser.add_argument(
        "--full", action="store_true", help="whole prompts, answers and results, the whole course, all candidates"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, which is always whole")


def run(arguments: argparse.Namespace) -> int:
    from cli.replay_report import render, render_search
    from tasks.replay import SearchReplay, replay

    found, away = replay(from_environment(), arguments.run)
    if arguments.json:
        print(json.dumps({**records.encode(found), "mlflow": away or "asked"}, indent=2))
        return 0
    if away:
        print(f"{away}; this is what {found.source} knows\n")
    full = arguments.full
    print(render_search(found, full=full) if isinstance(found, SearchReplay) else render(found, full=full))
    return 0
