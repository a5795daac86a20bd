"""A fused operator is searched, remembered, resumed and proven like any other, and not released."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.kernel_table import Artifact
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.profile import TrafficProfile
from registry.repository import Repository
from tasks import journal, mlflow_runs, promotion, recruitment, report_charts, results
from tasks.compilation import SearchResult, journal_path, run_searches
from tasks.errors import NoWinnerError
from tasks.mlflow_spool import SearchTrial
from tasks.report_data import SearchRow
from tasks.search_plan import NOBODY, NOT_RELEASED
from tasks.search_session import SearchSession
from tests.registry.world import shared_keys
from tests.tasks import world
from tests.tasks.fused_world import FUSED, TWINS, feeding, twins

Search = Callable[..., tuple[SearchResult, world.FormulaBench]]


def ratio(candidate: Candidate, workload: Workload) -> float:
    return 1.7 if workload.axes["tokens"] > 1 else 1.3


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """`run_searches` for the fused operator alone, on a formula, with the clock of the bench."""

    def search(
        traffic: TrafficProfile, dies_at: int = -1, only: str = FUSED
    ) -> tuple[SearchResult, world.FormulaBench]:
        bench = world.FormulaBench(ratio, dies_at=dies_at)
        monkeypatch.setattr(recruitment, "SearchSession", functools.partial(SearchSession, clock=bench.clock))
        chosen = world.settings(tmp_path)
        made = run_searches(bench, world.ListLog(), chosen, traffic, world.PEAKS, budget_s=9.0, only=[only])
        return made, bench

    return search


def test_it_is_scored_on_what_it_would_be_called_with(search: Search) -> None:
    result, bench = search(feeding(1, 4))
    (one,) = result.operators
    assert (one.operator, one.dtype, one.workloads) == (FUSED, "float32", 2)
    assert one.trials == len(bench.judged) > 1 and one.best_ratios[-1] == pytest.approx(2 / (1 / 1.3 + 1 / 1.7))
    assert all(label.startswith(FUSED) for label in one.gains)
    assert [proposal.operator for proposal in result.fusions] == [FUSED] and not result.skipped


def test_killed_and_started_again_it_judges_nothing_twice(search: Search) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(feeding(), dies_at=3)
    resumed, bench = search(feeding())
    assert len(bench.judged) == resumed.operators[0].trials - 3
    again, idle = search(feeding())
    assert idle.judged == [] and again.operators[0].best_ratios == resumed.operators[0].best_ratios


def test_what_nobody_can_write_is_skipped_and_ends_nothing(search: Search) -> None:
    result, bench = search(twins(), only=TWINS)
    assert result.operators == () and bench.judged == []
    assert result.nothing == f"{TWINS} float32: {NOBODY}"
    assert [(one.operator, one.reason) for one in result.skipped] == [(TWINS, NOBODY)]


class TestPromotion:
    @pytest.fixture
    def kept(self, tmp_path: Path, search: Search) -> results.KeptSearch:
        """As the search left it, read again."""
        chosen = world.settings(tmp_path)
        result, _ = search(feeding(1, 4))
        results.keep(chosen, results.KeptSearch("2026-12-01T00:00:00+00:00", feeding(1, 4), result))
        return results.load(chosen)

    def artifact(self, tmp_path: Path, kept: results.KeptSearch) -> tuple[Artifact, dict[str, bytes]]:
        entries = journal.read(journal_path(world.settings(tmp_path), kept.result.search_id))
        ((key, found),) = promotion.winners(entries).items()
        assert key == (FUSED, "float32")
        proof = promotion.prove(world.FormulaBench(ratio), kept, found)
        return promotion.form_artifact(proof, world.settings(tmp_path), {"torch": "2.13.0"})

    def test_its_winners_are_judged_again_on_captured_and_unseen_shapes(
        self, tmp_path: Path, kept: results.KeptSearch
    ) -> None:
        artifact, files = self.artifact(tmp_path, kept)
        assert artifact.table.name == f"{FUSED}.float32"
        evidence = records.json.loads(files[artifact.evidence.sha256])
        tokens = {timing["workload"]["axes"]["tokens"] for verdict in evidence for timing in verdict["timings"]}
        assert tokens > {1, 4}

    def test_what_is_proven_stays_out_of_the_channel_and_says_so(
        self, tmp_path: Path, kept: results.KeptSearch
    ) -> None:
        chosen, store = world.settings(tmp_path / "home"), DirectoryStore(tmp_path / "store")
        shutil.copytree(shared_keys(), chosen.keys_dir)
        fused, files = self.artifact(tmp_path, kept)
        publish = functools.partial(promotion.publish_artifacts, store, chosen, "canary")
        with pytest.raises(NoWinnerError, match=NOT_RELEASED):
            publish([fused], files, kept.profile, "search abc")
        assert list(store.list("")) == [], "nothing was signed, nothing uploaded"
        plain = promotion.prove(
            world.FormulaBench(lambda c, w: 2.0), world.profile(world.rms_norm(4)), [world.candidate()]
        )
        released, more = promotion.form_artifact(plain, chosen, {"torch": "2.13.0"})
        published = publish([fused, released], {**files, **more}, kept.profile, "search abc")
        assert list(published.manifests) == [released.table.name]
        assert published.declined == {fused.table.name: NOT_RELEASED}
        held = [key for key in store.list("") if any(digest in key for digest in files.keys() - more.keys())]
        assert held == []
        current = Repository(store, promotion.keyring_of(chosen)).current(promotion.channel_of(chosen, "canary"))
        assert current is not None and list(current.index.tables) == [released.table.name]


LONG = "rms_norm+skinny_linear-skinny_linear-skinny_linear"


def test_long_names_stay_within_their_charts() -> None:
    """Three charts stand side by side; a title that runs on hides the next one's."""
    candidate = world.candidate(operator=LONG)
    trial = SearchTrial(0, 0, candidate, world.verdict(candidate, world.timing(world.rms_norm(1), 1.5)))
    (axes,) = mlflow_runs.best_ratio_figure([trial]).axes
    drawn = report_charts.searches([SearchRow(LONG, "float32", 6.0, (1.2, 1.5), 2)])
    for lines in (axes.get_title(loc="left").splitlines(), re.findall(r"<text[^>]*>([^<]*skinny[^<]*)</text>", drawn)):
        assert len(lines) > 1 and max(map(len, lines)) <= 48
