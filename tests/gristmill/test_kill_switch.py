"""Every word of the kill switch, and refusal of all others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gristmill.errors import KillSwitchError
from gristmill.kill_switch import KillSwitch, read_kill_switch


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", KillSwitch()),
        ("off", KillSwitch(kernels=True, sampling=True)),
        ("baseline-only", KillSwitch(kernels=True)),
        ("deny=rms_norm", KillSwitch(denied=frozenset({"rms_norm"}))),
        ("deny=rms_norm, softmax", KillSwitch(denied=frozenset({"rms_norm", "softmax"}))),
    ],
)
def test_known_words(value: str, expected: KillSwitch) -> None:
    assert read_kill_switch({"GRISTMILL_KILL": value}) == expected
    assert read_kill_switch({}) == KillSwitch()


@pytest.mark.parametrize("value", ["on", "OFF", "deny", "deny=", "true"])
def test_unknown_words_are_refused(value: str) -> None:
    with pytest.raises(KillSwitchError, match="expected off, baseline-only or deny"):
        read_kill_switch({"GRISTMILL_KILL": value})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kill"


def test_the_file_holds_the_same_words_one_per_line_and_adds_to_the_variable(file: Path) -> None:
    environ = {"GRISTMILL_KILL": "deny=softmax", "GRISTMILL_KILL_FILE": str(file)}
    assert read_kill_switch(environ) == KillSwitch(denied=frozenset({"softmax"}))
    file.write_text(f"\nbaseline-only\n  deny=rms_norm,{'a' * 64}  \n")
    assert read_kill_switch(environ) == KillSwitch(
        kernels=True, denied=frozenset({"softmax", "rms_norm"}), digests=frozenset({"a" * 64})
    )
    file.write_text("")
    assert read_kill_switch(environ) == KillSwitch(denied=frozenset({"softmax"}))


@pytest.mark.parametrize("damage", ["folder", "link to itself", "pipe", "garbage", "word"])
def test_a_file_that_can_not_be_understood_is_refused(file: Path, damage: str) -> None:
    """In a running host a refused switch stops all kernels."""
    if damage == "folder":
        file.mkdir()
    elif damage == "link to itself":
        file.symlink_to(file)
    elif damage == "pipe":
        os.mkfifo(file)
    else:
        file.write_bytes(b"\xff\x00" if damage == "garbage" else b"please")
    with pytest.raises(KillSwitchError, match="kill file"):
        read_kill_switch({"GRISTMILL_KILL_FILE": str(file)})
