"""The spool writes what was counted, keeps it while the store is away, and says what it lost."""

from __future__ import annotations

import io
import json
import platform
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.dispatch import Dispatcher
from gristmill.errors import SpoolError
from gristmill.hook import Hook, Instruments
from gristmill.sampler import Sampler
from gristmill.spool import OPERATOR_COLUMNS, REQUEST_COLUMNS, VALUE_COLUMNS, Identity, Spool
from gristmill.store import read
from gristmill.value_capture import ValueCapture
from gristmill.workload import TensorLayout, Workload
from kernels import spool_fold

IDENTITY = Identity("fleet-a", "model-b", "hardware-c", {"torch": "2.13.0"})


class Setup:
    """A spool on a folder that can be taken away, with a site to sample."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.root = folder / "store"
        self.root.mkdir()
        self.store = DirectoryStore(self.root)
        self.sampler = Sampler(period=2)
        self.spool = Spool(self.store, IDENTITY, self.sampler, folder / "waiting", **settings)
        dispatcher = Dispatcher(environ={})
        site = dispatcher.site("softmax", torch.float32, {"columns": 4}, (), lambda x: (x,))
        self._hook = Hook(Instruments(dispatcher, self.sampler), site)

    def call(self, rows: int, times: int = 1) -> None:
        for _ in range(times):
            self._hook.call(torch.empty(rows, 4))

    def away(self) -> None:
        self.root.rename(self.root.with_name("gone"))
        self.root.write_text("a file where the store's folder was")

    def back(self) -> None:
        self.root.unlink()
        self.root.with_name("gone").rename(self.root)

    def rows(self, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(key).to_pylist()
        return found

    def table(self, key: str) -> Any:
        return pyarrow.parquet.read_table(io.BytesIO(read(self.store, key)))


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_operator_rows(setup: Setup) -> None:
    setup.call(3, times=5)
    setup.call(1)
    flushed = setup.spool.flush()
    assert (flushed.calls, flushed.requests, flushed.waiting, flushed.problem) == (6, 0, 0, "")
    (key,) = flushed.keys
    assert key.startswith("spool/fleet-a/model-b/hardware-c/operators/")
    table = setup.table(key)
    assert {field.name: str(field.type) for field in table.schema} == OPERATOR_COLUMNS
    rows = {json.loads(row["axes"])["rows"]: row for row in table.to_pylist()}
    assert (rows[3]["calls"], rows[1]["calls"], rows[3]["one_in"]) == (5, 1, 2)
    assert rows[3]["timed_calls"] in (2, 3)
    assert rows[3]["axes"] == '{"columns":4,"rows":3}'
    assert records.decode(tuple[TensorLayout, ...], json.loads(rows[3]["layouts"])) == (
        TensorLayout((3, 4), (4, 1), "float32"),
    )
    assert rows[3]["window_start_ns"] < rows[3]["window_end_ns"]
    metadata = table.schema.metadata
    assert metadata[b"gristmill.fleet"] == b"fleet-a"
    assert metadata[b"gristmill.model"] == b"model-b"
    assert metadata[b"gristmill.hardware"] == b"hardware-c"
    assert json.loads(metadata[b"gristmill.versions"]) == {"torch": "2.13.0"}
    assert setup.spool.flush().keys == ()


def test_calls_that_a_sample_stands_for_are_told(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.sampler._max_keys = 1
    setup.call(1)
    for rows in (2, 3, 4):
        setup.call(rows, times=10)
    (key,) = setup.spool.flush().keys
    assert setup.table(key).schema.metadata[b"gristmill.overflowed"] == b"30"
    stand_for = sum(row["calls"] for row in setup.rows(key)) - 1
    assert stand_for == 30  # of blocks of two, each drawn one stands for two


def test_request_rows(setup: Setup) -> None:
    setup.spool.add_request(100, 7, 12345)
    flushed = setup.spool.flush()
    (row,) = setup.rows(flushed.keys[0])
    assert set(row) == set(REQUEST_COLUMNS)
    assert (row["prompt_tokens"], row["generated_tokens"], row["arrival_ns"]) == (100, 7, 12345)
    assert "/requests/" in flushed.keys[0]


def test_no_file_names_the_machine(setup: Setup) -> None:
    setup.call(1)
    setup.spool.add_request(1, 1, 1)
    for key in setup.spool.flush().keys:
        assert platform.node() not in key
        assert platform.node().encode() not in read(setup.store, key)


def test_values_lie_apart_from_the_spool(tmp_path: Path) -> None:
    """Of traced steps, as many bytes as were allowed, and where no fold looks."""
    store = DirectoryStore(tmp_path / "store")
    sampler = Sampler(trace_period=1, values=ValueCapture(200))
    spool = Spool(store, IDENTITY, sampler, tmp_path / "waiting")
    dispatcher = Dispatcher(environ={})
    site = dispatcher.site("rms_norm", torch.float32, {"hidden": 4}, (1e-6,), lambda x, w, eps: (x + 1,))
    hook = Hook(Instruments(dispatcher, sampler), site)
    x, weight = torch.arange(8.0).reshape(2, 4), torch.ones(4)
    hook.call(x, weight)
    sampler.boundary()
    hook.call(x, weight)
    sampler.boundary()
    keys = [key for key in spool.flush().keys if key.startswith("values/")]
    assert [key.rsplit("/", 1)[0] for key in keys] == ["values/fleet-a/model-b/hardware-c"]
    table = pyarrow.parquet.read_table(io.BytesIO(read(store, keys[0])))
    assert {field.name: str(field.type) for field in table.schema} == VALUE_COLUMNS
    (row,) = table.to_pylist()
    assert (row["operator"], row["position"], row["shape"]) == ("rms_norm", 0, "[2,4]")
    assert torch.equal(torch.frombuffer(bytearray(row["content"]), dtype=torch.float32).reshape(2, 4), x)


def test_windows_follow_one_another(setup: Setup) -> None:
    windows = []
    for _ in range(3):
        setup.call(2)
        (row,) = setup.rows(setup.spool.flush().keys[0])
        windows.append((row["window_start_ns"], row["window_end_ns"]))
    assert windows[0][1] == windows[1][0]
    assert windows[1][1] == windows[2][0]


def test_calls_that_were_lost_are_told_once_in_a_first_row(tmp_path: Path) -> None:
    setup = Setup(tmp_path, max_waiting_bytes=1)
    setup.away()
    setup.call(2, times=5)
    assert setup.spool.flush().lost == 1
    setup.back()
    setup.call(2)
    setup.call(3)
    rows_written = setup.rows(setup.spool.flush().keys[0])
    assert [row["dropped"] for row in rows_written] == [5, 0]
    setup.call(2)
    assert [row["dropped"] for row in setup.rows(setup.spool.flush().keys[0])] == [0]


def test_requests_that_were_lost_are_told_once_in_a_first_row(tmp_path: Path) -> None:
    setup = Setup(tmp_path, max_waiting_bytes=1)
    setup.away()
    for _ in range(3):
        setup.spool.add_request(1, 1, 1)
    setup.spool.flush()
    setup.back()
    for _ in range(2):
        setup.spool.add_request(1, 1, 1, cached_tokens=1, drafts=2, accepted=(2, 1))
    rows = setup.rows(setup.spool.flush().keys[0])
    assert [(row["dropped"], row["weight"], row["accepted"]) for row in rows] == [(3, 1, "[2,1]"), (0, 1, "[2,1]")]


def test_files_wait_while_the_store_is_away(setup: Setup) -> None:
    setup.away()
    for _ in range(2):
        setup.call(2)
        flushed = setup.spool.flush()
        assert not flushed.keys
        assert flushed.problem
    assert flushed.waiting == 2
    setup.back()
    setup.call(2)
    flushed = setup.spool.flush()
    assert (len(flushed.keys), flushed.waiting, flushed.lost, flushed.problem) == (3, 0, 0, "")
    assert sum(row["calls"] for key in flushed.keys for row in setup.rows(key)) == 3


def test_waiting_is_bounded_and_losses_are_counted(tmp_path: Path) -> None:
    setup = Setup(tmp_path, max_waiting_bytes=12_000)
    setup.away()
    for _ in range(12):
        setup.call(2)
        flushed = setup.spool.flush()
        assert sum(p.stat().st_size for p in (tmp_path / "waiting").iterdir()) <= 12_000
    assert flushed.lost > 0
    assert flushed.waiting + flushed.lost == 12


def test_a_missing_pyarrow_is_one_clear_line(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    setup.call(1)
    with pytest.raises(SpoolError, match=r"install gristmill\[capture\]"):
        setup.spool.flush()
    monkeypatch.undo()
    assert setup.spool.flush().calls == 1  # nothing was taken from the sampler


def test_nowhere_to_write_is_one_clear_line(setup: Setup, tmp_path: Path) -> None:
    setup.away()
    (tmp_path / "waiting").write_text("a file where the folder should be")
    setup.call(1)
    with pytest.raises(SpoolError, match="both refuse samples"):
        setup.spool.flush()


def test_background_flushes_and_stop_loses_nothing(setup: Setup) -> None:
    setup.spool.start(interval_s=0.01)
    setup.call(2, times=500)
    setup.spool.stop()
    keys = list(setup.store.list("spool/"))
    assert sum(row["calls"] for key in keys for row in setup.rows(key)) == 500


def test_capture_reads_what_the_spool_writes(setup: Setup) -> None:
    setup.call(2, times=5)
    setup.spool.add_request(100, 7, 12345)
    profile = spool_fold.fold((key, read(setup.store, key)) for key in setup.spool.flush().keys)
    (workload,) = profile.workloads
    layout = TensorLayout((2, 4), (4, 1), "float32")
    assert workload.digest == Workload("softmax", "float32", {"rows": 2, "columns": 4}, (layout,)).digest
    assert workload.calls == 5
