"""One page per cycle: what the traffic was, what a search for it found and what was decided, from the search's files.

It can be written at any time after the search, and again after a promotion: the same files give the same page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill import durable_file, records
from gristmill.kernel_table import Artifact
from registry.publication import Published
from tasks import compilation, journal, report, report_rows, results
from tasks.report_data import DecisionRow, DemoReport, KernelRow
from tasks.settings import Settings

PAGE = "report.html"
PROMOTION = "promotion.json"


@dataclass(frozen=True)
class KeptPromotion:
    """What became of a search's winners."""

    channel: str
    generation: int
    decisions: tuple[DecisionRow, ...]
    kernels: tuple[KernelRow, ...]


def path_of(settings: Settings, search_id: str) -> Path:
    """Of the page."""
    return settings.searches_dir / search_id / PAGE


def keep_promotion(settings: Settings, search_id: str, published: Published, artifacts: Sequence[Artifact]) -> None:
    """Writes down what was decided about each table, and the page anew."""
    kept = KeptPromotion(
        published.channel.name,
        published.number,
        decisions_of(published, artifacts),
        report_rows.kernel_rows([a for a in artifacts if a.table.name not in published.declined], {}),
    )
    durable_file.write(settings.searches_dir / search_id / PROMOTION, records.canonical_json(kept))
    write(settings, search_id)


def decisions_of(published: Published, artifacts: Sequence[Artifact]) -> tuple[DecisionRow, ...]:
    """Per table whether it was published, and why not or where."""
    where = f"generation {published.number} of {published.channel.name}"
    return report_rows.decision_rows(artifacts, published.declined, where)


def write(settings: Settings, search_id: str) -> Path:
    """The page of a search that has finished; it appears by rename.

    Raises:
        NoWinnerError: there is no such finished search.
    """
    search = results.load(settings, search_id)
    entries = journal.read(compilation.journal_path(settings, search.result.search_id))
    path = path_of(settings, search.result.search_id)
    page = report.render(report_of(search, entries, _promotion(path.parent)))
    durable_file.write(path, page.encode())
    return path


def report_of(
    search: results.KeptSearch, entries: Sequence[journal.JournalEntry], promotion: KeptPromotion | None
) -> DemoReport:
    """What the page says. Of a cycle without promotion: what was found."""
    profile, result = search.profile, search.result
    decided = "" if promotion is None else f"generation {promotion.generation} of {promotion.channel}"
    skipped = [f"{one.operator} {one.dtype}: {one.reason}" for one in result.skipped]
    facts = {
        "Fleet": f"{profile.fleet}, {profile.model}",
        "Window": f"{profile.window_start_utc} to {profile.window_end_utc}",
        "Requests": f"{profile.requests.count:,}",
        "Versions": ", ".join(f"{name} {version}" for name, version in sorted(profile.versions.items())),
        "Search": result.search_id,
        "Published": decided or "nothing",
        "Not searched": "; ".join(skipped),
        "Nothing searched": result.nothing,
    }
    return DemoReport(
        title=f"Gristmill: cycle {result.search_id}",
        created_utc=search.finished_utc,
        host=profile.hardware,
        facts={name: text for name, text in facts.items() if text},
        traffic=report_rows.traffic_rows(profile, result.ranked),
        searches=tuple(report_rows.search_row(one, entries) for one in result.operators if one.trials),
        **report_rows.search_sections(profile.workloads, entries),
        decisions=() if promotion is None else promotion.decisions,
        kernels=() if promotion is None else promotion.kernels,
        commands={
            "every candidate and flow": "./mill ui",
            "how a candidate came about": f"./mill replay {result.search_id}",
            "undo what was published": "./mill rollback",
        },
    )


def _promotion(folder: Path) -> KeptPromotion | None:
    path = folder / PROMOTION
    return records.parse(KeptPromotion, path.read_bytes(), str(path)) if path.exists() else None
