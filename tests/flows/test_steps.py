"""One sequence of steps, run as plain Python or as a Prefect flow of tasks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from flows import cluster, search_progress, steps
from flows.check import check
from flows.compile import compile_kernels
from flows.promote import release
from flows.renew import renew
from flows.revalidate import revalidate
from flows.revoke import revoke_kernel
from flows.rollback import rollback
from flows.search_progress import SearchProgress
from flows.watch import watch
from flows.week import week
from gristmill.directory_store import DirectoryStore
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError
from gristmill.sampler import Sampler
from gristmill.spool import Identity, Spool
from kernels.profile import TrafficProfile
from registry.repository import Repository
from tasks import mlflow_store, promotion, proving, search_lock, traffic
from tasks.compilation import search_id_of
from tasks.errors import SearchBusyError
from tasks.search_session import Trial
from tasks.settings import Settings
from tests.registry.world import shared_keys
from tests.tasks.world import HARDWARE, FormulaBench, candidate, profile, rms_norm, settings, verdict

ROOT = Path(__file__).parents[2]
TRIAL = Trial(0, candidate(), verdict(candidate()), False, 1.0)


class BrokenStepError(GristmillError):
    """What a step may raise."""


def double_it(number: int) -> int:
    return 2 * number


def break_down(reason: str) -> None:
    raise BrokenStepError(reason)


def sequence(step: steps.Step) -> int:
    return step(double_it)(step(double_it)(5))


@pytest.fixture(scope="module")
def prefect_client() -> Iterator[Any]:
    """The one Prefect server of the suite, in this process; every test that needs one is in this module."""
    from prefect.client.orchestration import get_client
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120), get_client(sync_client=True) as client:
        yield client


def test_without_an_api_the_functions_themselves_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    given: list[Any] = []

    def remembered(step: steps.Step) -> int:
        given.append(step)
        return sequence(step)

    assert steps.run("double", remembered) == 20
    assert given == [steps.plain]
    assert steps.plain(double_it) is double_it
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert not steps.has_prefect_api()


def test_plain_steps_never_load_prefect() -> None:
    code = "import sys; from flows import steps; print(steps.run('x', lambda s: s(abs)(-3)), 'prefect' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "3 False\n"


def test_with_an_api_it_is_a_flow_run_with_a_task_run_per_step(
    prefect_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.context import get_run_context

    monkeypatch.setenv("PREFECT_API_URL", "set")
    seen: list[Any] = []

    def counted(step: steps.Step) -> int:
        seen.append(get_run_context().flow_run.id)
        return sequence(step)

    assert steps.run("double twice", counted) == 20
    (run,) = prefect_client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=seen)))
    assert run.state.is_completed()
    assert prefect_client.read_flow(run.flow_id).name == "double twice"


def test_a_step_that_fails_raises_what_it_raised_and_the_flow_run_says_so(
    prefect_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "set")
    with pytest.raises(BrokenStepError, match="no compiler"):
        steps.run("breaks", lambda step: step(break_down)("no compiler"))
    runs = {prefect_client.read_flow(run.flow_id).name: run for run in prefect_client.read_flow_runs()}
    assert runs["breaks"].state.is_failed()


def test_steps_are_never_cached(prefect_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "set")
    calls: list[int] = []

    def count(number: int) -> None:
        calls.append(number)

    def twice(step: steps.Step) -> None:
        step(count)(1)
        step(count)(1)

    steps.run("twice", twice)
    assert calls == [1, 1]


def test_a_table_beside_a_run_is_kept(prefect_client: Any) -> None:
    from prefect import flow
    from prefect.artifacts import Artifact

    @flow
    def shows() -> None:
        steps.table_artifact("some-rows", [{"operator": "rms_norm", "share": "10.0%"}], "Rows")

    shows()
    found = Artifact.get("some-rows")
    assert found is not None and "rms_norm" in str(found.data) and found.description == "Rows"


def test_a_search_fills_its_bar_and_is_full_only_at_its_end(prefect_client: Any) -> None:
    from prefect import flow
    from prefect.artifacts import Artifact

    seen: list[tuple[float, str]] = []
    now_s = [0.0]

    @flow
    def searches() -> None:
        def look() -> None:
            found = Artifact.get(search_progress.KEY)
            assert found is not None
            seen.append((float(str(found.data)), str(found.description)))

        bar = SearchProgress(40.0, clock=lambda: now_s[0])
        bar.operator("rms_norm", "float32", 20.0, 3)
        look()
        for now_s[0] in (5.0, 30.0, 90.0):
            bar.trial(TRIAL, 1.25)
            look()
        bar.done("search abc")
        look()

    searches()
    assert [progress for progress, _ in seen] == [0.0, 0.0, 75.0, 99.0, 100.0]
    assert seen[2][1] == "rms_norm float32, 3 workloads, 20 s: candidate 2, best so far 1.25x"
    assert seen[-1][1] == "search abc"


def test_a_server_that_does_not_answer_costs_the_search_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import httpx
    import prefect.artifacts

    def refuse(**_: object) -> None:
        raise httpx.ConnectError("nobody there")

    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", refuse)
    bar = SearchProgress(10.0)
    bar.operator("rms_norm", "float32", 5.0, 1)
    bar.done("over")
    assert "nobody there" in caplog.text


@pytest.fixture
def mill(tmp_path: Path, template_home: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home whose MLflow is in use, and a registry whose canary serves one table."""
    for name in [name for name in os.environ if name.startswith("MILL_") or name == "MLFLOW_TRACKING_URI"]:
        monkeypatch.delenv(name)
    chosen = settings(tmp_path / "home", tmp_path / "store")
    shutil.copytree(shared_keys(), chosen.keys_dir)
    sampled = profile(rms_norm(1))
    proof = promotion.prove(FormulaBench(lambda one, workload: 2.0), sampled, [candidate(1)])
    artifacts, files = proving.artifacts_of([(proof, {"torch": "2.12.0"})], chosen, print)
    store = DirectoryStore(tmp_path / "store")
    promotion.publish_artifacts(store, chosen, "canary", artifacts, files, sampled, "search abc")
    shutil.copy(template_home / "mlflow.db", chosen.home)
    for name, value in (
        ("HOME", str(chosen.home)),
        ("STORE", chosen.store_url),
        ("FLEET", chosen.fleet),
        ("MODEL", chosen.model),
    ):
        monkeypatch.setenv(f"MILL_{name}", value)
    return chosen


def aliases(chosen: Settings) -> dict[str, str]:
    """Of the one registered model, as MLflow shows them."""
    client = mlflow_store.open_store(chosen.home)
    (model,) = client.search_registered_models()
    return dict(client.get_registered_model(model.name).aliases)


def test_flows_that_change_a_channel_show_it_in_mlflow_and_the_others_run(prefect_client: Any, mill: Settings) -> None:
    """The flow bodies themselves, as a worker runs them: what follows their steps is nowhere else."""
    assert min(release().values()) > 0
    assert set(aliases(mill)) == {"canary", "stable"}
    rollback(channel="stable", to=0)
    assert set(aliases(mill)) == {"canary"}
    assert check(window_h=1.0) == [] and week(days=1.0).endswith(".html") and renew()
    store = DirectoryStore(Path(mill.store_url.removeprefix("file://")))
    newer = replace(profile(rms_norm(1), end=datetime.now(UTC).isoformat()), versions={"torch": "2.13.0"})
    traffic.keep_profile(store, mill, newer)
    assert "proven with torch 2.12.0, and hosts run 2.13.0" in revalidate(sample=0)
    client = mlflow_store.open_store(mill.home)
    (version,) = client.search_model_versions()
    assert version.tags["status"] == "revoked"
    (manifest,) = Repository(store, promotion.keyring_of(mill)).revoked().reasons
    assert watch(act=False) and revoke_kernel(digest=manifest[:12], reason="again") == manifest


def test_a_compilation_that_an_event_starts_looks_again_whether_it_is_needed(
    prefect_client: Any, mill: Settings
) -> None:
    """By hand the same is an error: a person wants to know."""
    store = DirectoryStore(Path(mill.store_url.removeprefix("file://")))
    sampled = profile(rms_norm(1))
    traffic.keep_profile(store, mill, sampled)
    with search_lock.held(mill.searches_dir / search_id_of(sampled, 0)):
        assert "is at it already" in compile_kernels(only_if_moved=True, publish_to="canary")
        with pytest.raises(SearchBusyError):
            compile_kernels()
    assert "0 seconds" in compile_kernels(only_if_moved=True, daily_s=0.0), "the day's are spent"
    traffic.mark_compiled(store, mill, sampled)
    assert compile_kernels(only_if_moved=True) == "traffic and engine are what was compiled for"


def spooled(store: DirectoryStore, folder: Path, tokens: int) -> None:
    """What one host sampled: ten calls."""
    sampler = Sampler(period=2)
    site = Dispatcher(environ={}).site("rms_norm", torch.float32, {"hidden": 8}, (1e-5,), lambda *_: ())
    cell = sampler.cell(site, tokens, (torch.ones(tokens, 8), torch.ones(8)))
    cell.calls, cell.timed_calls, cell.timed_ns = 10, 5, 5000 * tokens
    Spool(store, Identity("chat", "tiny", HARDWARE, {"torch": "2.13.0"}), sampler, folder).flush()


@pytest.mark.parametrize("is_running", [True, False])
def test_a_spool_is_folded_by_two_worker_processes_as_by_none(
    prefect_client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_running: bool
) -> None:
    """A cluster that runs, or one for the time of the flow. Folding alone goes there, a task run for each part."""
    pytest.importorskip("prefect_dask", reason="requirements/dask.txt is not installed")
    from distributed import Client, LocalCluster

    chosen = settings(tmp_path / "home", tmp_path / "store")
    store = DirectoryStore(tmp_path / "store")
    (tmp_path / "store").mkdir()
    for host in range(6):
        spooled(store, tmp_path / f"host{host}", tokens=2 + host % 3)
    expected = traffic.capture_profile(store, chosen, 1.0)
    monkeypatch.setattr(traffic, "PART_FILES", 2)
    monkeypatch.setenv("PREFECT_API_URL", "set")
    name = f"capture {is_running}"

    def captured(runner: str) -> TrafficProfile:
        known = replace(chosen, task_runner=runner)
        fold = cluster.folding(known, steps.tracked)
        return steps.run(name, lambda step: step(traffic.capture_profile)(store, known, 1.0, fold))

    if is_running:
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as running:
            assert captured(f"dask={running.scheduler_address}") == expected
            with Client(running) as client:
                assert any(client.run(lambda: "kernels.spool_fold" in sys.modules).values())
    else:
        assert captured("dask=2") == expected
    (run,) = [one for one in prefect_client.read_flow_runs() if prefect_client.read_flow(one.flow_id).name == name]
    tasks = prefect_client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    assert Counter(task.name.rsplit("-", 1)[0] for task in tasks) == {"capture profile": 1, "fold part": 3}
