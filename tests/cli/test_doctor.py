"""`./mill doctor` on the sandbox: a row per layer, and a missing one is told with its remedy but stops nothing."""

from __future__ import annotations

import argparse
import json

import pytest

from cli import doctor
from harness import layers, sandbox


def test_a_row_per_layer():
    rows = {row.what: row for row in doctor._layers()}
    assert {f"sandbox: {one.layer.name}" for one in layers.examine()} <= set(rows)
    assert "real-time priority" in rows
    assert not any(row.needed for row in rows.values())


def test_a_missing_layer_comes_with_its_remedy(monkeypatch):
    class Bare(sandbox.Sandboxed):
        @property
        def isolation(self) -> tuple[str, ...]:
            return ("resource limits",)

    monkeypatch.setattr(sandbox, "Sandboxed", Bare)
    rows = {row.what: row for row in doctor._layers()}
    missing = rows["sandbox: landlock"]
    assert not missing.good and "to get it: Linux 5.13" in missing.detail
    assert doctor._mark(missing) == "absent"
    assert rows["sandbox: resource limits"].good


def test_a_host_whose_sandbox_does_not_start_is_told_once(monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "BOOT", "raise SystemExit(3)")
    monkeypatch.setattr(doctor, "_store", lambda settings: (True, ""))
    monkeypatch.setattr(doctor, "_peaks", lambda settings: (True, ""))
    assert doctor.run(argparse.Namespace(json=True)) == 1
    rows = json.loads(capsys.readouterr().out)
    (told,) = [row for row in rows if row["what"].startswith("sandbox")]
    assert not told["good"] and "no process came up" in told["detail"]


@pytest.mark.parametrize(
    ("environ", "good", "told"),
    [
        ({}, True, "none configured"),
        ({"MILL_MODELS": "openai/a"}, False, "MILL_AGENTS_VENV is not set"),
        ({"MILL_MODELS": "openai/a@x"}, False, "requests per minute"),
        ({"MILL_MODELS": "openai/a", "MILL_AGENTS_VENV": "/nowhere"}, False, "no Python at /nowhere"),
    ],
)
def test_it_says_whether_models_can_be_called(monkeypatch, environ, good, told):
    for name in ("MILL_MODELS", "MILL_MODELS_FILE", "MILL_AGENTS_VENV"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    row = doctor._examine("language models", doctor._models, None)
    assert row.good is good and told in row.detail


@pytest.mark.parametrize(
    ("said", "good", "told"),
    [
        ("", True, "says nothing; words in GRISTMILL_KILL or "),
        ("deny=softmax", True, "says deny=softmax; "),
        ("deny=soft", False, "found 'deny=soft'"),
    ],
)
def test_it_names_the_words_of_the_kill_switch(monkeypatch, tmp_path, said, good, told):
    monkeypatch.setenv("GRISTMILL_KILL", said)
    monkeypatch.setenv("GRISTMILL_KILL_FILE", str(tmp_path / "kill"))
    row = doctor._examine("kill switch", doctor._kill_switch, None)
    assert row.good is good and told in row.detail
    assert all(word in row.detail for word in ("off", "baseline-only", "deny=", "rms_norm", "12 digits"))
