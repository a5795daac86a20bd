"""From drift to a search, through a real Prefect server and a real worker: what the deployments' trigger promises."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import fleet_events
from gristmill import records
from gristmill.directory_store import DirectoryStore
from tasks import budgeting, deployment, local_server, object_store, results, traffic
from tasks.settings import Settings
from tests.kernels.test_spool_fold import operator_row, spool_file
from tests.tasks.world import HARDWARE, PEAKS, profile, rms_norm, settings

pytestmark = pytest.mark.timeout(1200)
READY_S = 300.0
RUN_S = 400.0
DAILY_S = 15.0
"""Far less than the search of the deployment asks for."""
COMPILE, CAPTURE = f"compile-{HARDWARE}", "capture"
QUIET = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "INFO",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
}
"""Nothing runs here but what the test or an event starts."""


@pytest.fixture
def fleet(tmp_path: Path) -> Settings:
    """Compiled for batches of 4 tokens, and serving 2048."""
    chosen = settings(tmp_path / "home", tmp_path / "store")
    far = dataclasses.replace(PEAKS, memory_bandwidth_gb_s=1e5, cache_bandwidth_gb_s=1e5, shared_cache_gb_s=1e5)
    chosen.peaks_path.write_bytes(records.canonical_json(far))  # no search comes near such a roofline
    store = DirectoryStore(tmp_path / "store")
    traffic.mark_compiled(store, chosen, profile(rms_norm(4)))
    now_ns = time.time_ns()
    workload = rms_norm(2048)
    row = operator_row(
        window_start_ns=now_ns - 60 * 10**9,
        window_end_ns=now_ns,
        axes=records.canonical_json(workload.axes).decode(),
        layouts=records.canonical_json(workload.inputs).decode(),
        timed_ns=10_000_000,
    )
    _, content = spool_file([row], fleet=chosen.fleet, model=chosen.model, hardware=chosen.hardware)
    store.put_new(f"spool/chat/tiny/{HARDWARE}/operators/{now_ns - 60 * 10**9}-a-1-0.parquet", content)
    return chosen


@pytest.fixture
def client(fleet: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of a server that has the deployments of prefect.yaml, and a worker for each pool."""
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    server, env = local_server.prefect_server(fleet.home, local_server.free_port())
    with server:
        server.wait_ready(READY_S)
        with object_store.opened(fleet) as opened:
            env |= {**deployment.variables(fleet, opened), "MILL_HOME": str(fleet.home)}
        env |= {"MILL_MODEL": "another", "PREFECT_LOGGING_LEVEL": "INFO"}
        deployment.deploy(fleet, env)
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with (
            local_server.prefect_worker(fleet.home, {**env, "MILL_MODEL": fleet.model}, deployment.POOL),
            local_server.prefect_worker(fleet.home, env, deployment.device_pool(HARDWARE)),
            temporary_settings({PREFECT_API_URL: env["PREFECT_API_URL"]}),
            get_client(sync_client=True) as found,
        ):
            yield found


def runs_of(client: Any, name: str) -> list[Any]:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

    chosen = DeploymentFilter(name=DeploymentFilterName(any_=[name]))
    return list(client.read_flow_runs(deployment_filter=chosen))


def until(holds: Callable[[], Any], seconds: float = RUN_S) -> Any:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        if found := holds():
            return found
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds:g} s")


def ended(client: Any, run_id: Any) -> Any:
    state = client.read_flow_run(run_id).state
    return state if state.is_final() else None


def captured(client: Any) -> None:
    """A run of the deployment `capture`, by a worker."""
    (found,) = [one for one in client.read_deployments() if one.name == CAPTURE]
    run = client.create_flow_run_from_deployment(found.id)
    state = until(lambda: ended(client, run.id))
    assert state.is_completed(), state.message


def drifts_told(client: Any) -> int:
    """Events that reached the server."""
    wanted = {"filter": {"event": {"name": [fleet_events.DRIFTED]}}, "limit": 50}
    return int(client.request("POST", "/events/filter", json=wanted).json()["total"])


def test_a_drift_starts_one_search_within_the_seconds_of_the_day(client: Any, fleet: Settings) -> None:
    (compilation,) = [one for one in client.read_deployments() if one.name == COMPILE]
    given = {**compilation.parameters, "publish_to": "", "daily_s": DAILY_S}
    assert given["budget_s"] > 10 * DAILY_S
    client._client.patch(f"/deployments/{compilation.id}", json={"parameters": given}).raise_for_status()
    assert runs_of(client, COMPILE) == []
    captured(client)
    (run,) = until(lambda: runs_of(client, COMPILE))
    assert run.parameters["model"] == fleet.model, "the event names the model, not the worker's environment"
    captured(client)
    state = until(lambda: ended(client, run.id))
    assert state.is_completed(), state.message
    until(lambda: drifts_told(client) == 2, 30)
    time.sleep(5)
    assert [one.id for one in runs_of(client, COMPILE)] == [run.id], "the same drift, told again, starts nothing"
    with budgeting.open_ledger(fleet) as ledger:
        (search,), (day,) = ledger.searches(), ledger.days()
    (kept,) = results.load(fleet).result.operators
    assert day.caps.wall_s == DAILY_S and kept.ended.startswith(f"budget of day {day.name}: "), kept.ended
    assert [path.name for path in fleet.searches_dir.iterdir()] == [search.name]
    captured(client)
    assert drifts_told(client) == 2, "what was compiled for has not drifted"
