"""`./mill registry log|show|diff|gc|mirror|doctor`: what channels serve and served; what may go; the store itself."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from cli import hardware, history
from cli.amount import count, not_negative, positive
from cli.table import compact_table
from gristmill.trust import CHANNELS
from tasks.settings import Settings, from_environment

if TYPE_CHECKING:
    from gristmill.store import ObjectStore
    from registry.doctor import Finding
    from registry.repository import Repository


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    log = commands.add_parser("log", help="a channel's states, newest first")
    log.add_argument("channel", nargs="?", choices=CHANNELS, default="canary", help="default: canary")
    log.add_argument("--limit", type=count, default=50, help="show so many at most; default: 50")
    show = commands.add_parser("show", help="one state: who, when, why, its kernels, and what it changed")
    show.add_argument("state", nargs="?", default="canary", help="canary (the default), stable~1, canary:12, 3f2a91")
    diff = commands.add_parser("diff", help="which kernels came, went, or changed range or gain between two states")
    diff.add_argument("old", help="as for show")
    diff.add_argument("new", help="as for show")
    gc = commands.add_parser("gc", help="remove what nothing refers to any more")
    gc.add_argument("--dry-run", action="store_true", help="only say what would go")
    gc.add_argument("--keep", type=not_negative, default=90.0, metavar="DAYS", help="keep states so long; default: 90")
    gc.add_argument(
        "--grace",
        type=positive,
        default=24.0,
        metavar="HOURS",
        help="spare what is younger, for promotions under way; default: 24",
    )
    mirror = commands.add_parser("mirror", help="copy the channels into MLflow's model registry, for review there")
    gc.add_argument(
        "--reports", type=positive, default=7.0, metavar="DAYS", help="keep reports of silent hosts so long; default: 7"
    )
    doctor = commands.add_parser(
        "doctor", help="check whether the store can be trusted with a registry, and its signatures"
    )
    for command in (log, show, diff):
        hardware.configure(command)
    for command in (log, show, diff, gc, mirror, doctor):
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "doctor":
        return _doctor(arguments)
    if arguments.what == "mirror":
        return _mirror(arguments)
    from registry.repository import Repository
    from tasks import object_store, promotion

    settings = from_environment()
    with object_store.opened(settings) as opened:
        keyring = promotion.keyring_of(settings)
        repository = Repository(opened.store, keyring)
        if arguments.what == "gc":
            return _collect(opened.store, repository, arguments)
        return hardware.run(
            settings, arguments, lambda one: _read(history.Reader(opened.store, keyring, repository, one), arguments)
        )


def _read(reader: history.Reader, arguments: argparse.Namespace) -> Any:
    if arguments.what == "log":
        return history.log(reader, arguments.channel, arguments.limit, arguments.json)
    if arguments.what == "show":
        return history.show(reader, arguments.state, arguments.json)
    return history.diff(reader, arguments.old, arguments.new, arguments.json)


def _collect(store: ObjectStore, repository: Repository, arguments: argparse.Namespace) -> int:
    from cli.progress import ProgressLine
    from registry.garbage import DAY_S, KeepingPolicy, collect

    policy = KeepingPolicy(
        keep_s=arguments.keep * DAY_S, grace_s=arguments.grace * 3600, reports_s=arguments.reports * DAY_S
    )
    with ProgressLine(sys.stderr) as progress:
        swept = collect(store, repository, policy, arguments.dry_run, progress.show)
    if arguments.json:
        removed = [{"key": one.found.key, "bytes": one.found.size_bytes, "why": one.why} for one in swept.removed]
        spared = [one.found.key for one in swept.spared]
        print(json.dumps({"dry_run": arguments.dry_run, "removed": removed, "spared": spared}, indent=2))
        return 0
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in swept.removed:
        sizes[one.kind, one.why].append(one.found.size_bytes)
    if sizes:
        rows = [[kind, why, len(found), _kib(sum(found))] for (kind, why), found in sorted(sizes.items())]
        print(compact_table(rows, ["what", "why", "objects", "KiB"]))
    total = sum(one.found.size_bytes for one in swept.removed)
    said = "would be removed" if arguments.dry_run else "removed"
    print(f"{len(swept.removed)} objects, {_kib(total)} KiB, {said}")
    if swept.spared:
        print(f"{len(swept.spared)} objects were spared: a promotion came to need them meanwhile")
    return 0


def _mirror(arguments: argparse.Namespace) -> int:
    from tasks.mlflow_mirror import mirror

    found = mirror(from_environment())
    if arguments.json:
        print(json.dumps([vars(one) for one in found], indent=2))
        return 0
    rows = [
        [one.model, *(str(one.aliases.get(name, "-")) for name in CHANNELS), one.versions, one.writes] for one in found
    ]
    print(compact_table(rows, ["registered model", *CHANNELS, "versions", "writes"]))
    return 0


def _expiry(settings: Settings, store: ObjectStore) -> tuple[Finding, ...]:
    """Until when signatures count, where a registry and the public halves of its keys are at hand."""
    from registry import expiry
    from registry.doctor import Finding
    from registry.errors import RegistryStateError
    from registry.keys import load_keys
    from registry.repository import Repository

    if not (settings.keys_dir / "root.json").exists():
        return ()
    repository = Repository(store, load_keys(settings.keys_dir))
    try:
        return (expiry.finding(expiry.expiries(repository)),) if repository.exists() else ()
    except RegistryStateError as error:
        return (Finding("expiry", False, str(error)),)


def _kib(size_bytes: int) -> str:
    return f"{size_bytes / 1024:.1f}"


def _doctor(arguments: argparse.Namespace) -> int:
    from registry.doctor import examine
    from tasks import object_store

    settings = from_environment()
    with object_store.opened(settings) as opened:
        findings = (*examine(opened.store), *_expiry(settings, opened.store))
    if arguments.json:
        print(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        rows = [[f.check, "ok" if f.passed else "FAILED" if f.essential else "advice", f.detail] for f in findings]
        print(compact_table(rows, ["check", "", "detail"]))
    return 0 if all(finding.passed or not finding.essential for finding in findings) else 1
