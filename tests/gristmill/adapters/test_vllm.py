"""The plugin: versions it does not know are refused in one line, and processes without a membership left alone."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from gristmill.adapters import vllm
from gristmill.errors import EngineError
from gristmill.membership import VARIABLE


@pytest.mark.parametrize("version", ["0.32.0", "0.32.4", "0.32.0+cpu", "0.32.1rc1"])
def test_known_versions_are_taken(version: str) -> None:
    vllm.check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0.0", "0.320.0", "dev", "", "0.32"])
def test_other_versions_are_refused_in_one_line(version: str) -> None:
    with pytest.raises(EngineError, match=r"knows 0\.32; install") as refusal:
        vllm.check_version(version)
    assert "\n" not in str(refusal.value)


def test_a_process_without_a_membership_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it would raise
    vllm.register()


@pytest.mark.parametrize(("version", "word"), [("0.99.0", "0.99.0"), ("0.32.0", "differently")])
def test_an_engine_that_differs_serves_on_and_its_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, word: str
) -> None:
    """The second is of the right version, and lacks all that the adapter relies on."""
    engine = types.ModuleType("vllm")
    engine.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", engine)
    monkeypatch.setenv(VARIABLE, "{}")
    with caplog.at_level(logging.WARNING, logger="vllm.gristmill"):
        vllm.register()
    assert len(caplog.records) == 1
    assert word in caplog.text and "its own kernels" in caplog.text
