"""How a flow runs its steps: as plain calls, or as Prefect tasks when a Prefect API is there.

A flow is one sequence of steps. `./mill compile` on a laptop runs it as plain Python and starts no server; the
deployment runs the same sequence with every step a Prefect task. So there is one sequence to read and to test.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Step(Protocol):
    """Wraps a task function for the way this run is executed."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


def plain(function: Callable[P, R], /) -> Callable[P, R]:
    """Runs the function itself."""
    return function


def tracked(function: Callable[P, R], /) -> Callable[P, R]:
    """Runs the function as a Prefect task: visible in the UI, never cached (content addresses make it idempotent)."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    name = function.__name__.replace("_", " ")
    return task(name=name, cache_policy=NO_CACHE, persist_result=False)(function)


def has_prefect_api() -> bool:
    """Whether this process was told of a Prefect server."""
    return bool(os.environ.get("PREFECT_API_URL"))


def run(name: str, steps: Callable[[Step], R]) -> R:
    """Runs a sequence of steps for a command: as a Prefect flow of that name where there is an API, else as it is.

    Not for commands that are needed in an incident (approve, release, roll back, revoke, renew, the watch): these run
    `plain`, so that they need the object store and nothing else.
    """
    if not has_prefect_api():
        return steps(plain)
    from prefect import flow

    @flow(name=name)
    def sequence() -> R:
        return steps(tracked)

    return sequence()


def table_artifact(key: str, rows: list[dict[str, str]], description: str) -> None:
    """Shows a table beside the flow run in the Prefect UI."""
    from prefect.artifacts import create_table_artifact

    create_table_artifact(table=rows, key=key, description=description)
