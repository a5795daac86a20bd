"""`./mill drift [A [B]]`: what of the traffic has moved, from where, to where, and how much of the time that is.

Without names: the newest profile beside the one last compiled for, as the deployment `capture` compares them.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment

if TYPE_CHECKING:
    from kernels.drift import Drift


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "profiles",
        nargs="*",
        metavar="PROFILE",
        help="an earlier one and a later one, by default the newest: files of ./mill import --out, or first digits of "
        "kept ones",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from cli.errors import DriftArgumentsError
    from kernels.drift import drift
    from tasks import object_store, traffic

    named = arguments.profiles
    if len(named) > 2:
        raise DriftArgumentsError(f"mill drift: {len(named)} profiles, expected an earlier one and a later one")
    settings = from_environment()
    with object_store.opened(settings) as opened:
        store = opened.store
        later = (
            traffic.find_profile(store, settings, named[1]) if named[1:] else traffic.latest_profile(store, settings)
        )
        if named:
            found: Drift | None = drift(traffic.find_profile(store, settings, named[0]), later)
        else:
            found = traffic.drift_since_compiled(store, settings, later)
    print(_as_json(found) if arguments.json else _as_text(found))
    return 0


def _as_json(found: Drift | None) -> str:
    if found is None:
        return json.dumps({"compared": False, "drifted": None, "moves": []}, indent=2)
    moves = [{**records.encode(move), "moved": move.moved, "told": move.told} for move in found.moves]
    return json.dumps({"compared": True, "drifted": found.exceeds, "moves": moves}, indent=2)


def _as_text(found: Drift | None) -> str:
    from flows.capture import drift_rows

    if found is None:
        return "nothing was compiled for this traffic yet: run ./mill compile, or name two profiles"
    rows = drift_rows(found)
    if not rows:
        return "neither window holds a call or a request"
    told = [move.told for move in found.moved] or ["nothing has moved beyond what such windows differ by themselves"]
    return "\n".join([compact_table([list(row.values()) for row in rows], list(rows[0])), *told])
