"""Options of commands that spend: `--max-usd`, `--daily-tokens` and so on."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from agents.caps import NO_CAP, UNITS, BudgetCaps, cap
from agents.errors import CapError
from tasks import budgeting
from tasks.settings import Settings

WHOSE = {"search": "this search may take", "day": "all searches of a UTC day may take together"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    group = parser.add_argument_group(
        "budget",
        f"Caps, as numbers or {NO_CAP!r}. What is not given here comes from the environment (MILL_MAX_USD, ...), then "
        "from budget.toml in MILL_HOME; otherwise only money has caps: 5 USD a search, 20 USD a day.",
    )
    for name in budgeting.CAP_NAMES:
        group.add_argument(
            f"--{name.option.replace('_', '-')}",
            type=_cap(name.resource),
            default=argparse.SUPPRESS,
            metavar="N",
            help=f"{UNITS[name.resource]} that {WHOSE[name.scope]}",
        )


def budget_caps(arguments: argparse.Namespace, settings: Settings) -> BudgetCaps:
    """The caps that these options, the environment and the home ask for."""
    given = vars(arguments)
    options = {name.option: given[name.option] for name in budgeting.CAP_NAMES if name.option in given}
    return budgeting.caps(settings, options)


def _cap(resource: str) -> Callable[[str], float | None]:
    def parse(text: str) -> float | None:
        try:
            return cap(resource, text, "")
        except CapError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse
