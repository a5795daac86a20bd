"""`./mill rollback`: a channel serves what it served before; hosts follow at their next poll."""

from __future__ import annotations

import argparse
import json

from gristmill.trust import CHANNELS
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", choices=CHANNELS, default="canary", help="whose state to undo")
    parser.add_argument(
        "--to", type=int, help="number of the state to restore (0: no kernels at all); see registry log"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.rollback import rollback_steps
    from tasks.mlflow_mirror import keep_mirror

    settings = from_environment()
    published = rollback_steps(settings, arguments.channel, arguments.to, steps.plain)
    if arguments.json:
        facts = {"channel": arguments.channel, "number": published.number, "tables": published.manifests}
        print(json.dumps(facts, indent=2))
    else:
        tables = ", ".join(sorted(published.manifests)) or "no kernels: the engine's own everywhere"
        print(f"{published.channel} is at {published.number} and serves {tables}")
    keep_mirror(settings)
    return 0
