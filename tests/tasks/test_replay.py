"""A candidate's path is found by run, digest and episode, in MLflow and without it, and nothing else is shown."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from agents.episode import Episode
from kernels.candidate import Candidate
from tasks import replay as replay_module
from tasks import results
from tasks.compilation import OperatorSearch, SearchResult
from tasks.errors import ReplayError
from tasks.journal import Journal
from tasks.mlflow_sink import SearchLog
from tasks.proposal_record import ProposalRecord
from tasks.replay import Replay, SearchReplay, replay
from tasks.results import KeptSearch
from tasks.settings import Settings, from_environment
from tests.tasks.test_mlflow_sink import TAGS, candidate, children, verdict
from tests.tasks.test_mlflow_traces import episode
from tests.tasks.world import profile, rms_norm

RATIOS = (1.1, None, 0.9, 1.7)


def by_model(number: int, of: Episode, *parents: str) -> Candidate:
    one = candidate(number)
    return replace(one, origin=replace(one.origin, agent=of.agent, model=of.model, episode=of.id, parents=parents))


PATTERN = [candidate(number) for number in range(len(RATIOS))]
EPISODE = replace(episode(0), candidates=(candidate(9).digest,))
LOST = episode(1)
WRITTEN = by_model(9, EPISODE, PATTERN[3].digest, "f" * 64)


def search(home: Path, *, uri: str = "") -> Settings:
    """A search with four candidates of a pattern agent, one of a language model, and an episode that led nowhere."""
    settings = from_environment({"MILL_HOME": str(home), "MLFLOW_TRACKING_URI": uri})
    journal = Journal(settings.searches_dir / "s1" / "verdicts.jsonl")
    with SearchLog(home, "s1", tags=TAGS, tracking_uri=uri) as log:
        log.episodes.record(EPISODE)
        log.episodes.record(LOST)
        for step, (one, ratio) in enumerate(zip([*PATTERN, WRITTEN], [*RATIOS, 2.5], strict=True)):
            log.record(one, verdict(one, ratio), step)
            journal.append(one, verdict(one, ratio), ())
        log.finish({"rms_norm.float32": "1.92345"})
        results.keep(settings, KeptSearch("2026-12-01T02:00:00+00:00", profile(rms_norm(1)), RESULT))
        log.close(stall_s=0.1 if uri else 60.0)
    return settings


FOUND = OperatorSearch("rms_norm", "float32", 9.0, 9.0, 2, 5, {"faster": 3}, (1.1, 1.1, 1.1, 1.7, 1.92345), {})
RESULT = SearchResult("s1", "d" * 64, (), (FOUND,), "")
NOBODY = "http://127.0.0.1:9"

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(params=["MLflow", "this host"])
def settings(request: pytest.FixtureRequest, home: Path) -> Settings:
    return search(home, uri="" if request.param == "MLflow" else NOBODY)


def found(settings: Settings, text: str) -> Replay:
    answer = answered(settings, text)
    assert isinstance(answer, Replay)
    return answer


def answered(settings: Settings, text: str) -> Replay | SearchReplay:
    answer, away = replay(settings, text)
    assert answer.source == ("this host" if settings.tracking_uri else "MLflow")
    assert bool(away) is bool(settings.tracking_uri)
    return answer


def test_a_language_models_candidate_has_its_episode_and_its_parents(settings: Settings) -> None:
    for text in (WRITTEN.digest[:8], WRITTEN.digest, "e0"):
        answer = found(settings, text)
        assert answer.candidate is not None and answer.candidate.digest == WRITTEN.digest
        assert (answer.candidate.status, answer.candidate.ratio) == ("faster", 2.5)
        assert answer.episodes == (EPISODE,)
        assert [one.digest for one in answer.lineage] == [PATTERN[3].digest]
    with pytest.raises(ReplayError, match="neither"):
        replay(settings, "deadbeef")


def test_a_pattern_agents_candidate_has_the_course_that_led_to_it(settings: Settings) -> None:
    answer = found(settings, PATTERN[2].digest[:10])
    assert answer.episodes == ()
    assert [(one.digest, one.ratio) for one in answer.course] == [
        (one.digest, ratio) for one, ratio in zip(PATTERN[:3], RATIOS, strict=False)
    ]
    assert answer.course[0].parameters["unroll"] == "0"


def test_a_search_is_found_by_its_name_with_all_it_judged(settings: Settings) -> None:
    answer = answered(settings, "s1")
    assert isinstance(answer, SearchReplay) and answer.search == "s1"
    assert [(one.digest, one.ratio) for one in answer.judged] == [
        (one.digest, ratio) for one, ratio in zip([*PATTERN, WRITTEN], [*RATIOS, 2.5], strict=True)
    ]
    assert answer.gains == {"rms_norm float32": 1.92345}, "what ./mill compile said, not a candidate's own ratio"
    for one in answer.judged:
        candidate_of = found(settings, one.digest[:12]).candidate
        assert candidate_of is not None and candidate_of.digest == one.digest
    with pytest.raises(ReplayError, match="nor an episode or a search that is known"):
        replay(settings, "s2")


def test_a_search_that_has_not_ended_has_no_gain_yet(home: Path) -> None:
    settings = from_environment({"MILL_HOME": str(home)})
    with SearchLog(home, "s3", tags=TAGS) as log:
        log.record(PATTERN[0], verdict(PATTERN[0]), 0)
        log.close(stall_s=60.0)
    answer = answered(settings, "s3")
    assert isinstance(answer, SearchReplay) and len(answer.judged) == 1 and answer.gains == {}


def test_a_damaged_journal_is_told_of_once_and_replayed_all_the_same(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = search(home, uri=NOBODY)
    path = settings.searches_dir / "s1" / "verdicts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], b"junk\n", *lines[2:]]))
    caplog.clear()
    answer = found(settings, PATTERN[2].digest[:10])
    assert [one.digest for one in answer.course] == [PATTERN[0].digest, PATTERN[2].digest]
    told = [record.getMessage() for record in caplog.records if record.name == "tasks.record_lines"]
    assert told == ["s1/verdicts.jsonl: line 2 is damaged and left out; 4 are whole"]


def test_damage_on_this_host_is_told_of_also_where_mlflow_has_the_answer(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = search(home)
    folder = settings.searches_dir / "s1"
    record = ProposalRecord(folder / "proposals.jsonl")
    for number in range(3):
        record.add(candidate(number), (rms_norm(1),))
    for name in ("verdicts.jsonl", "proposals.jsonl"):
        _, rest = (folder / name).read_bytes().split(b"\n", 1)
        (folder / name).write_bytes(b"{damaged\n" + rest + b"\x00\xff\xfe\n")
    caplog.clear()
    answer, away = replay(settings, "s1")
    assert isinstance(answer, SearchReplay) and answer.source == "MLflow" and not away
    assert len(answer.judged) == len(PATTERN) + 1
    told = [record.getMessage() for record in caplog.records if record.name == "tasks.record_lines"]
    assert told == [
        "s1/verdicts.jsonl: 2 lines (the first is line 1) are damaged and left out; 4 are whole",
        "s1/proposals.jsonl: 2 lines (the first is line 1) are damaged and left out; 2 are whole",
    ]


def test_an_episode_without_a_candidate_is_found_by_its_id(settings: Settings) -> None:
    answer = found(settings, "e1")
    assert answer.candidate is None and answer.episodes == (LOST,)


def test_a_run_of_mlflow_is_found_by_its_id(home: Path) -> None:
    settings = search(home)
    runs = {run.data.tags["candidate"]: run.info.run_id for run in children(home, "s1")}
    answer = found(settings, runs[WRITTEN.digest])
    assert answer.candidate is not None and answer.candidate.digest == WRITTEN.digest
    assert answer.candidate.run_id == runs[WRITTEN.digest]


def test_what_is_not_known_is_one_clear_line(home: Path) -> None:
    settings = search(home)
    for text in ("", "e", "' or 1=1", "%%%%%%%", "../../etc", "abc", "0" * 64, "\0", "é" * 300):
        with pytest.raises(ReplayError, match="neither a run") as problem:
            replay(settings, text)
        assert len(str(problem.value).splitlines()) == 1, text


def test_looking_makes_no_store(tmp_path: Path) -> None:
    settings = from_environment({"MILL_HOME": str(tmp_path)})
    with pytest.raises(ReplayError):
        replay(settings, "abcdef0")
    assert not (tmp_path / "mlflow.db").exists()


def test_a_beginning_of_several_digests_asks_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = from_environment({"MILL_HOME": str(tmp_path)})
    journal = Journal(settings.searches_dir / "s1" / "verdicts.jsonl")
    firsts = []
    for number in range(17):
        journal.append(candidate(number), verdict(candidate(number)), ())
        firsts.append(candidate(number).digest[0])
    monkeypatch.setattr(replay_module, "DIGEST", re.compile(r"[0-9a-f]{1,64}"))
    common = max(firsts, key=firsts.count)
    with pytest.raises(ReplayError, match=f"begins {firsts.count(common)} digests"):
        replay(settings, common)


def test_episodes_that_wait_in_the_spool_are_shown_beside_what_mlflow_has(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = search(home)
    late = replace(EPISODE, id="e7")
    other = by_model(8, late)
    with SearchLog(home, "s2", tags=TAGS) as log:
        log.record(other, verdict(other), 0)
        assert log.close()
    with SearchLog(home, "s2", tags=TAGS, tracking_uri=NOBODY) as log:
        log.episodes.record(late)
        log.close(stall_s=0.1)
    answer, _ = replay(settings, other.digest)
    assert isinstance(answer, Replay) and answer.source == "MLflow" and answer.episodes == (late,)


def test_what_was_judged_and_not_sent_is_shown_behind_what_mlflow_has(home: Path) -> None:
    settings = search(home)
    late = candidate(5)
    Journal(settings.searches_dir / "s1" / "verdicts.jsonl").append(late, verdict(late, 3.0), ())
    whole, _ = replay(settings, "s1")
    assert isinstance(whole, SearchReplay) and whole.source == "MLflow"
    assert [one.digest for one in whole.judged] == [one.digest for one in (*PATTERN, WRITTEN, late)]
    assert all(one.run_id for one in whole.judged[:-1]) and not whole.judged[-1].run_id
    answer, _ = replay(settings, late.digest)
    assert isinstance(answer, Replay) and [one.digest for one in answer.course][-1] == late.digest


@pytest.mark.parametrize("damage", [b"", b"{", b'{"id":"x"}', b"\xff", None])
def test_a_damaged_episode_costs_the_rest_of_the_replay_nothing(
    home: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    settings = search(home)
    spoil(home, f"{EPISODE.id}.json", damage)
    answer, away = replay(settings, WRITTEN.digest)
    assert isinstance(answer, Replay) and answer.candidate is not None and answer.episodes == () and not away
    assert [one.digest for one in answer.lineage] == [PATTERN[3].digest]
    told = [record.getMessage() for record in caplog.records if record.name == "tasks.replay"]
    assert len(told) == 1 and f"episodes/{EPISODE.id}.json is left out: " in told[0]


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"rms_norm.float32":"much"}', None])
def test_a_damaged_summary_costs_the_gains_alone(home: Path, damage: bytes | None) -> None:
    settings = search(home)
    spoil(home, "summary.json", damage)
    (settings.searches_dir / "s1" / "result.json").write_bytes(damage or b"{")
    answer, away = replay(settings, "s1")
    assert isinstance(answer, SearchReplay) and len(answer.judged) == len(PATTERN) + 1
    assert answer.gains == {} and not away


def spoil(home: Path, name: str, damage: bytes | None) -> None:
    """Damages an artifact of MLflow, or removes it."""
    (path,) = (home / "mlflow-artifacts").rglob(name)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
