"""`./mill budget`: what searches and days may spend, have spent, and have in flight."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cli.errors import BudgetArgumentsError
from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment

if TYPE_CHECKING:
    from agents.account import Account, Counted
    from agents.caps import BudgetCaps

HEADERS = ("", "resource", "cap", "spent", "in flight", "remaining", "calls")
SHOWN = 12
"""Days and searches in the table, the latest of each."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--search", default="", metavar="ID", help="only the search whose id begins so")
    parser.add_argument("--all", action="store_true", help=f"more than the last {SHOWN} days and searches")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(arguments: argparse.Namespace) -> int:
    from tasks import budgeting

    settings = from_environment()
    caps = budgeting.caps(settings)
    days: tuple[Account, ...] = ()
    searches: tuple[Account, ...] = ()
    open_: tuple[Counted, ...] = ()
    if budgeting.ledger_path(settings).exists():
        with budgeting.open_ledger(settings) as ledger:
            days, searches, open_ = ledger.days(), ledger.searches(), ledger.open_reservations()
    searches = tuple(account for account in searches if account.name.startswith(arguments.search))
    if arguments.search and not searches:
        raise BudgetArgumentsError(
            f"search {arguments.search!r}: the ledger knows none whose id begins so; ./mill budget --all lists them"
        )
    if arguments.json:
        print(json.dumps(report(caps, days, searches, open_), indent=2))
        return 0
    shown = None if arguments.all else -SHOWN
    rows = [row for account in days[shown:] for row in _rows(f"day {account.name}", account)]
    rows += [row for account in searches[shown:] for row in _rows(f"search {account.name}", account)]
    print(compact_table(rows, HEADERS) if rows else "nothing was spent yet")
    gone = sum(entry.abandoned for entry in open_)
    if gone:
        print(f"abandoned calls: {gone}; their process died before it could say what they cost, so all of it is spent")
    print(f"the next search may spend {_texts(caps.search)}, all searches of a day together {_texts(caps.day)}")
    return 0


def report(
    caps: BudgetCaps, days: Sequence[Account], searches: Sequence[Account], open_: Sequence[Counted]
) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "caps_of_next_search": records.encode(caps),
        "days": [_object(account) for account in days],
        "searches": [_object(account) for account in searches],
        "open": records.encode(open_),
    }


def _object(account: Account) -> dict[str, Any]:
    return {**records.encode(account), "remaining": records.encode(account.remaining)}


def _rows(name: str, account: Account) -> Iterator[tuple[object, ...]]:
    """A row per resource that has a cap or was spent; the name and the number of calls stand in the first."""
    calls = f"{account.calls} settled, {account.calls_in_flight} in flight, {account.calls_abandoned} abandoned"
    for resource, unit in _units().items():
        cap, left = getattr(account.caps, resource), getattr(account.remaining, resource)
        spent, flying = getattr(account.spent, resource), getattr(account.in_flight, resource)
        if cap is not None or spent or flying:
            yield name, unit, _number(cap), _number(spent), _number(flying), _number(left), calls
            name = calls = ""


def _texts(caps: Any) -> str:
    found = [
        f"{_number(getattr(caps, name))} {unit}" for name, unit in _units().items() if getattr(caps, name) is not None
    ]
    return ", ".join(found) or "any amount"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _units() -> dict[str, str]:
    from agents.caps import UNITS

    return UNITS
