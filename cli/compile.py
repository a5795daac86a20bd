"""`./mill compile`: search for faster kernels for the newest profile, within a budget in seconds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agents.agent import MOST_AGENTS
from agents.strategies.catalogue import NAMES
from cli import caps
from cli.amount import positive, whole
from cli.table import compact_table
from gristmill import records
from kernels import catalogue
from tasks.settings import from_environment

if TYPE_CHECKING:
    from tasks.bench_session import SearchOptions
    from tasks.compilation import SearchResult


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget-s", type=positive, default=120.0, help="seconds of search, all operators together")
    parser.add_argument("--seed", type=whole, default=0, help="of the agents; another seed is another search")
    parser.add_argument(
        "--operator", action="append", default=[], help="search only this operator, a fused one too (repeatable)"
    )
    parser.add_argument(
        "--fusions", action="store_true", help="search as well what could be fused (see ./mill rank --fusions)"
    )
    parser.add_argument("--strategy", choices=NAMES, default=NAMES[0], help="how the agents are led")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="ask only this language model (repeatable); without it, all of MILL_MODELS or MILL_MODELS_FILE",
    )
    parser.add_argument("--agents", type=_agents, help="agents that ask language models (default: 8); 0 for none")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    caps.configure(parser)


def run(arguments: argparse.Namespace) -> int:
    from cli.watch import Watch
    from flows import steps
    from flows.compile import compile_steps, remarks, search_rows
    from tasks import cycle_report

    for name in arguments.operator:
        catalogue.operator(name)
    settings, watch = from_environment(), Watch()
    options = {"budget_s": arguments.budget_s, "seed": arguments.seed, "only": arguments.operator}
    options["caps"] = caps.budget_caps(arguments, settings)
    options["options"] = _search_options(arguments)
    result = steps.run("compile", lambda step: compile_steps(settings, step, progress=watch, **options))
    if arguments.json:
        print(json.dumps(records.encode(result), indent=2))
        return _report_bugs(result)
    rows = search_rows(result)
    if not rows:
        print(f"nothing was searched: {result.nothing}")
        return 0
    print(compact_table([list(row.values()) for row in rows], list(rows[0])))
    for line in (*endings(result), *remarks(result)):
        print(line)
    if arguments.fusions and not result.fusions:
        print("nothing to fuse was found; ./mill rank --fusions says why")
    if not any(search.trials for search in result.operators):
        print(f"search {result.search_id} has no candidate; the same command goes on with it")
        return _report_bugs(result)
    print(f"search {result.search_id}; ./mill replay {result.search_id} lists its candidates")
    print("./mill promote publishes what is confirmed, ./mill ui shows every run")
    print(f"report {cycle_report.path_of(settings, result.search_id)}")
    return _report_bugs(result)


def endings(result: SearchResult) -> Iterator[str]:
    """How each operator's search ended, where it did not just use up its seconds."""
    for search in result.operators:
        name = f"{search.operator} {search.dtype}"
        if search.nothing:
            yield f"{name} judged nothing: {search.nothing}"
        elif search.ended:
            yield f"{name} ended early: {search.ended}"
        if search.waiting:
            yield f"{name}: {search.waiting} agents were waiting for their provider at the end"
        for gone in search.departures:
            yield f"{name}: {gone.agent} left: {gone.reason}"


def _agents(text: str) -> int:
    number = whole(text)
    if number > MOST_AGENTS:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 0 to {MOST_AGENTS}")
    return number


def _search_options(arguments: argparse.Namespace) -> SearchOptions:
    from tasks.bench_session import SearchOptions

    agents = SearchOptions.agents if arguments.agents is None else arguments.agents
    return SearchOptions(arguments.strategy, tuple(arguments.model), agents, arguments.fusions)


def _report_bugs(result: SearchResult) -> int:
    """A search outlives the bug of an agent; whoever ran it has to hear of it all the same."""
    traces = dict.fromkeys(gone.trace for search in result.operators for gone in search.departures if gone.trace)
    for trace in traces:
        print(trace, file=sys.stderr)
    return 1 if traces else 0
