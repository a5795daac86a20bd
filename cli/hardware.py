"""The option `--hardware` of commands that look at channels or change them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from gristmill.limits import one_line
from tasks.settings import Settings


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hardware",
        default="",
        metavar="KEY",
        help="whose channel: a hardware key that something was published for, or all; by default this machine's",
    )


def run(settings: Settings, arguments: argparse.Namespace, act: Callable[[Settings], Any]) -> int:
    """Does it with each channel that is meant, and prints what it returns where JSON was asked for: an object by
    hardware key, if all were meant. The exit code is 2 if it failed somewhere.

    Args:
        act: prints for people, unless JSON was asked for.
    """
    from tasks.hardware_choice import ALL, for_each

    several = arguments.hardware.strip() == ALL

    def shown(one: Settings) -> Any:
        if several and not arguments.json:
            print(f"{one.hardware}:")
        return act(one)

    outcomes = for_each(settings, arguments.hardware, shown)
    if arguments.json:
        errors = {key: {"error": why} for key, why in outcomes.failed.items()}
        found = {**outcomes.done, **errors} if several else next(iter(outcomes.done.values()))
        print(json.dumps(found, indent=2))
    for key, why in outcomes.failed.items():
        print(f"mill: {key}: {one_line(why)}", file=sys.stderr)
    return 2 if outcomes.failed else 0
