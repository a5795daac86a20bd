"""The plugin: what it does not know is refused in one line, and processes without a membership are left alone."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest

from gristmill.adapters import sglang
from gristmill.errors import EngineError
from gristmill.membership import VARIABLE

ONE_RANK = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "speculative_algorithm": None, "enable_torch_compile": False}


def settings(**changed: Any) -> Any:
    return types.SimpleNamespace(**{**ONE_RANK, "disaggregation_mode": "null", **changed})


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.23+cpu"])
def test_known_versions_are_taken(version: str) -> None:
    sglang.check_version(version)


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.5.230", "0.6.0", "1.5.23", "0.5", "0.0.0.dev0", "", "dev"])
def test_other_versions_are_refused_in_one_line(version: str) -> None:
    with pytest.raises(EngineError, match=r"knows 0\.5\.23; install") as refusal:
        sglang.check_version(version)
    assert "\n" not in str(refusal.value)


def test_a_process_without_a_membership_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", None)  # importing it would raise
    sglang.register()


@pytest.mark.parametrize(("version", "word"), [("0.5.24", "0.5.24"), ("0.5.23", "differently")])
def test_an_engine_that_differs_serves_on_and_its_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, word: str
) -> None:
    """The second is of the right version, and lacks all that the adapter relies on."""
    stand_in(monkeypatch, version)
    monkeypatch.setitem(sys.modules, sglang.SCHEDULER, types.ModuleType(sglang.SCHEDULER))
    with caplog.at_level(logging.WARNING, logger="sglang.gristmill"):
        sglang.register()
    assert len(caplog.records) == 1
    assert word in caplog.text and "its own kernels" in caplog.text


def test_a_process_without_a_scheduler_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in(monkeypatch, "0.5.23")
    sglang.register()
    assert not caplog.records


def stand_in(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    engine = types.ModuleType("sglang")
    engine.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang", engine)
    monkeypatch.setenv(VARIABLE, "{}")


def test_what_is_proven_is_served() -> None:
    assert sglang.unproven(settings(), amx=False) == []
    sglang.check_proven([], {})


@pytest.mark.parametrize(
    ("changed", "amx", "word"),
    [
        ({}, True, "AMX"),
        ({"tp_size": 2}, False, "rank"),
        ({"pp_size": 2}, False, "rank"),
        ({"dp_size": 2}, False, "rank"),
        ({"speculative_algorithm": "NGRAM"}, False, "speculative"),
        ({"enable_torch_compile": True}, False, "compile"),
        ({"disaggregation_mode": "prefill"}, False, "prefill"),
    ],
)
def test_what_was_unproven_is_refused_unless_asked_for(changed: dict[str, Any], amx: bool, word: str) -> None:
    (name,) = sglang.unproven(settings(**changed), amx)
    assert word in name
    with pytest.raises(EngineError, match="GRISTMILL_SGLANG=1"):
        sglang.check_proven([name], {})
    sglang.check_proven([name], {"GRISTMILL_SGLANG": "1"})
