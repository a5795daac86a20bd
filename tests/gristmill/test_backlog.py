"""What waits is bounded, the oldest goes first, what goes is counted, and nobody is in the way for ever."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from gristmill.backlog import ASIDE_S, CONTENTS, SUFFIX, Backlog, Contents, contents_of
from gristmill.directory_store import DirectoryStore
from gristmill.errors import SpoolError, StoreUnreachableError
from gristmill.store import read


class Store(DirectoryStore):
    """A folder that can be out of reach."""

    away = False

    def put(self, key: str, content: bytes) -> str:
        if self.away:
            raise StoreUnreachableError("nothing answers")
        return super().put(key, content)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "waiting"


def file(calls: int) -> bytes:
    schema = pyarrow.schema([("n", pyarrow.int64())], metadata={CONTENTS: json.dumps({"calls": calls, "requests": 1})})
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"n": [calls]}, schema=schema), buffer)
    return buffer.getvalue()


SIZE = len(file(1))


def key(number: int) -> str:
    return f"spool/f/m/h/operators/{number}-host-1-0.parquet"


def test_it_goes_on_when_the_store_is_back(store: Store, folder: Path) -> None:
    backlog = Backlog(store, folder, 10 * SIZE, 10 * SIZE)
    store.away = True
    for number in (9, 10, 11):
        backlog.add(key(number), file(number))
        assert backlog.deliver() == ([], "nothing answers")
    assert len(backlog) == 3
    store.away = False
    again = Backlog(store, folder, 10 * SIZE, 10 * SIZE)  # as after a restart
    assert again.deliver() == ([key(9), key(10), key(11)], "")
    assert (len(again), again.lost) == (0, Contents())
    assert read(store, key(10)) == file(10)


def test_the_oldest_are_given_up_and_counted_by_what_they_held(store: Store, folder: Path) -> None:
    backlog = Backlog(store, folder, 3 * SIZE + SIZE // 2, 10 * SIZE)
    store.away = True
    for number in range(1, 9):
        backlog.add(key(number), file(number))
        backlog.deliver()
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * SIZE + SIZE // 2
    assert backlog.lost == Contents(files=5, calls=1 + 2 + 3 + 4 + 5, requests=5)
    store.away = False
    assert backlog.deliver()[0] == [key(6), key(7), key(8)]


def test_memory_is_bounded_where_the_folder_cannot_be_written(store: Store, folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    backlog = Backlog(store, folder, 10 * SIZE, 2 * SIZE + SIZE // 2)
    store.away = True
    for number in (1, 2, 3):
        backlog.add(key(number), file(number))
        with pytest.raises(SpoolError, match="wait in memory"):
            backlog.deliver()
    assert (len(backlog), backlog.lost) == (2, Contents(1, 1, 1))
    folder.unlink()
    assert backlog.deliver() == ([], "nothing answers")
    assert len(list(folder.iterdir())) == 2
    store.away = False
    assert backlog.deliver()[0] == [key(2), key(3)]


def test_a_folder_that_cannot_be_written_is_no_matter_while_the_store_is_there(store: Store, folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    backlog = Backlog(store, folder, 10 * SIZE, 10 * SIZE)
    backlog.add(key(1), file(1))
    assert backlog.deliver() == ([key(1)], "")


def test_a_file_that_cannot_be_read_stops_nothing_else(store: Store, folder: Path) -> None:
    (folder / f"{key(1).replace('/', '%2F')}{SUFFIX}").mkdir(parents=True)
    backlog = Backlog(store, folder, 10**6, 10 * SIZE)
    backlog.add(key(2), file(2))
    keys, problem = backlog.deliver()
    assert (keys, "cannot be read" in problem) == ([], True)
    assert len(backlog) == 2, "it waits"


def test_what_no_spool_wrote_is_not_in_the_way(store: Store, folder: Path) -> None:
    folder.mkdir()
    (folder / f"..%2Fescaped{SUFFIX}").write_bytes(b"who put this here?")
    backlog = Backlog(store, folder, 10 * SIZE, 10 * SIZE)
    backlog.add(key(1), file(1))
    assert backlog.deliver() == ([key(1)], "")
    assert (list(folder.iterdir()), backlog.lost) == ([], Contents(files=1))


def test_what_killed_writers_left_is_swept_away_once_nobody_can_be_writing_it(store: Store, folder: Path) -> None:
    folder.mkdir()
    old, new = folder / ".aside-old", folder / ".aside-new"
    for path in (old, new):
        path.write_bytes(b"half a file")
    long_ago_s = time.time() - 2 * ASIDE_S
    os.utime(old, (long_ago_s, long_ago_s))
    Backlog(store, folder, SIZE, SIZE).deliver()
    assert list(folder.iterdir()) == [new]


@pytest.mark.parametrize("content", [b"", b"PAR1", file(1)[:-9], file(1).replace(b"calls", b"galls")])
def test_a_file_that_cannot_be_read_is_lost_as_a_file(content: bytes) -> None:
    assert contents_of(content) == Contents(files=1)
