"""The week: what happened in it and nothing older, as tables and as a page that shows what a name holds as text."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agents.caps import BudgetCaps
from agents.spending import Amount
from gristmill import records
from gristmill.directory_store import DirectoryStore
from kernels.profile import rank
from tasks import budgeting, promotion, proving, results, traffic
from tasks.compilation import OperatorSearch, SearchResult
from tasks.record_lines import RecordLines
from tasks.revalidation import Rejudged, Standing, record_path
from tasks.settings import Settings
from tasks.week import Week, keep_page, look_back, page
from tests.registry.world import shared_keys
from tests.tasks.world import PEAKS, FormulaBench, candidate, profile, rms_norm, settings

ONE = rms_norm(1)
NOW = datetime.now(UTC)

pytestmark = pytest.mark.usefixtures("no_power_cuts")


def searched(chosen: Settings, search_id: str, finished: datetime) -> None:
    operator = OperatorSearch("rms_norm", "float32", 10.0, 9.0, 1, 3, {"faster": 1, "slower": 2}, (1.0, 1.5), {})
    result = SearchResult(search_id, "", rank(profile(ONE), PEAKS), (operator,), "")
    results.keep(chosen, results.KeptSearch(finished.isoformat(), profile(ONE), result))


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    made = settings(tmp_path / "home", tmp_path / "store")
    shutil.copytree(shared_keys(), made.keys_dir)
    (tmp_path / "store").mkdir()
    return made


def week(chosen: Settings, now: datetime = NOW) -> Week:
    return look_back(DirectoryStore(Path(chosen.store_url.removeprefix("file://"))), chosen, 7.0, now)


def test_a_mill_that_did_nothing_has_a_page_that_says_so(chosen: Settings) -> None:
    found = week(chosen)
    assert [rows for heading, rows in found.parts.items() if heading != "Spent"] == [()] * 5
    assert page(found).count("Nothing.") == 5


def test_everything_of_the_week_and_nothing_older(chosen: Settings) -> None:
    store = DirectoryStore(Path(chosen.store_url.removeprefix("file://")))
    searched(chosen, "new", NOW - timedelta(days=1))
    searched(chosen, "old", NOW - timedelta(days=8))
    (chosen.searches_dir / "torn").mkdir()
    (chosen.searches_dir / "torn" / "result.json").write_text("{")
    traffic.keep_profile(store, chosen, profile(ONE, end=NOW.isoformat()))
    traffic.keep_profile(store, chosen, profile(ONE, end=(NOW - timedelta(days=9)).isoformat()))
    traffic.mark_compiled(store, chosen, profile(ONE, end=NOW.isoformat()))
    proof = promotion.prove(FormulaBench(lambda c, w: 2.0), profile(ONE), [candidate(1)])
    artifacts, files = proving.artifacts_of([(proof, {})], chosen, print)
    promotion.publish_artifacts(store, chosen, "canary", artifacts, files, profile(ONE), "search <new>")
    lines = RecordLines(record_path(chosen), Rejudged)
    for ago in (9, 1):
        when = (NOW - timedelta(days=ago)).isoformat()
        lines.append(Rejudged(when, "m", "rms_norm.float32", f"candidate {ago}", "o", Standing.HOLDS, "1.2x"))
    with budgeting.open_ledger(chosen) as ledger:
        ledger.budget("new", BudgetCaps()).reserve(Amount(usd=1.5, tokens=7), "a call").settle(
            Amount(usd=1.5, tokens=7)
        )
    found = week(chosen)
    assert [row["search"] for row in found.searches] == ["new"] and found.searches[0]["faster"] == "1"
    assert (found.traffic[0]["profiles"], found.traffic[0]["compiled for"]) == ("1", "1")
    assert [row["why"] for row in found.channels] == ["search <new>"]
    assert [row["candidate"] for row in found.rejudged] == ["candidate 1"]
    assert (found.spending[0]["USD"], found.spending[0]["tokens"]) == ("1.50", "7")
    assert "search &lt;new&gt;" in page(found) and "<new>" not in page(found)
    path = keep_page(chosen, found)
    assert path.read_text() == page(found) and keep_page(chosen, found) == path
    assert records.decode(Week, records.encode(found)) == found
