"""What a search leaves behind for the flows that follow: its profile and its result, as files beside the journal."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill import durable_file, records
from gristmill.workload import Workload
from kernels.profile import TrafficProfile
from tasks import steady_recall
from tasks.compilation import SearchResult
from tasks.errors import NoWinnerError
from tasks.search_plan import workloads_of
from tasks.settings import Settings


@dataclass(frozen=True)
class KeptSearch:
    """One search, whole: what it was for and what came out."""

    finished_utc: str
    profile: TrafficProfile
    result: SearchResult

    def of(self, operator: str, dtype: str) -> tuple[Workload, ...]:
        """As `TrafficProfile.of`, and what a fused operator would be called with."""
        return workloads_of(self.profile, self.result.fusions, operator, dtype)


def keep(settings: Settings, search: KeptSearch) -> None:
    """Writes the search's result; the file appears by rename. What only a second life of it needed goes."""
    folder = settings.searches_dir / search.result.search_id
    folder.mkdir(parents=True, exist_ok=True)
    durable_file.write(folder / "result.json", records.canonical_json(search))
    steady_recall.forget(folder)


def load(settings: Settings, search_id: str = "") -> KeptSearch:
    """The search of that id, or the one that finished last.

    Raises:
        NoWinnerError: there is no such finished search.
    """
    found = [
        records.parse(KeptSearch, path.read_bytes(), str(path))
        for path in settings.searches_dir.glob("*/result.json")
        if search_id in ("", path.parent.name)
    ]
    if not found:
        what = f"search {search_id}" if search_id else "no search"
        raise NoWinnerError(f"{what} has finished in {settings.searches_dir}: run ./mill compile first")
    return max(found, key=lambda search: search.finished_utc)
