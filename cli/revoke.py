"""`./mill revoke`: no host loads a kernel any more, by digest and for ever."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from tasks.settings import from_environment

if TYPE_CHECKING:
    from registry.revocation import Revoked


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "digest", metavar="DIGEST", help="of a manifest, an object or a candidate: 12 of its digits, or more"
    )
    parser.add_argument("--reason", required=True, help="why, for logs and for whoever promotes it again")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from flows import steps
    from flows.revoke import revoke_steps
    from tasks.mlflow_mirror import keep_mirror

    settings = from_environment()
    revoked = revoke_steps(settings, steps.plain, digest=arguments.digest, reason=arguments.reason)
    if arguments.json:
        print(json.dumps(vars(revoked), indent=2))
    else:
        _print(revoked)
    keep_mirror(settings)
    return 0


def _print(revoked: Revoked) -> None:
    print(f"{revoked.kind} {revoked.digest} is revoked; hosts drop it at their next poll, and keep to that offline")
    for channel, tables in revoked.tables.items():
        print(f"  it was in {', '.join(tables)} of {channel}")
    if not revoked.tables:
        print("  no channel serves it now")
