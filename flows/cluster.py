"""What a flow may spread over a Dask cluster, where `MILL_TASK_RUNNER` names one: folding the spool, and nothing else.

A cluster is entered for one fan-out and left after it, so that no other step can get there. What measures owns its
machine's device and stays in the flow's process, and so does what signs: workers of a cluster hold no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.steps import Step, tracked
from kernels.tally import Tally
from tasks import traffic
from tasks.errors import ClusterError
from tasks.settings import Settings
from tasks.traffic import Folded, Part

PATIENCE_S = 60
"""For a scheduler to answer, for its first worker, and for another where all have gone."""


def folding(settings: Settings, step: Step) -> Folded | None:
    """Where this run folds the parts of a spool; None: in its own process, as all runs do that are no Prefect flows."""
    return _on_dask if settings.task_runner and step is tracked else None


def _on_dask(settings: Settings, parts: Sequence[Part]) -> list[Tally]:
    """One Prefect task run for each part, on the workers. Whatever fails, temporary workers have ended.

    Raises:
        ClusterError: there is no such cluster, or it has no worker, or none any more.
    """
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise ClusterError(
            f"MILL_TASK_RUNNER={settings.task_runner}: {error.name} is not installed; install requirements/dask.txt "
            "beside the pipeline (pip install --require-hashes --no-deps), or unset it"
        ) from None
    chosen = settings.task_runner.partition("=")[2]
    if chosen.isdecimal():
        processes = {"n_workers": int(chosen), "threads_per_worker": 1, "dashboard_address": None}
        runner = DaskTaskRunner(cluster_kwargs=processes)
    elif settings.store_url:
        runner = DaskTaskRunner(address=chosen, client_kwargs={"timeout": PATIENCE_S})
    else:
        raise ClusterError(f"MILL_TASK_RUNNER={settings.task_runner}: its workers need a store; name it in MILL_STORE")
    with runner:
        try:
            runner.client.wait_for_workers(1, timeout=PATIENCE_S)
            task = tracked(traffic.fold_part)
            futures = [runner.submit(task, {"settings": settings, "part": part}) for part in parts]
            _wait(runner.client, [future.wrapped_future for future in futures])
        except OSError as error:
            raise ClusterError(f"MILL_TASK_RUNNER={settings.task_runner}: {error}; start it, or unset it") from None
        return [future.result() for future in futures]


def _wait(client: Any, futures: Sequence[Any]) -> None:
    """Until all are done, for as long as that takes while there is a worker: what one leaves undone, another does.

    Raises:
        TimeoutError: all workers are gone, and none has come back.
    """
    from distributed import wait

    while True:
        try:
            with client.as_current():  # Prefect's client is nobody's default
                wait(futures, timeout=PATIENCE_S)
        except TimeoutError:
            client.wait_for_workers(1, timeout=PATIENCE_S)
        else:
            return
