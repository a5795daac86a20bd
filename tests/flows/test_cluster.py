"""Whether a flow's parts go to a cluster, and what is said where they can't."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import cluster, steps
from tasks.errors import ClusterError, SettingsError
from tasks.settings import Settings, from_environment
from tests.tasks.world import settings


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    return replace(settings(tmp_path / "home"), task_runner="dask=tcp://127.0.0.1:1")


def test_only_a_flow_of_a_server_with_the_setting_folds_elsewhere(chosen: Settings) -> None:
    assert cluster.folding(chosen, steps.plain) is None
    assert cluster.folding(replace(chosen, task_runner=""), steps.tracked) is None
    assert cluster.folding(chosen, steps.tracked) is not None


def test_without_the_package_one_line_says_what_to_install(chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    fold = cluster.folding(chosen, steps.tracked)
    assert fold is not None
    with pytest.raises(ClusterError, match=r"prefect_dask is not installed; install requirements/dask\.txt"):
        fold(chosen, [("a",)])


def test_workers_elsewhere_need_a_store_that_they_can_reach(chosen: Settings) -> None:
    pytest.importorskip("prefect_dask", reason="requirements/dask.txt is not installed")
    fold = cluster.folding(chosen, steps.tracked)
    assert fold is not None
    with pytest.raises(ClusterError, match="name it in MILL_STORE"):
        fold(chosen, [("a",)])


def test_a_cluster_that_does_not_answer_is_one_line(chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect_dask", reason="requirements/dask.txt is not installed")
    monkeypatch.setattr(cluster, "PATIENCE_S", 1)
    fold = cluster.folding(chosen, steps.tracked)
    assert fold is not None
    with pytest.raises(ClusterError, match=r"tcp://127\.0\.0\.1:1: .*start it, or unset it"):
        fold(replace(chosen, store_url="file:///nowhere"), [("a",)])


def test_workers_that_are_gone_for_good_are_not_waited_for(chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of no machine: its one worker is there at the start, and never answers."""
    asked: list[float] = []

    class Client:
        def as_current(self) -> contextlib.nullcontext[None]:
            return contextlib.nullcontext()

        def wait_for_workers(self, number: int, timeout: float) -> None:
            asked.append(timeout)
            if len(asked) > 2:
                raise TimeoutError("Only 0/1 workers arrived after 60")

    class Runner(contextlib.nullcontext[None]):
        client = Client()

        def __init__(self, **_: object) -> None:
            super().__init__()

        def submit(self, task: object, parameters: dict[str, object]) -> SimpleNamespace:
            return SimpleNamespace(wrapped_future=parameters["part"])

    def wait(futures: list[object], timeout: float) -> None:
        assert futures == [("a",), ("b",)]
        raise TimeoutError

    monkeypatch.setitem(sys.modules, "prefect_dask", SimpleNamespace(DaskTaskRunner=Runner))
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(wait=wait))
    fold = cluster.folding(chosen, steps.tracked)
    assert fold is not None
    with pytest.raises(ClusterError, match="Only 0/1 workers arrived after 60; start it, or unset it"):
        fold(replace(chosen, store_url="file:///nowhere"), [("a",), ("b",)])
    assert len(asked) == 3


@pytest.mark.parametrize(
    "text", ["dask=2", "dask=tcp://10.0.0.1:8786", "dask=tls://scheduler:8786", "dask=tcp://[::1]:1"]
)
def test_the_setting_names_processes_or_an_address(text: str, tmp_path: Path) -> None:
    assert from_environment({"MILL_HOME": str(tmp_path), "MILL_TASK_RUNNER": text}).task_runner == text


@pytest.mark.parametrize("text", ["dask", "ray=tcp://a:1", "dask=0", "dask=-1", "dask=a:8786", "dask=http://a:1", "2"])
def test_any_other_is_refused_before_anything_is_done(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="expected dask=ADDRESS"):
        from_environment({"MILL_HOME": str(tmp_path), "MILL_TASK_RUNNER": text})
