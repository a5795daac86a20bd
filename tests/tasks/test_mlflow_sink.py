"""Runs reach MLflow once each, whatever stops, dies or is unreachable in between."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gristmill.domain import Domain
from gristmill.workload import Workload, dense
from kernels.candidate import Candidate, Language, Origin
from kernels.verdict import Status, Verdict, WorkloadTiming
from tasks import mlflow_runs, mlflow_sink, mlflow_store
from tasks.errors import SpoolError
from tasks.mlflow_sink import SearchLog, send_leftovers, spool_folder
from tasks.mlflow_spool import SearchEnd, SearchStart, SearchTrial, Spool, SpoolLine
from tasks.mlflow_writer import RunWriter, refused

TAGS = {"operator": "rms_norm", "dtype": "float32", "hardware": "x86_64-test"}


def candidate(number: int) -> Candidate:
    return Candidate(
        operator="rms_norm",
        language=Language.CPP,
        files={"main.cpp": f"// {number}\n"},
        domain=Domain("rms_norm", "float32"),
        origin=Origin("pattern:rms_norm", "vector_rows", {"unroll": str(number), "odd name!": "x"}),
    )


def verdict(of: Candidate, ratio: float | None = 2.0) -> Verdict:
    if ratio is None:
        return Verdict(
            Status.BUILD_FAILED, "main.cpp:1: error", of.digest, "rms_norm", build_log="error", duration_s=0.1
        )
    axes = {"tokens": 4, "hidden": 1024}
    workload = Workload("rms_norm", "float32", axes, (dense((4, 1024), "float32"),), calls=7)
    timing = WorkloadTiming(workload, ratio, ratio - 0.1, ratio + 0.1, 1000.0, 1000.0 * ratio, 50, 0.4, 12.0)
    status = Status.FASTER if ratio > 1 else Status.SLOWER
    return Verdict(status, "proven", of.digest, "rms_norm", ratio, (timing,), duration_s=0.5)


def children(home: Path, search_id: str) -> list[Any]:
    client = mlflow_store.open_store(home)
    experiment = client.get_experiment_by_name("gristmill")
    return list(
        client.search_runs([experiment.experiment_id], f"tags.search = '{search_id}' and tags.kind = 'candidate'")
    )


def artifact(home: Path, run_id: str, path: str) -> str:
    client = mlflow_store.open_store(home)
    return Path(client.download_artifacts(run_id, path)).read_text()


def test_a_search_becomes_a_parent_and_a_run_per_candidate(home: Path) -> None:
    with SearchLog(home, "s1", tags=TAGS) as log:
        for step, ratio in enumerate([1.5, None, 2.5, 0.8]):
            log.record(candidate(step), verdict(candidate(step), ratio), step)
        log.finish({"budget_s": 30})
        assert log.close()
    runs = {run.data.tags["candidate"]: run for run in children(home, "s1")}
    assert set(runs) == {candidate(step).digest for step in range(4)}
    best = runs[candidate(2).digest]
    assert best.info.status == "FINISHED"
    assert best.data.tags["mlflow.parentRunId"] == log.parent_run_id
    assert best.data.tags["status"] == "faster" and best.data.tags["hardware"] == "x86_64-test"
    assert best.data.params == {"unroll": "2", "odd name_": "x"}
    assert best.data.metrics["ratio"] == 2.5
    assert best.data.metrics["ratio_low/hidden_1024.tokens_4"] == pytest.approx(2.4)
    assert best.data.metrics["roofline_fraction"] == pytest.approx(0.4)
    assert artifact(home, best.info.run_id, "sources/main.cpp") == "// 2\n"
    assert artifact(home, runs[candidate(1).digest].info.run_id, "build.log") == "error"
    client = mlflow_store.open_store(home)
    parent = client.get_run(log.parent_run_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics == {"best_ratio/rms_norm.float32": 2.5, "candidates": 4.0, "candidates_faster": 2.0}
    improvements = client.get_metric_history(log.parent_run_id, "best_ratio/rms_norm.float32")
    assert [(point.step, point.value) for point in improvements] == [(0, 1.5), (2, 2.5), (3, 2.5)]
    assert {item.path for item in client.list_artifacts(log.parent_run_id)} == {
        "best_ratio.png",
        "fates.png",
        "leaderboard.csv",
        "pareto.png",
        "summary.json",
        "traffic.png",
    }
    assert (
        artifact(home, log.parent_run_id, "leaderboard.csv").splitlines()[1].startswith("1," + candidate(2).digest[:12])
    )
    assert list(spool_folder(home).iterdir()) == []
    assert not Path("mlruns").exists()


def test_a_candidate_is_recorded_once_per_search(home: Path) -> None:
    for _ in range(2):
        with SearchLog(home, "s1", tags=TAGS) as log:
            for step in range(3):
                log.record(candidate(step), verdict(candidate(step)), step)
                log.record(candidate(step), verdict(candidate(step), 9.0), step)
            log.finish({})
    assert [run.data.metrics["ratio"] for run in children(home, "s1")] == [2.0] * 3


class BlackHole:
    """A server that takes requests and answers none until it closes."""

    def __enter__(self) -> BlackHole:
        self.asked = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        self._held = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(connection)
            self.asked.set()

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for connection in self._held:
            connection.close()


def test_a_server_that_never_answers_holds_nothing_up_and_loses_nothing(home: Path) -> None:
    with BlackHole() as server:
        log = SearchLog(home, "s1", tags=TAGS, tracking_uri=server.uri)
        with log:
            assert server.asked.wait(60)
            for step in range(5):
                log.record(candidate(step), verdict(candidate(step)), step)
            log.finish({})
            # The first request still waits for its answer: had `record` waited too, we would not be here.
            assert not log.close(stall_s=0.1)
            assert log.parent_run_id is None
    assert send_leftovers(home) == 0
    assert len(children(home, "s1")) == 5


def test_an_unreachable_server_is_tried_again_by_the_next_search(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with SearchLog(home, "first", tags=TAGS, tracking_uri=nobody) as log:
        log.record(candidate(1), verdict(candidate(1)), 0)
        log.finish({})
    assert (spool_folder(home) / "first.jsonl").exists()
    with SearchLog(home, "second", tags=TAGS) as log:
        _until(lambda: not (spool_folder(home) / "first.jsonl").exists())
    assert len(children(home, "first")) == 1


def _until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.05)


KILLED_SEARCH = """
import os, signal, sys, time
sys.path[:0] = sys.argv[2:]
from dataclasses import replace
from functools import partial
from pathlib import Path
from test_mlflow_sink import TAGS, candidate, verdict
from tasks.mlflow_sink import SearchLog
with SearchLog(Path(sys.argv[1]), "s1", tags=TAGS) as log:
    for step in range(4):
        log.record(candidate(step), verdict(candidate(step)), step)
    while log.parent_run_id is None:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_search_is_completed_by_its_next_life(home: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED_SEARCH, str(home), str(root), str(Path(__file__).parent)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    spool = spool_folder(home) / "s1.jsonl"
    with spool.open("ab") as file:
        file.write(b'{"start":null,"trial":{"st')  # the write it died in
    with SearchLog(home, "s1", tags=TAGS) as log:
        for step in range(6):
            log.record(candidate(step), verdict(candidate(step)), step)
        log.finish({})
    runs = children(home, "s1")
    assert sorted(run.data.tags["candidate"] for run in runs) == sorted(candidate(step).digest for step in range(6))
    assert {run.info.status for run in runs} == {"FINISHED"}


class FailingClient:
    """Raises at the n-th call that changes something: before it takes effect, or after (a lost response)."""

    CHANGES = (
        *("create_run", "log_batch", "log_text", "log_metric", "log_figure", "log_dict", "set_terminated"),
        *("start_trace", "log_spans", "link_traces_to_run"),
    )

    def __init__(self, client: Any, fail_at: int, after: bool) -> None:
        self._client = client
        self._left = [fail_at]
        self._after = after

    def around(self, client: Any) -> FailingClient:
        """Another client whose calls are counted with these."""
        other = FailingClient(client, 0, self._after)
        other._left = self._left
        return other

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name not in self.CHANGES:
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] == 0 and not self._after:
                raise ConnectionError("cut")
            result = method(*arguments, **options)
            if self._left[0] == 0:
                raise ConnectionError("cut")
            return result

        return call

    @property
    def used_up(self) -> bool:
        return self._left[0] <= 0


def connect_through(client: FailingClient, home: Path, uri: str) -> RunWriter:
    from mlflow.tracing.client import TracingClient

    return RunWriter(client, client.around(TracingClient(uri)), home, local=True)  # type: ignore[arg-type]


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("after", [False, True])
def test_a_cut_at_any_call_changes_nothing_in_the_end(home: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    connect = RunWriter.connect
    cuts = 0
    while True:
        cuts += 1
        search_id = f"s{cuts}"
        failing = FailingClient(mlflow_store.open_store(home), cuts, after)
        spool = Spool(spool_folder(home) / f"{search_id}.jsonl")
        assert spool.open()
        spool.append(SpoolLine(start=SearchStart(search_id, "gristmill", 1000, TAGS)))
        spool.append(SpoolLine(trial=SearchTrial(0, 2000, candidate(0), verdict(candidate(0), 1.5))))
        spool.append(SpoolLine(end=SearchEnd(3000)))
        spool.close()
        monkeypatch.setattr(RunWriter, "connect", partial(connect_through, failing))
        send_leftovers(home)
        monkeypatch.setattr(RunWriter, "connect", connect)
        assert send_leftovers(home) == 0
        runs = {run.data.tags["candidate"]: run for run in children(home, search_id)}
        assert len(runs) == len(children(home, search_id)) == 1, f"cut at call {cuts}"
        assert {run.info.status for run in runs.values()} == {"FINISHED"}
        assert runs[candidate(0).digest].data.metrics["ratio"] == 1.5
        if not failing.used_up:
            break
    assert cuts > 10


def test_what_mlflow_refuses_does_not_hold_up_the_rest(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SearchLog(home, "s1", tags=TAGS) as log:
        good = verdict(candidate(0))
        workload = replace(good.timings[0].workload, axes={"n" * 300: 1})
        log.record(candidate(0), replace(good, timings=(replace(good.timings[0], workload=workload),)), 0)
        log.record(candidate(1), verdict(candidate(1)), 1)
        log.finish({})
    assert {run.data.tags["candidate"]: run.info.status for run in children(home, "s1")} == {
        candidate(0).digest: "FAILED",
        candidate(1).digest: "FINISHED",
    }
    assert f"refuses candidate {candidate(0).digest}" in caplog.text


def test_what_breaks_mlflow_costs_that_candidate_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = mlflow_runs.metrics

    def broken(one: Verdict) -> dict[str, float]:
        if one.candidate == candidate(0).digest:
            raise RecursionError("too deep")
        return metrics(one)

    monkeypatch.setattr(mlflow_runs, "metrics", broken)
    with SearchLog(home, "s1", tags=TAGS) as log:
        log.record(candidate(0), verdict(candidate(0)), 0)
        log.record(candidate(1), verdict(candidate(1)), 1)
        log.finish({})
        assert log.close()
    assert {run.data.tags["candidate"]: run.info.status for run in children(home, "s1")} == {
        candidate(0).digest: "FAILED",
        candidate(1).digest: "FINISHED",
    }
    assert f"refuses candidate {candidate(0).digest}" in caplog.text and "Traceback" in caplog.text
    assert send_leftovers(home) == 0


def test_what_no_database_can_write_is_no_outage() -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException) as found:
        try:
            "\ud800".encode()
        except UnicodeError as error:
            raise MlflowException(str(error)) from error
    assert refused(found.value) and not refused(MlflowException("a time-out")) and refused(ValueError())


def test_two_processes_never_log_one_search(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_sink, "LOCK_WAIT_S", 0.2)
    with SearchLog(home, "s1", tags=TAGS), pytest.raises(SpoolError, match="another process logs it"):
        SearchLog(home, "s1", tags=TAGS).__enter__()


def test_a_search_id_that_is_no_file_name_is_refused(home: Path) -> None:
    with pytest.raises(ValueError, match="search id"):
        SearchLog(home, "../s1")
