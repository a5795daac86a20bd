"""Where the budget's caps come from, and where its ledger lies.

What a command's options say wins over the environment (`MILL_MAX_USD`, `MILL_DAILY_TOKENS`, ...), which wins over
`budget.toml` in the home:

    [search]          # each search
    usd = 5           # the default
    tokens = "none"   # no cap; also device_s and wall_s
    [day]             # all searches of a UTC day together
    usd = 20          # the default
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.caps import RESOURCES, BudgetCaps, cap
from agents.ledger import Ledger
from tasks.errors import SettingsError
from tasks.settings import Settings


@dataclass(frozen=True)
class CapName:
    """One cap, and where it may be set."""

    option: str
    """`max_usd`, for `--max-usd`."""
    variable: str
    scope: str
    """A field of `BudgetCaps`."""
    resource: str
    """A field of `Caps`."""


CAP_NAMES = (
    CapName("max_usd", "MILL_MAX_USD", "search", "usd"),
    CapName("max_tokens", "MILL_MAX_TOKENS", "search", "tokens"),
    CapName("max_device_s", "MILL_MAX_DEVICE_S", "search", "device_s"),
    CapName("max_wall_s", "MILL_MAX_WALL_S", "search", "wall_s"),
    CapName("daily_usd", "MILL_DAILY_USD", "day", "usd"),
    CapName("daily_tokens", "MILL_DAILY_TOKENS", "day", "tokens"),
    CapName("daily_device_s", "MILL_DAILY_DEVICE_S", "day", "device_s"),
    CapName("daily_wall_s", "MILL_DAILY_WALL_S", "day", "wall_s"),
)


def caps(
    settings: Settings, options: Mapping[str, float | None] | None = None, environ: Mapping[str, str] = os.environ
) -> BudgetCaps:
    """The caps that a search is held to.

    Args:
        options: what a command was told, by name (`max_usd`); None is no cap.

    Raises:
        CapError, SettingsError: a value is no number, or the file cannot be read; the message says where.
    """
    found = _from_file(settings.home / "budget.toml")
    for name in CAP_NAMES:
        if options is not None and name.option in options:
            found = found.with_values(name.scope, {name.resource: options[name.option]})
        elif environ.get(name.variable):
            value = cap(name.resource, environ[name.variable], name.variable)
            found = found.with_values(name.scope, {name.resource: value})
    return found


def ledger_path(settings: Settings) -> Path:
    return settings.home / "ledger.db"


def open_ledger(settings: Settings) -> Ledger:
    """The home's ledger; close it."""
    return Ledger(ledger_path(settings))


def _from_file(path: Path) -> BudgetCaps:
    found = BudgetCaps()
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return found
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path}: not TOML ({error})") from None
    for scope, table in tables.items():
        if scope not in ("search", "day") or not isinstance(table, dict):
            raise SettingsError(f"{path}: found {scope!r}, expected the tables [search] and [day]")
        for resource, value in table.items():
            if resource not in RESOURCES:
                raise SettingsError(f"{path}, [{scope}]: found {resource!r}, expected {', '.join(RESOURCES)}")
            found = found.with_values(scope, {resource: cap(resource, value, f"{path}, [{scope}] {resource}")})
    return found
