"""`./mill promote`: judge the winners of a search again and publish what is confirmed to a channel."""

from __future__ import annotations

import argparse
import json

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
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from cli.watch import Watch
    from flows import steps
    from flows.promote import promote_steps, range_rows, release_steps
    from tasks.mlflow_mirror import keep_mirror

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

    artifacts: tuple[Artifact, ...] = ()
    if arguments.release:
        published = release_steps(settings, steps.plain)
    else:
        published, artifacts = steps.run("promote", judge_and_publish)
    rows = range_rows(artifacts)
    if arguments.json:
        facts = {"channel": published.channel.name, "number": published.number, "declined": published.declined}
        print(json.dumps({**facts, "tables": published.manifests, "ranges": rows}, indent=2))
    else:
        _print(published, rows)
    keep_mirror(settings)
    return 0


def _print(published: Published, rows: list[dict[str, str]]) -> None:
    from tasks.search_plan import NOT_RELEASED

    if rows:
        print(compact_table([list(row.values()) for row in rows], list(rows[0])))
    for name, reason in published.declined.items():
        print(f"{name}: {reason}" if reason == NOT_RELEASED else f"{name} stays as it is: {reason}")
    print(
        f"{published.channel} is at {published.number} and serves {', '.join(sorted(published.manifests)) or 'nothing'}"
    )
