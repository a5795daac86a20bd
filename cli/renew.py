"""`./mill renew`: signs the registry's metadata anew before it expires, as the scheduled deployment does."""

from __future__ import annotations

import argparse
import json
import sys

from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.renew import renew_steps

    settings = from_environment()
    expires, warnings = renew_steps(settings, steps.plain)
    for warning in warnings:
        print(f"WARNING: {warning}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"timestamp_expires_utc": expires}))
    else:
        print(f"signed anew; hosts take it for current until {expires}")
    return 0
