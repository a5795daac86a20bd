"""What the mill did in the last days, from what it keeps anyway: searches, channels, judgements repeated, spending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from pathlib import Path

from gristmill import durable_file, records
from gristmill.errors import MalformedRecordError
from gristmill.store import ObjectStore
from registry import expiry
from registry.repository import Repository
from tasks import budgeting, revalidation, traffic
from tasks.promotion import keyring_of
from tasks.report import STYLE
from tasks.results import KeptSearch
from tasks.settings import Settings

Rows = tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Week:
    """Each part as the rows of a table, the newest first; empty where nothing happened."""

    fleet: str
    model: str
    since_utc: str
    until_utc: str
    traffic: Rows
    searches: Rows
    channels: Rows
    rejudged: Rows
    spending: Rows
    signatures: Rows
    """Until when those of the registry count; what must be renewed says so."""

    @property
    def parts(self) -> dict[str, Rows]:
        """By heading."""
        return {
            "Traffic": self.traffic,
            "Searches": self.searches,
            "Channels": self.channels,
            "Judged again": self.rejudged,
            "Spent": self.spending,
            "Signatures": self.signatures,
        }


def look_back(object_store: ObjectStore, settings: Settings, days: float, now: datetime) -> Week:
    """Of this fleet and model. Reads only; what cannot be read is left out."""
    since = now - timedelta(days=days)
    return Week(
        settings.fleet,
        settings.model,
        since.isoformat(timespec="seconds"),
        now.isoformat(timespec="seconds"),
        tuple(_traffic_rows(object_store, settings, since)),
        tuple(_search_rows(settings, since)),
        tuple(_channel_rows(object_store, settings, since)),
        tuple(_rejudged_rows(settings, since)),
        tuple(_spending_rows(settings, since)),
        tuple(_signature_rows(object_store, settings, now)),
    )


def keep_page(settings: Settings, week: Week) -> Path:
    """Writes the page, under the day on which the week ends; again, it is replaced."""
    folder = settings.home / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"week-{week.until_utc[:10]}.html"
    durable_file.write(path, page(week).encode())
    return path


def page(week: Week) -> str:
    """One HTML page that needs nothing but itself."""
    title = f"{week.fleet}, {week.model}: {week.since_utc[:10]} to {week.until_utc[:10]}"
    body = "".join(f"<h2>{escape(heading)}</h2>{_table(rows)}" for heading, rows in week.parts.items())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _table(rows: Sequence[dict[str, str]]) -> str:
    if not rows:
        return '<p class="muted">Nothing.</p>'
    heads = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row.values())}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{heads}</tr>{lines}</table></div>'


def _traffic_rows(object_store: ObjectStore, settings: Settings, since: datetime) -> Iterator[dict[str, str]]:
    """How often it was captured and compiled for, per hardware, by the names of what is kept."""
    counts: dict[str, Counter[str]] = {}
    for kind in (traffic.PROFILES, traffic.COMPILED):
        for key in object_store.list(f"{kind}/{settings.fleet}/{settings.model}/"):
            hardware, name = key.split("/")[-2:]
            if name[:8].isdecimal() and name[:8] >= f"{since:%Y%m%d}":
                counts.setdefault(hardware, Counter())[kind] += 1
    for hardware, found in sorted(counts.items()):
        yield {
            "hardware": hardware,
            "profiles": str(found[traffic.PROFILES]),
            "compiled for": str(found[traffic.COMPILED]),
        }


def _search_rows(settings: Settings, since: datetime) -> Iterator[dict[str, str]]:
    for search in sorted(_searches(settings), key=lambda one: one.finished_utc, reverse=True):
        if datetime.fromisoformat(search.finished_utc) < since:
            continue
        for one in search.result.operators:
            yield {
                "search": search.result.search_id,
                "finished": search.finished_utc[:16],
                "operator": f"{one.operator} {one.dtype}",
                "candidates": str(one.trials),
                "faster": str(one.statuses.get("faster", 0)),
                "gain on its traffic": f"{one.gain:.3f}x",
                "seconds": f"{one.spent_s:.0f}",
            }


def _searches(settings: Settings) -> Iterator[KeptSearch]:
    for path in settings.searches_dir.glob("*/result.json"):
        try:
            yield records.parse(KeptSearch, path.read_bytes(), str(path))
        except MalformedRecordError:
            continue  # of another version of the mill


def _channel_rows(object_store: ObjectStore, settings: Settings, since: datetime) -> Iterator[dict[str, str]]:
    repository = Repository(object_store, keyring_of(settings))
    if not repository.exists():
        return
    for channel, newest in sorted(repository.live().states.items(), key=lambda found: str(found[0])):
        if (channel.fleet, channel.model) != (settings.fleet, settings.model):
            continue
        for state in repository.history_from(newest, channel):
            if datetime.fromisoformat(state.index.created_utc) < since:
                break
            yield {
                "channel": channel.name,
                "hardware": channel.hardware,
                "generation": str(state.index.number),
                "since": state.index.created_utc[:16],
                "tables": ", ".join(sorted(state.index.tables)) or "none",
                "why": state.index.reason,
            }


def _rejudged_rows(settings: Settings, since: datetime) -> Iterator[dict[str, str]]:
    for one in reversed(revalidation.record(settings)):
        if datetime.fromisoformat(one.judged_utc) >= since:
            yield {
                "table": one.table,
                "candidate": records.short(one.candidate),
                "when": one.judged_utc[:16],
                "standing": one.standing.value,
                "why": one.reason,
            }


def _spending_rows(settings: Settings, since: datetime) -> Iterator[dict[str, str]]:
    with budgeting.open_ledger(settings) as ledger:
        days = ledger.days()
    for day in reversed(days):
        if day.name >= f"{since:%Y-%m-%d}":
            yield {
                "day": day.name,
                "USD": f"{day.spent.usd:.2f}",
                "tokens": str(day.spent.tokens),
                "device s": f"{day.spent.device_s:.0f}",
                "wall s": f"{day.spent.wall_s:.0f}",
            }


def _signature_rows(object_store: ObjectStore, settings: Settings, now: datetime) -> Iterator[dict[str, str]]:
    repository = Repository(object_store, keyring_of(settings))
    for one in expiry.expiries(repository) if repository.exists() else ():
        yield {
            "role": one.role,
            "signed until": f"{one.expires:%Y-%m-%d}",
            "to do": one.warning(now) if one.is_near(now) else "-",
        }
