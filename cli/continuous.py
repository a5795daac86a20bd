"""`./mill continuous`: one turn of the mill, or one at every interval; the deployment does it on a schedule."""

from __future__ import annotations

import argparse
import json
import time

from cli.amount import not_negative, positive
from gristmill import records
from gristmill.trust import CHANNELS
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--window-h", type=positive, default=24.0, help="hours of spool that a turn looks at")
    parser.add_argument("--budget-s", type=positive, default=120.0, help="seconds of search in a turn that compiles")
    parser.add_argument("--channel", choices=CHANNELS, default="canary", help="where to publish")
    parser.add_argument(
        "--every-s", type=not_negative, default=0.0, help="turn again after so long, until Ctrl-C; 0 turns once"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per turn")


def run(arguments: argparse.Namespace) -> int:
    from cli.watch import Watch
    from flows import steps
    from flows.continuous import continuous_steps
    from flows.promote import Turn
    from tasks.mlflow_mirror import keep_mirror

    settings, watch = from_environment(), Watch()

    def turn(step: steps.Step) -> Turn:
        return continuous_steps(
            settings,
            step,
            window_h=arguments.window_h,
            budget_s=arguments.budget_s,
            channel=arguments.channel,
            progress=watch,
            tell=lambda text: watch.say("turn", text),
        )

    while True:
        turned = steps.run("continuous", turn)
        print(json.dumps(records.encode(turned)) if arguments.json else turned.reason, flush=True)
        if turned.generation is not None:
            keep_mirror(settings)
        if arguments.every_s <= 0:
            return 0
        time.sleep(arguments.every_s)
