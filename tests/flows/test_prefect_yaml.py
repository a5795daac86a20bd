"""What prefect.yaml deploys exists, describes and limits its parameters, and is what the issue asks for."""

from __future__ import annotations

import importlib
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ParameterTypeError

from agents.strategies import catalogue
from flows import fleet_events
from tasks import deployment as deployments

DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())
DEPLOYMENTS: list[dict[str, Any]] = DOCUMENT["deployments"]
each = pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
DEVICE = "-{{ $MILL_DEVICE }}"
MEASURING = {"compile", "continuous", "promote", "revalidate"}
BY_HAND = {"promote", "approve", "release", "rollback", "revoke"}
EVERY = {
    "capture": "*/10 * * * *",
    "check": "3-59/10 * * * *",
    "continuous": "15 */6 * * *",
    "revalidate": "40 2 * * *",
    "watch": "*/5 * * * *",
    "renew": "5 */6 * * *",
    "week": "30 5 * * 1",
}
WRONG: dict[str, list[dict[str, Any]]] = {
    "capture": [{"window_h": 0}, {"window_h": 1e9}, {"window_h": "a day"}, {"hours": 1}],
    "check": [{"window_h": -1}],
    "compile": [
        {"budget_s": 0},
        {"seed": -1},
        {"only": ["../x"]},
        {"strategy": "luck"},
        {"agents": 10_000},
        {"publish_to": "prod"},
        {"daily_s": 90_000},
        {"model": "a/b"},
    ],
    "continuous": [{"channel": "prod"}, {"budget_s": float("nan")}],
    "promote": [{"channel": "prod"}, {"search_id": "newest"}, {"proof_s": 0}],
    "revalidate": [{"sample": -1}, {"gone_after_days": 0}, {"proof_s": -1}, {"demote": "perhaps"}],
    "approve": [{"table": "all of it"}, {"generation": 0}, {"generation": "newest"}, {"despite_failure": "perhaps"}],
    "release": [{"hardware": "a b"}, {"hardware": "../all"}],
    "watch": [{"policy": {"soak_s": -1}}, {"act": "perhaps"}],
    "rollback": [{"channel": "prod"}, {"to": -1}, {"hardware": "a;b"}],
    "revoke": [{"digest": "abc", "reason": "wrong"}, {"digest": "a" * 64, "reason": ""}, {"digest": "a" * 64}],
    "week": [{"days": 0}],
}


def flow_of(deployment: dict[str, Any]) -> Flow:
    module, _, name = deployment["entrypoint"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def name_of(deployment: dict[str, Any]) -> str:
    return deployment["name"].removesuffix(DEVICE)


def test_every_deployment_is_there_once() -> None:
    names = [name_of(deployment) for deployment in DEPLOYMENTS]
    assert sorted(names) == sorted({*MEASURING, *BY_HAND, *EVERY})


@each
def test_the_entry_point_is_a_flow_of_that_name(deployment: dict[str, Any]) -> None:
    flow = flow_of(deployment)
    assert isinstance(flow, Flow)
    assert flow.name == name_of(deployment)
    assert ":" not in deployment["entrypoint"], "path entry points deploy, then fail when run"


@each
def test_its_parameters_are_those_of_the_flow(deployment: dict[str, Any]) -> None:
    flow = flow_of(deployment)
    given = deployment.get("parameters", {})
    signature = inspect.signature(flow.fn)
    assert set(given) <= set(signature.parameters)
    needed = {name for name, p in signature.parameters.items() if p.default is inspect.Parameter.empty}
    assert needed <= set(given) or name_of(deployment) == "revoke", "a person says what to revoke, and why"
    if needed <= set(given):
        assert flow.validate_parameters(given).items() >= given.items()


@each
def test_each_parameter_is_described_in_the_form(deployment: dict[str, Any]) -> None:
    for name, shown in flow_of(deployment).parameters.properties.items():
        assert shown.get("description"), name


@each
def test_wrong_parameters_are_refused_before_anything_starts(
    deployment: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    flow, wrong = flow_of(deployment), WRONG.get(name_of(deployment), [])
    assert wrong or not flow.parameters.properties
    with caplog.at_level(logging.CRITICAL):
        for parameters in wrong:
            with pytest.raises((ParameterTypeError, TypeError)):
                flow.validate_parameters(parameters)


@each
def test_its_schedules_are_valid(deployment: dict[str, Any]) -> None:
    for schedule in deployment.get("schedules", ()):
        assert CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"]).timezone == "UTC"


def test_what_must_repeat_is_scheduled_and_what_a_person_does_is_not() -> None:
    scheduled = {name_of(one): one["schedules"][0]["cron"] for one in DEPLOYMENTS if one.get("schedules")}
    assert scheduled == EVERY


@each
def test_what_measures_has_a_pool_per_device_and_nothing_runs_beside_itself(deployment: dict[str, Any]) -> None:
    measures = name_of(deployment) in MEASURING
    pool = deployments.device_pool("{{ $MILL_DEVICE }}") if measures else deployments.POOL
    assert deployment["work_pool"]["name"] == pool
    assert deployment["name"].endswith(DEVICE) == measures, "deployments of two devices must not replace one another"
    assert deployment["concurrency_limit"]["limit"] == 1


def test_drift_and_a_new_model_engine_or_device_start_a_budgeted_compile() -> None:
    (compile_deployment,) = [one for one in DEPLOYMENTS if name_of(one) == "compile"]
    (trigger,) = compile_deployment["triggers"]
    assert trigger["enabled"] and set(trigger["expect"]) == set(fleet_events.COMPILE_AGAIN)
    labels = fleet_events.resource("eu", "llama", "x86")
    matched = {name: text.replace("{{ $MILL_FLEET }}", "eu") for name, text in trigger["match"].items()}
    matched = {name: text.replace("{{ $MILL_DEVICE }}", "x86") for name, text in matched.items()}
    assert set(matched) <= set(labels)
    assert labels["prefect.resource.id"].startswith(matched["prefect.resource.id"].removesuffix("*"))
    assert matched["gristmill.hardware"] == labels["gristmill.hardware"]
    given = compile_deployment["parameters"]
    told_every_s = 600
    assert trigger["within"] > given["budget_s"] + told_every_s, "one run for what is told again while it runs"
    assert trigger["for_each"] == ["prefect.resource.id"] and trigger["threshold"] == 1, "of each model"
    assert given["daily_s"] and given["only_if_moved"] and given["publish_to"] == "canary"


def test_the_form_offers_the_strategies_that_there_are() -> None:
    (compile_deployment,) = [one for one in DEPLOYMENTS if name_of(one) == "compile"]
    assert tuple(flow_of(compile_deployment).parameters.properties["strategy"]["enum"]) == catalogue.NAMES


def test_the_pinned_prefect_is_the_one_that_is_installed() -> None:
    import prefect

    assert DOCUMENT["prefect-version"] == prefect.__version__
