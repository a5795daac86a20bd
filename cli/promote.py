"""`./mill promote`: judge the winners of a search again and publish what is confirmed to a channel."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cli import hardware
from cli.errors import PromoteArgumentsError
from cli.table import compact_table
from gristmill.kernel_table import Artifact
from gristmill.trust import CHANNELS
from registry.publication import Published
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", choices=CHANNELS, default="canary", help="where to publish")
    parser.add_argument("--search", default="", help="id of the search; the one that finished last if not given")
    parser.add_argument("--again", action="store_true", help="also take kernels that failed in canary")
    parser.add_argument("--release", action="store_true", help="judge nothing: make stable serve what canary serves")
    parser.add_argument(
        "--tuned",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="judge nothing: publish what these measurements of an engine's fused experts prove, for their hardware",
    )
    hardware.configure(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from cli.watch import Watch
    from flows import steps
    from flows.promote import promote_steps, range_rows, release_steps
    from tasks import tuned_tables
    from tasks.mlflow_mirror import keep_mirror

    _check(arguments)
    settings, watch = from_environment(), Watch()

    def judge_and_publish(step: steps.Step) -> tuple[Published, tuple[Artifact, ...]]:
        return promote_steps(
            settings,
            step,
            channel=arguments.channel,
            search_id=arguments.search,
            again=arguments.again,
            tell=lambda text: watch.say("promote", text),
        )

    def told(published: Published, artifacts: tuple[Artifact, ...] = ()) -> dict[str, Any]:
        rows = range_rows(artifacts)
        if not arguments.json:
            _print(published, rows)
        facts = {"channel": published.channel.name, "number": published.number, "declined": published.declined}
        return {**facts, "tables": published.manifests, "ranges": rows}

    code = 0
    if arguments.release:
        code = hardware.run(settings, arguments, lambda one: told(release_steps(one, steps.plain)))
    else:
        if arguments.tuned:
            measured = tuned_tables.read(arguments.tuned)
            published, artifact = tuned_tables.promote(settings, arguments.channel, measured, arguments.again)
            facts = told(published, (artifact,))
        else:
            facts = told(*steps.run("promote", judge_and_publish))
        if arguments.json:
            print(json.dumps(facts, indent=2))
    keep_mirror(settings)
    return code


def _check(arguments: argparse.Namespace) -> None:
    judging = {"--search": arguments.search, "--again": arguments.again}
    given = next((name for name, value in judging.items() if value), "")
    if arguments.tuned and (arguments.release or arguments.search):
        raise PromoteArgumentsError("promote: --tuned publishes measurements, so leave --release and --search out")
    if arguments.release and given:
        raise PromoteArgumentsError(f"promote: --release judges nothing, so {given} says nothing; leave one out")
    if arguments.hardware and not arguments.release:
        raise PromoteArgumentsError(
            "promote: --hardware belongs to --release; what is judged here is for this machine's own hardware"
        )


def _print(published: Published, rows: list[dict[str, str]]) -> None:
    from tasks.search_plan import NOT_RELEASED

    if rows:
        print(compact_table([list(row.values()) for row in rows], list(rows[0])))
    for name, reason in published.declined.items():
        print(f"{name}: {reason}" if reason == NOT_RELEASED else f"{name} stays as it is: {reason}")
    print(
        f"{published.channel} is at {published.number} and serves {', '.join(sorted(published.manifests)) or 'nothing'}"
    )
