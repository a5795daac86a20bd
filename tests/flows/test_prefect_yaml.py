"""What prefect.yaml deploys exists, takes the parameters it is given, and is what the issue asks for."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.schemas.schedules import CronSchedule

from cli import ui
from flows.capture import DRIFT_EVENT

DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())
DEPLOYMENTS: list[dict[str, Any]] = DOCUMENT["deployments"]
each = pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])


def flow_of(deployment: dict[str, Any]) -> Flow:
    module, _, name = deployment["entrypoint"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_deployment_of_the_design_is_there_once() -> None:
    names = [deployment["name"] for deployment in DEPLOYMENTS]
    assert len(set(names)) == len(names)
    assert {"capture", "continuous", "compile", "promote", "approve", "watch", "rollback", "revoke"} <= set(names)


@each
def test_the_entry_point_is_a_flow_of_that_name(deployment: dict[str, Any]) -> None:
    flow = flow_of(deployment)
    assert isinstance(flow, Flow)
    assert flow.name == deployment["name"]
    assert ":" not in deployment["entrypoint"], "path entry points deploy, then fail when run"


@each
def test_its_parameters_are_those_of_the_flow(deployment: dict[str, Any]) -> None:
    flow = flow_of(deployment)
    given = deployment.get("parameters", {})
    signature = inspect.signature(flow.fn)
    assert set(given) <= set(signature.parameters)
    needed = {name for name, p in signature.parameters.items() if p.default is inspect.Parameter.empty}
    assert needed <= set(given)
    assert flow.validate_parameters(given).items() >= given.items()


@each
def test_its_schedules_are_valid(deployment: dict[str, Any]) -> None:
    for schedule in deployment.get("schedules", ()):
        assert CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"]).timezone == "UTC"


def test_what_must_repeat_is_scheduled_and_what_a_person_does_is_not() -> None:
    scheduled = {deployment["name"] for deployment in DEPLOYMENTS if deployment.get("schedules")}
    assert {"capture", "continuous", "renew", "watch"} <= scheduled
    assert not {"promote", "approve", "release", "rollback", "revoke"} & scheduled


@each
def test_it_runs_on_the_pool_that_the_ui_makes_one_at_a_time(deployment: dict[str, Any]) -> None:
    assert deployment["work_pool"]["name"] == ui.POOL
    assert deployment["concurrency_limit"]["limit"] == 1


def test_drift_starts_a_compile() -> None:
    (compile_deployment,) = [deployment for deployment in DEPLOYMENTS if deployment["name"] == "compile"]
    (trigger,) = compile_deployment["triggers"]
    assert trigger["expect"] == [DRIFT_EVENT] and trigger["enabled"]


def test_the_pinned_prefect_is_the_one_that_is_installed() -> None:
    import prefect

    assert DOCUMENT["prefect-version"] == prefect.__version__
