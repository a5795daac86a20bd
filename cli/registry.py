"""`./mill registry log|doctor`: what a channel serves and served; whether the store can be trusted with it."""

from __future__ import annotations

import argparse
import json

from cli.table import compact_table
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("log", "doctor"), help="log: a channel's states; doctor: probe the store")
    parser.add_argument("--channel", choices=("canary", "stable"), default="canary", help="whose log")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    return _log(arguments) if arguments.what == "log" else _doctor(arguments)


def _log(arguments: argparse.Namespace) -> int:
    from registry.rollback import history
    from tasks import object_store, promotion

    settings = from_environment()
    with object_store.opened(settings) as opened:
        channel = promotion.channel_of(settings, arguments.channel)
        states = history(opened.store, promotion.keyring_of(settings), channel)
    rows = [
        {
            "number": state.index.number,
            "created": state.index.created_utc,
            "reason": state.index.reason,
            "tables": sorted(state.index.tables),
        }
        for state in states
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    if not rows:
        print(f"{channel}: nothing was published yet")
        return 0
    table = [
        [r["number"], r["created"], r["reason"], ", ".join(state.index.tables) or "no kernels"]
        for r, state in zip(rows, states, strict=True)
    ]
    print(compact_table(table, ["number", "created", "reason", "tables"]))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from registry.doctor import examine
    from tasks import object_store

    with object_store.opened(from_environment()) as opened:
        findings = examine(opened.store)
    if arguments.json:
        print(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        print(
            compact_table(
                [[f.check, "ok" if f.passed else "FAILED", f.detail] for f in findings], ["check", "", "detail"]
            )
        )
    return 0 if all(finding.passed for finding in findings) else 1
