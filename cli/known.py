"""`./mill memory [show|forget]`: what searches have learned per operator and hardware, and how to let go of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cli.errors import MemoryArgumentsError
from cli.table import compact_table
from gristmill import records
from kernels import catalogue
from tasks.settings import from_environment

if TYPE_CHECKING:
    from agents.memory import Contents, PatternRecord

HEADERS = ("operator", "hardware", "pattern", "tried", "built", "correct", "faster", "best", "last")
LESSONS = 10
"""Shown per family, the most useful first; all with `--json`."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("show", "forget"), default="show")
    parser.add_argument("--operator", default="", help="only of this operator")
    parser.add_argument("--hardware", default="", metavar="KEY", help="only of this hardware key")
    parser.add_argument("--all", action="store_true", help="of all operators and hardware: to forget everything")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(arguments: argparse.Namespace) -> int:
    return _forget(arguments) if arguments.what == "forget" else _show(arguments)


def _show(arguments: argparse.Namespace) -> int:
    from tasks import object_store
    from tasks.memory_shelves import MemoryShelves

    wanted = _wanted(arguments.operator, arguments.hardware)
    with object_store.opened(from_environment()) as opened:
        shelves = MemoryShelves(opened.store)
        known = {family: _part(shelves.read(family).contents, wanted) for family in shelves.families()}
    if arguments.operator and not any(contents.size for contents in known.values()):
        catalogue.operator(arguments.operator)
    if arguments.json:
        print(json.dumps({family: records.encode(contents) for family, contents in known.items()}, indent=2))
    else:
        print(report(known))
    return 0


def _forget(arguments: argparse.Namespace) -> int:
    from tasks import object_store
    from tasks.memory_shelves import MemoryShelves

    if bool(arguments.operator or arguments.hardware) == arguments.all:
        raise MemoryArgumentsError("memory forget: name an --operator, a --hardware key or both, or else --all")
    with object_store.opened(from_environment()) as opened:
        shelves = MemoryShelves(opened.store)
        gone = shelves.forget(_wanted(arguments.operator, arguments.hardware))
        if not gone and not arguments.all:
            held = _held(shelves.read(family).contents for family in shelves.families())
            raise MemoryArgumentsError(f"memory forget: nothing to forget {_named(arguments)}; {held}")
    print(json.dumps({"forgotten": gone}) if arguments.json else f"forgotten: {gone} records, lessons and candidates")
    return 0


def _named(arguments: argparse.Namespace) -> str:
    operator, hardware = arguments.operator, arguments.hardware
    return " ".join([*([f"of {operator!r}"] if operator else []), *([f"on {hardware!r}"] if hardware else [])])


def _held(known: Iterable[Contents]) -> str:
    """What memory could be asked for instead."""
    found = set[tuple[str, str]]()
    for contents in known:
        found |= {(record.operator, record.hardware) for record in contents.records}
        found |= {(lesson.operator, lesson.hardware) for lesson in contents.lessons}
        found |= {(exemplar.operator, exemplar.hardware) for exemplar in contents.candidates}
    told = ", ".join(f"{operator} on {hardware}" for operator, hardware in sorted(found))
    return f"memory holds {told}" if told else "memory is empty: ./mill compile fills it"


def report(known: dict[str, Contents]) -> str:
    """A table of patterns per family, and its most useful lessons."""
    from agents import lesson

    parts = []
    for family, contents in known.items():
        if not contents.size:
            continue
        best = sorted(contents.records, key=lambda r: (r.operator, r.hardware, -r.best, r.pattern))
        count = len(contents.candidates)
        held = f"{count} candidate{'' if count == 1 else 's'} kept"
        parts.append(f"{family}: {held}\n\n{compact_table([_row(record) for record in best], HEADERS)}")
        useful = sorted(contents.lessons, key=lambda found: (-found.worth, -found.seen, found.key))[:LESSONS]
        told = [f"  {found.operator}: {lesson.sentence(found, found.operator, found.hardware)}" for found in useful]
        parts += ["\n".join(told)] if told else []
    return "\n\n".join(parts) or "nothing was learned yet: ./mill compile searches, and remembers"


def _row(record: PatternRecord) -> list[object]:
    day = datetime.fromtimestamp(record.as_of_ms / 1000, UTC).date().isoformat()
    best = f"{record.best:.2f}x" if record.best else None
    counts = record.tried, record.built, record.correct, record.won
    return [record.operator, record.hardware, record.pattern or None, *counts, best, day]


def _wanted(operator: str, hardware: str) -> Callable[[str, str], bool]:
    return lambda of, on: operator in ("", of) and hardware in ("", on)


def _part(contents: Contents, wanted: Callable[[str, str], bool]) -> Contents:
    from agents.memory import Contents

    return Contents(
        tuple(r for r in contents.records if wanted(r.operator, r.hardware)),
        tuple(found for found in contents.lessons if wanted(found.operator, found.hardware)),
        tuple(e for e in contents.candidates if wanted(e.operator, e.hardware)),
    )
