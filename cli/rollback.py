"""`./mill rollback`: a channel serves what it served before; hosts follow at their next poll."""

from __future__ import annotations

import argparse
from typing import Any

from cli import hardware
from cli.amount import whole
from gristmill.trust import CHANNELS
from tasks.settings import Settings, from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", choices=CHANNELS, default="canary", help="whose state to undo")
    parser.add_argument(
        "--to", type=whole, help="number of the state to restore (0: no kernels at all); see registry log"
    )
    hardware.configure(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.rollback import rollback_steps
    from tasks.mlflow_mirror import keep_mirror

    def roll_back(settings: Settings) -> dict[str, Any]:
        published = rollback_steps(settings, arguments.channel, arguments.to, steps.plain)
        if not arguments.json:
            tables = ", ".join(sorted(published.manifests)) or "no kernels: the engine's own everywhere"
            print(f"{published.channel} is at {published.number} and serves {tables}")
        return {"channel": arguments.channel, "number": published.number, "tables": published.manifests}

    settings = from_environment()
    code = hardware.run(settings, arguments, roll_back)
    keep_mirror(settings)
    return code
