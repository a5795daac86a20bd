"""One sequence of steps, run as plain Python or as a Prefect flow of tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import search_progress, steps
from flows.search_progress import SearchProgress
from gristmill.errors import GristmillError
from tasks.search_session import Trial
from tests.tasks.world import candidate, verdict

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
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
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
