"""A search's memory: what one search learns the next one knows, through outages, crashes and a full disk."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from agents.memory import Memory, NoMemory, Recollection
from gristmill import durable_file
from gristmill.directory_store import DirectoryStore
from gristmill.errors import StoreUnreachableError
from gristmill.hardware import Hardware
from gristmill.store import NotModified, ObjectStore, StoredObject
from gristmill.workload import Workload
from kernels.candidate import Candidate
from tasks import memory_spool, recruitment, search_memory
from tasks.compilation import run_searches
from tasks.memory_shelves import MemoryShelves
from tasks.recruitment import Staff
from tasks.search_memory import SearchMemory
from tasks.search_session import SearchSession
from tests.tasks import world
from tests.tasks.memory_world import NOW_MS, FailingStore, judged, tried

HERE = Hardware(world.HARDWARE, "test", 2, ())
FAMILY = "row_reduction"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_memory, "RETRY_S", (0.01,))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "store").mkdir()
    return DirectoryStore(tmp_path / "store")


def always(store: ObjectStore) -> Callable[[], AbstractContextManager[ObjectStore]]:
    return lambda: contextlib.nullcontext(store)


def never() -> AbstractContextManager[ObjectStore]:
    raise StoreUnreachableError("nothing answers there")


def memory_of(home: Path, open_store: Callable[[], AbstractContextManager[ObjectStore]], **options) -> SearchMemory:
    return SearchMemory(home, world.HARDWARE, open_store, **options)


def learn(memory: Memory, *numbers: int) -> None:
    for number in numbers:
        memory.record(*judged(number))


def test_the_next_search_knows_what_one_learned(tmp_path: Path, store: DirectoryStore) -> None:
    with memory_of(tmp_path / "one", always(store)) as first:
        assert first.recall("rms_norm", "float32", HERE).candidates == ()
        learn(first, 1, 2)
        first.record(*judged(3, None))
    with memory_of(tmp_path / "two", always(store)) as second:
        recalled = second.recall("rms_norm", "float32", HERE)
        assert second.recall("rms_norm", "bfloat16", HERE).candidates == ()
        assert second.recall("silu_and_mul", "float32", HERE).records == recalled.records
    assert sorted(one.candidate.digest for one in recalled.candidates) == sorted(judged(n)[0].digest for n in (1, 2))
    assert all(one.verdict.won and one.verdict.candidate == one.candidate.digest for one in recalled.candidates)
    (record,) = recalled.records
    assert (record.tried, record.built, record.correct, record.won) == (3, 2, 2, 2)
    assert {found.topic.split(":")[0] for found in recalled.lessons} == {"won", "build"}


def test_within_one_search_a_later_operator_knows_of_an_earlier(tmp_path: Path, store: DirectoryStore) -> None:
    with memory_of(tmp_path, always(store)) as memory:
        learn(memory, 1)
        assert len(memory.recall("rms_norm", "float32", HERE).candidates) == 1


def test_a_question_is_answered_with_all_that_was_told_before_it(
    tmp_path: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is asked just after memory's thread has put on disk what it was told."""
    memory, save = memory_of(tmp_path, always(store)), SearchMemory.save
    answers: list[Recollection] = []

    def ask() -> None:
        answers.append(memory.recall("rms_norm", "float32", HERE))

    asking = threading.Thread(target=ask)

    def save_then_be_asked(self: SearchMemory) -> None:
        save(self)
        if asking.ident is None:
            learn(memory, 1)
            asking.start()
            while memory._questions.empty():
                threading.Event().wait(0.005)

    monkeypatch.setattr(SearchMemory, "save", save_then_be_asked)
    with memory:
        while asking.ident is None:
            threading.Event().wait(0.005)
        asking.join(30)
    assert len(answers[0].candidates) == 1


def test_an_outage_costs_nothing_but_time(tmp_path: Path, store: DirectoryStore) -> None:
    """The store is away, comes and goes; all is there in the end, and the search was told what was known last."""
    with memory_of(tmp_path, always(store)) as memory:
        learn(memory, 1)
        before = memory.recall("rms_norm", "float32", HERE)
    away = memory_of(tmp_path, never)
    with away:
        assert away.recall("rms_norm", "float32", HERE) == before
        assert away.recall("softmax", "float32", HERE).records == ()
        learn(away, 2, 3)
        assert not away.close(stall_s=5.0)
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 1
    with memory_of(tmp_path, always(store)):
        pass
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 3
    assert memory_spool.MemorySpool(tmp_path / "spool" / "memory").waiting() == []


def test_a_store_that_comes_back_is_written_to_at_once(tmp_path: Path, store: DirectoryStore) -> None:
    attempts, back = itertools.count(), threading.Event()

    def third_time() -> AbstractContextManager[ObjectStore]:
        if next(attempts) < 2:
            return never()
        back.set()
        return contextlib.nullcontext(store)

    with memory_of(tmp_path, third_time) as memory:
        learn(memory, 1, 2)
        assert back.wait(30) and memory.close()
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 2


class Hanging:
    """A store that takes every request and never answers, until it is let go."""

    url = "s3://nowhere"

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def _hang(self, *arguments: object, **options: object) -> StoredObject | NotModified:
        self.let_go.wait(60)
        raise StoreUnreachableError("not in time")

    get = put_new = replace_if = put = list = delete = _hang


def test_a_store_that_hangs_does_not_hold_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_memory, "EVERY_S", -1.0)
    hanging = Hanging()
    with memory_of(tmp_path, always(hanging), recall_wait_s=0.05) as memory:  # type: ignore[arg-type]
        assert memory.recall("rms_norm", "float32", HERE).records == ()
        learn(memory, 1, 2, 3)
        assert len(list((tmp_path / "spool" / "memory").iterdir())) == 3, "on disk although the store hangs"
        monkeypatch.setattr(search_memory, "EVERY_S", 1e9)
        learn(memory, 4)
        assert not memory.close(stall_s=0.05)
        assert len(list((tmp_path / "spool" / "memory").iterdir())) == 4, "the end waits for nobody either"
        hanging.let_go.set()


def test_what_a_killed_search_had_on_disk_is_sent_by_the_next(tmp_path: Path, store: DirectoryStore) -> None:
    killed = memory_of(tmp_path, never)
    learn(killed, 1, 2)
    killed.save()
    learn(killed, 3)
    del killed
    with memory_of(tmp_path, always(store)):
        pass
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 2, "all but the stretch in hand"


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("dies_at", range(5))
def test_a_store_that_dies_between_two_writes(
    tmp_path: Path, store: DirectoryStore, dies_at: int, landed: bool
) -> None:
    with memory_of(tmp_path, always(FailingStore(store, dies_at, landed))) as memory:
        learn(memory, 1, 2)
        memory.record(*judged(3, operator="silu_and_mul"))
        memory.close()
    with memory_of(tmp_path, always(store)):
        pass
    shelves = MemoryShelves(store)
    assert [tried(shelves.read(family).contents) for family in (FAMILY, "elementwise")] == [2, 1]


def test_a_full_disk_loses_nothing_while_the_search_lives(
    tmp_path: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = memory_of(tmp_path, always(store))
    learn(memory, 1)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(durable_file, "write", full_disk)
        memory.save()
    assert "No space left" in caplog.text
    with memory:
        pass
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 1


def full_disk(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_damaged_parcel_is_put_aside_and_named(
    tmp_path: Path, store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool" / "memory"
    folder.mkdir(parents=True)
    (folder / "000-torn.segment").write_bytes(b'{"segment":')
    with caplog.at_level(logging.WARNING), memory_of(tmp_path, always(store)) as memory:
        learn(memory, 1)
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 1
    assert ["000-torn" in message for message in caplog.messages] == [True]
    assert [path.name for path in folder.iterdir()] == ["000-torn.damaged"]


def test_the_spool_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_spool, "MAX_WAITING", 3)
    clock = iter(range(NOW_MS, NOW_MS + 10_000))
    memory = memory_of(tmp_path, never, now_ms=lambda: next(clock))
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            learn(memory, number)
            memory.save()
    waiting = [parcel for _, parcel in memory_spool.MemorySpool(tmp_path / "spool" / "memory").parcels()]
    assert [parcel.segment.number for parcel in waiting] == [2, 3, 4]
    assert len(caplog.messages) == 2


def test_many_segments_are_folded(tmp_path: Path, store: DirectoryStore) -> None:
    for number in range(search_memory.COMPACT_FROM):
        with memory_of(tmp_path, always(store)) as memory:
            learn(memory, number)
    shelves = MemoryShelves(store)
    assert shelves.unfolded(FAMILY) == 0
    assert tried(shelves.read(FAMILY).contents) == search_memory.COMPACT_FROM


def test_lessons_and_records_are_found_by_their_words(tmp_path: Path, store: DirectoryStore) -> None:
    with memory_of(tmp_path, always(store)) as memory:
        memory.record(*judged(1, None))
        candidate, verdict = judged(2, None)
        by_model = replace(candidate, origin=replace(candidate.origin, model="m"))
        memory.record(by_model, replace(verdict, build_errors="main.cpp:1:1: error: 'padd_rows' was not declared"))
        (line,) = memory.search("padding padd declared", 1)
        assert "m claims, unverified: <<does not build (undeclared name): error: 'padd_rows' was not declared>>" in line
        assert any("does not build" in found for found in memory.search("build error"))
        assert memory.search("") == memory.search("zebra") == ()
        assert len(memory.search("rms_norm", 2)) == 2
        assert memory.search("rms_norm") == memory.search("norm rms")


def test_no_memory_is_a_memory(tmp_path: Path) -> None:
    memory: Memory = NoMemory()
    learn(memory, 1)
    assert memory.recall("rms_norm", "float32", HERE).candidates == () and memory.search("rms") == ()


@pytest.mark.parametrize("at_once", [4])
def test_searches_side_by_side_share_one_store(tmp_path: Path, store: DirectoryStore, at_once: int) -> None:
    def one_search(number: int) -> Iterator[None]:
        with memory_of(tmp_path / str(number), always(store)) as memory:
            for step in range(5):
                learn(memory, number * 5 + step)
                memory.recall("rms_norm", "float32", HERE)
        yield

    threads = [threading.Thread(target=lambda n=n: list(one_search(n))) for n in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 5 * at_once


def test_a_second_search_begins_where_the_first_ended(
    tmp_path: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole searches, on a bench on which only one combination of constants is good, and it is not the default."""

    def ratio(candidate: Candidate, workload: Workload) -> float:
        values = candidate.origin.parameters
        return 0.8 + 0.5 * (values["UNROLL"] == "1") + 0.5 * (values["LANES"] != "16")

    found = []
    for number, tokens in enumerate(((1, 16, 200), (2, 24, 300))):
        traffic = world.profile(*(world.rms_norm(extent, hidden=64 << number) for extent in tokens))
        bench = world.FormulaBench(ratio)
        monkeypatch.setattr(recruitment, "SearchSession", functools.partial(SearchSession, clock=bench.clock))
        with memory_of(tmp_path / str(number), always(store)) as memory:
            result = run_searches(
                bench,
                world.ListLog(),
                world.settings(tmp_path / str(number)),
                traffic,
                world.PEAKS,
                budget_s=30.0,
                seed=number,
                staff=Staff(memory=memory),
            )
        (one,) = result.operators
        found.append(one.best_ratios)
        assert tried(MemoryShelves(store).read(FAMILY).contents) == sum(len(ratios) for ratios in found)
    cold, warm = (next(n for n, best in enumerate(ratios) if best >= 1.7) for ratios in found)
    assert warm == 0 < cold


def test_a_parcel_that_cannot_be_read_keeps_nothing_back(
    tmp_path: Path, store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    lost = tmp_path / "home" / "spool" / "memory" / f"{0:015d}-w-000000{memory_spool.SUFFIX}"
    lost.mkdir(parents=True)
    with memory_of(tmp_path / "home", always(store)) as memory:
        memory.record(*judged(1))
        assert memory.close()
    assert tried(MemoryShelves(store).read(FAMILY).contents) == 1
    assert [lost.name in message for message in caplog.messages] == [True]
