"""`./mill patterns`: the optimisation patterns, and what became of them on each kind of hardware."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cli.table import compact_table
from gristmill.errors import GristmillError
from gristmill.hardware import local_cpu
from tasks.settings import Settings, from_environment

if TYPE_CHECKING:
    from agents.memory import PatternRecord
    from agents.patterns.pattern import Pattern
    from tasks.pattern_records import Standing

HEADERS = ("pattern", "tried", "won", "best", "with", "last", "hardware", "what it is")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", help="show this one in full")
    parser.add_argument(
        "--operator", default="", help="what applies to its common sizes, best guess first, and its records"
    )
    parser.add_argument("--hardware", default="", metavar="KEY", help="likewise: a hardware key, or cpu, cuda, rocm")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    from agents.patterns import catalogue
    from agents.patterns.situation import check_key
    from tasks.pattern_records import standings

    operator, hardware = arguments.operator, arguments.hardware
    if hardware:
        check_key(hardware)
    named = (catalogue.pattern(arguments.name),) if arguments.name else ()
    found = standings(r for r in read_records(from_environment()) if _wanted(r, operator, hardware))
    shown = named or chosen(operator, hardware, found)
    if arguments.json:
        facts = [as_json(pattern, found) for pattern in shown]
        print(json.dumps(facts[0] if arguments.name else facts, indent=2))
    elif arguments.name:
        print(in_full(shown[0], found))
    else:
        print(compact_table([row for pattern in shown for row in rows_of(pattern, found)], HEADERS))
    return 0


def chosen(operator: str, hardware: str, standings: Sequence[Standing]) -> tuple[Pattern, ...]:
    """The patterns for an operator on some hardware, the best guess first, then others that were tried there. Operator
    and hardware may be empty, and are any then.

    Raises:
        UnknownOperatorError: there is no such operator.
    """
    from agents.patterns import catalogue
    from agents.patterns.situation import hardware_of_key
    from gristmill.hardware import kind_of_key

    kind = kind_of_key(hardware)
    if not operator:
        return tuple(p for p in catalogue.patterns() if not hardware or not p.hardware or kind in p.hardware)
    from cli.judge import read_workloads
    from kernels import catalogue as operators
    from kernels.definition import DTYPES

    operators.check_name(operator)
    definition = operators.operator(operator)
    workloads = [workload for dtype in DTYPES for workload in read_workloads(None, definition, dtype)]
    device = local_cpu() if hardware in ("", "cpu") else hardware_of_key(hardware, local_cpu().cores)
    applicable = catalogue.applicable(definition, workloads, device)
    tried = {standing.pattern for standing in standings}
    return (*applicable, *(p for p in catalogue.patterns() if p.name in tried and p not in applicable))


def read_records(settings: Settings) -> tuple[PatternRecord, ...]:
    """Memory's records; none, and a line that says why, where the store does not answer."""
    from tasks import pattern_records

    try:
        return pattern_records.read(settings)
    except GristmillError as error:
        print(f"mill: no records are shown: {error}", file=sys.stderr)
        return ()


def rows_of(pattern: Pattern, standings: Sequence[Standing]) -> list[list[object]]:
    """A row per hardware with a record, or one that says that there is none."""
    own = [s for s in standings if s.pattern == pattern.name]
    if not own:
        return [[pattern.name, 0, 0, None, None, None, None, pattern.summary]]
    return [
        [pattern.name, s.tried, s.won, _gain(s), s.best_operator or None, _day(s.last_ms), s.hardware, pattern.summary]
        for s in own
    ]


def in_full(pattern: Pattern, standings: Sequence[Standing]) -> str:
    """All that there is to say of one pattern."""
    lines = [f"{pattern.name}: {pattern.summary}", ""]
    lines += [f"{name:<11} {text}" for name, text in _applies(pattern) if text]
    for title, text in pattern.sections.items():
        lines += ["", title, "", text]
    lines += ["", "Record", ""]
    rows = [row[1:-1] for row in rows_of(pattern, standings)]
    lines.append(compact_table(rows, HEADERS[1:-1]) if rows[0][0] else "never tried")
    return "\n".join(lines)


def as_json(pattern: Pattern, standings: Sequence[Standing]) -> dict[str, Any]:
    from gristmill import records

    return {
        "name": pattern.name,
        "summary": pattern.summary,
        "hardware": pattern.hardware,
        "bound": pattern.bound,
        "families": pattern.families,
        "dtypes": pattern.dtypes,
        "conditions": [c.text for c in pattern.conditions],
        "favours": [c.text for c in pattern.favours],
        "references": pattern.references,
        "sections": pattern.sections,
        "records": [records.encode(s) for s in standings if s.pattern == pattern.name],
    }


def _applies(pattern: Pattern) -> list[tuple[str, str]]:
    return [
        ("hardware", ", ".join(pattern.hardware) or "any"),
        ("limited by", ", ".join(pattern.bound) or "anything"),
        ("families", ", ".join(pattern.families) or "any"),
        ("dtypes", ", ".join(pattern.dtypes) or "any"),
        ("where", "; ".join(c.text for c in pattern.conditions) or "everywhere"),
        ("better if", "; ".join(c.text for c in pattern.favours)),
        ("source", "; ".join(pattern.references)),
    ]


def _wanted(record: PatternRecord, operator: str, hardware: str) -> bool:
    from agents.patterns.situation import KINDS
    from gristmill.hardware import kind_of_key

    there = kind_of_key(record.hardware) if hardware in KINDS else record.hardware
    return operator in ("", record.operator) and hardware in ("", there)


def _gain(standing: Standing) -> str | None:
    return f"{standing.best:.2f}x" if standing.best else None


def _day(since_epoch_ms: int) -> str:
    return datetime.fromtimestamp(since_epoch_ms / 1000, UTC).date().isoformat()
