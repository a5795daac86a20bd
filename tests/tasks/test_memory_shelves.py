"""Shelves in a store: many writers, crashes between any two writes, damage, and forgetting."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agents import shelf as shelves
from agents.memory import SCHEMA, Evidence, Shelf
from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.errors import StoreUnreachableError
from gristmill.s3_store import Endpoint, S3Store
from gristmill.store import ObjectStore, read
from tasks.memory_shelves import ROOT, MemoryShelves, segment_name
from tests.tasks import world
from tests.tasks.memory_world import NOW_MS, FailingStore, judged, rounded, segment, tried

FAMILY = "row_reduction"
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def moto_endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    S3Store(Endpoint("memory", "", url, "us-east-1", "any", "any")).create_bucket()
    yield url
    server.stop()


@pytest.fixture(params=["directory", "moto"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        (tmp_path / "store").mkdir()
        return DirectoryStore(tmp_path / "store")
    url = request.getfixturevalue("moto_endpoint")
    return S3Store(Endpoint("memory", uuid.uuid4().hex, url, "us-east-1", "any", "any"))


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "store").mkdir()
    return DirectoryStore(tmp_path / "store")


def kept(store: ObjectStore, now_ms: int = NOW_MS) -> MemoryShelves:
    return MemoryShelves(store, lambda: now_ms)


def keys(store: ObjectStore, part: str) -> list[str]:
    return [key for key in store.list(ROOT) if f"/{part}" in key]


def test_what_is_added_is_read_before_and_after_it_is_folded(store: ObjectStore) -> None:
    memory = kept(store)
    for number in range(3):
        memory.add(*segment(number, judged(number), judged(number + 10, None)))
    unfolded = memory.read(FAMILY)
    assert memory.families() == (FAMILY,) and memory.unfolded(FAMILY) == 3
    assert tried(unfolded.contents) == 6 and len(unfolded.contents.candidates) == 3
    folded = memory.compact(FAMILY)
    assert keys(store, "segments/") == []
    assert memory.read(FAMILY) == folded and rounded(folded.contents) == rounded(unfolded.contents)
    digests = [entry.candidate for entry in folded.contents.candidates]
    assert memory.sources(FAMILY, digests) == {d: c for n in range(3) for c in [judged(n)[0]] for d in [c.digest]}


def test_of_a_family_that_nobody_searched_nothing_is_known(store: ObjectStore) -> None:
    memory = kept(store)
    assert memory.read("attention") == shelves.empty("attention") == memory.compact("attention")
    assert memory.families() == ()


def test_a_segment_that_arrives_again_counts_once(store: ObjectStore) -> None:
    memory = kept(store)
    once = segment(0, judged(1))
    memory.add(*once)
    memory.add(*once)
    assert tried(memory.read(FAMILY).contents) == 1
    memory.compact(FAMILY)
    memory.add(*once)
    assert tried(memory.read(FAMILY).contents) == 1
    assert tried(memory.compact(FAMILY).contents) == 1
    assert memory.unfolded(FAMILY) == 0


SEGMENTS = [segment(number, judged(2 * number), judged(2 * number + 1, None)) for number in range(3)]


def search(store: ObjectStore) -> None:
    """What two searches write, with compactions in between."""
    memory = kept(store)
    memory.add(*SEGMENTS[0])
    memory.add(*SEGMENTS[1])
    memory.compact(FAMILY)
    memory.add(*SEGMENTS[2])
    memory.compact(FAMILY)


def count_writes() -> int:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = FailingStore(DirectoryStore(Path(folder)), dies_at=10**9)
        search(store)
    return store.writes


@pytest.mark.parametrize(("dies_at", "landed"), list(itertools.product(range(count_writes()), (False, True))))
def test_a_crash_between_any_two_writes_corrupts_nothing(directory: DirectoryStore, dies_at: int, landed: bool) -> None:
    """Readers see what was written; whoever sends again what it did not see arrive ends with each counted once."""
    with pytest.raises(StoreUnreachableError):
        search(FailingStore(directory, dies_at, landed))
    seen = kept(directory).read(FAMILY)
    arrived = {key.rpartition("/")[2] for key in keys(directory, "segments/")} | {f.name for f in seen.folded}
    names = {segment_name(made) for made, _ in SEGMENTS}
    assert tried(seen.contents) == 2 * len({name.removesuffix(".json") for name in arrived} & names)
    assert {e.candidate for e in seen.contents.candidates} <= set(
        kept(directory).sources(FAMILY, [e.candidate for e in seen.contents.candidates])
    )
    search(directory)
    expected = rounded(shelves.fold(shelves.empty(FAMILY), [(segment_name(s), s) for s, _ in SEGMENTS]).contents)
    assert rounded(kept(directory).read(FAMILY).contents) == expected
    assert keys(directory, "segments/") == [] and keys(directory, "damaged/") == []


def test_many_searches_at_once_lose_nothing(store: ObjectStore) -> None:
    writers, each = 5, 4

    def work(writer: int) -> None:
        memory = kept(store)
        for number in range(each):
            trial = judged(writer * each + number, 1.5 + writer / 10)
            memory.add(*segment(number, trial, writer=f"w{writer}", written_ms=NOW_MS + number))
            if number % 2:
                memory.compact(FAMILY)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    assert tried(kept(store).read(FAMILY).contents) == writers * each
    assert tried(kept(store).compact(FAMILY).contents) == writers * each
    assert keys(store, "segments/") == []


def test_a_reader_never_misses_what_is_being_folded(directory: DirectoryStore) -> None:
    done = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not done.is_set():
            seen.append(tried(kept(directory).read(FAMILY).contents))

    reader = threading.Thread(target=watch)
    reader.start()
    for number in range(30):
        kept(directory).add(*segment(number, judged(number)))
        if number % 3 == 2:
            kept(directory).compact(FAMILY)
    done.set()
    reader.join()
    assert seen == sorted(seen) and tried(kept(directory).read(FAMILY).contents) == 30


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"schema": 1}', b"x" * (9 << 20)])
def test_a_damaged_segment_is_left_out_with_one_warning(
    directory: DirectoryStore, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))
    lost = memory.add(*segment(1, judged(1)))
    directory.put(f"{ROOT}{FAMILY}/segments/{lost}.json", content)
    with caplog.at_level(logging.WARNING):
        assert [tried(memory.read(FAMILY).contents) for _ in range(3)] == [1, 1, 1]
    assert [lost in message for message in caplog.messages] == [True]
    assert "\n" not in caplog.messages[0]
    assert tried(memory.compact(FAMILY).contents) == 1 and keys(directory, "segments/") == []


def test_a_segment_with_other_content_than_its_name_says_is_left_out(directory: DirectoryStore) -> None:
    memory = kept(directory)
    name = memory.add(*segment(0, judged(0)))
    other, _ = segment(0, judged(1), judged(2))
    directory.put(f"{ROOT}{FAMILY}/segments/{name}.json", records.canonical_json(other))
    assert tried(memory.read(FAMILY).contents) == 0


def test_what_is_no_segment_by_its_name_is_left_alone(directory: DirectoryStore) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))
    directory.put(f"{ROOT}{FAMILY}/segments/readme.txt", b"hello")
    assert tried(memory.compact(FAMILY).contents) == 1
    assert keys(directory, "segments/") == [f"{ROOT}{FAMILY}/segments/readme.txt"]


def test_a_damaged_shelf_is_kept_aside_and_replaced(
    directory: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))
    memory.compact(FAMILY)
    directory.put(f"{ROOT}{FAMILY}/shelf.json", b"torn")
    memory.add(*segment(1, judged(1)))
    with caplog.at_level(logging.WARNING):
        assert tried(memory.read(FAMILY).contents) == 1
        assert tried(memory.compact(FAMILY).contents) == 1
    assert ["shelf.json" in message for message in caplog.messages] == [True]
    assert [read(directory, key) for key in keys(directory, "damaged/")] == [b"torn"]
    assert tried(kept(directory).read(FAMILY).contents) == 1


def test_a_shelf_of_another_schema_is_not_read(directory: DirectoryStore) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))
    later = dataclasses.replace(memory.compact(FAMILY), schema=SCHEMA + 1)
    directory.put(f"{ROOT}{FAMILY}/shelf.json", records.canonical_json(later))
    assert tried(memory.read(FAMILY).contents) == 0


def test_a_damaged_source_costs_its_candidate_only(directory: DirectoryStore, caplog: pytest.LogCaptureFixture) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0), judged(1), judged(2)))
    digests = [judged(number)[0].digest for number in range(3)]
    directory.put(f"{ROOT}{FAMILY}/sources/{digests[0]}.json", b"{}")
    directory.put(f"{ROOT}{FAMILY}/sources/{digests[1]}.json", records.canonical_json(judged(2)[0]))
    with caplog.at_level(logging.WARNING):
        assert list(memory.sources(FAMILY, digests)) == [digests[2]]
    assert [any(digest in message for digest in digests[:2]) for message in caplog.messages] == [True, True]


def test_an_entry_without_its_source_goes_at_the_next_compaction(directory: DirectoryStore) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0), judged(1)))
    directory.delete(f"{ROOT}{FAMILY}/sources/{judged(0)[0].digest}.json")
    assert [e.candidate for e in memory.compact(FAMILY).contents.candidates] == [judged(1)[0].digest]


def test_sources_that_nobody_names_go_after_a_day(directory: DirectoryStore) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))
    orphan = judged(7)[0]
    directory.put(f"{ROOT}{FAMILY}/sources/{orphan.digest}.json", records.canonical_json(orphan))
    for now_ms, there in ((NOW_MS, 2), (NOW_MS + DAY_MS - 1, 2), (NOW_MS + DAY_MS, 1), (NOW_MS + 2 * DAY_MS, 1)):
        kept(directory, now_ms).compact(FAMILY)
        assert len(keys(directory, "sources/")) == there
    assert memory.sources(FAMILY, [judged(0)[0].digest])


def test_forgetting_takes_what_matches_and_nothing_else(store: ObjectStore) -> None:
    memory = kept(store)
    memory.add(*segment(0, judged(0), judged(1, None)))
    memory.add(*segment(0, judged(2, operator="silu_and_mul")))
    known = memory.read(FAMILY).contents.size
    assert memory.forget(lambda operator, hardware: (operator, hardware) == ("rms_norm", world.HARDWARE)) == known
    assert memory.read(FAMILY).contents.size == 0
    assert tried(memory.read("elementwise").contents) == 1
    memory.add(*segment(0, judged(0), judged(1, None)))
    assert memory.read(FAMILY).contents.size == 0, "a late copy does not bring it back"


def test_a_compaction_that_always_loses_the_race_ends(directory: DirectoryStore) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))

    def meddle(shelf: Shelf) -> Shelf:
        other = dataclasses.replace(shelves.empty(FAMILY), unused={"d" * 64: next(counter)})
        directory.put(f"{ROOT}{FAMILY}/shelf.json", records.canonical_json(other))
        return shelf

    counter = itertools.count(1)
    with contextlib.suppress(StopIteration):
        assert memory.compact(FAMILY, meddle).unused == {"d" * 64: next(counter) - 1}
    assert tried(memory.read(FAMILY).contents) == 1


@pytest.mark.parametrize(
    "spoilt",
    [
        {"gains": (1, 0, 0)},
        {"as_of_ms": 10**400},
        {"as_of_ms": 10**15},
        {"tried": -1},
        {"evidence": Evidence(1.0, -5.0, 1.0, 1.0)},
        {"evidence": Evidence(1.0, 1.0, 1e308, 1e308)},
    ],
)
def test_a_segment_that_does_not_add_up_is_left_out_with_one_warning(
    directory: DirectoryStore, caplog: pytest.LogCaptureFixture, spoilt: dict[str, object]
) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))
    other, sources = segment(1, judged(0))
    record = dataclasses.replace(other.contents.records[0], **spoilt)  # type: ignore[arg-type]
    name = memory.add(
        dataclasses.replace(other, contents=dataclasses.replace(other.contents, records=(record,))), sources
    )
    with caplog.at_level(logging.WARNING):
        assert [tried(memory.read(FAMILY).contents) for _ in range(2)] == [1, 1]
    assert [name in message for message in caplog.messages] == [True]
    assert tried(memory.compact(FAMILY).contents) == 1 and keys(directory, "segments/") == []


def short_of_bars(shelf: Shelf) -> Shelf:
    record = dataclasses.replace(shelf.contents.records[0], gains=(1,))
    return dataclasses.replace(shelf, contents=dataclasses.replace(shelf.contents, records=(record,)))


def closed(shelf: Shelf) -> Shelf:
    return dataclasses.replace(shelf, horizon_ms=1 << 50)


@pytest.mark.parametrize("spoil", [short_of_bars, closed])
def test_a_shelf_that_does_not_add_up_is_kept_aside(directory: DirectoryStore, spoil: Callable[[Shelf], Shelf]) -> None:
    memory = kept(directory)
    memory.add(*segment(0, judged(0)))
    spoilt = spoil(memory.compact(FAMILY))
    directory.put(f"{ROOT}{FAMILY}/shelf.json", records.canonical_json(spoilt))
    memory.add(*segment(1, judged(1)))
    assert tried(kept(directory).compact(FAMILY).contents) == 1
    assert len(keys(directory, "damaged/")) == 1
