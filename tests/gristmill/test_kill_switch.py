"""Every word of the kill switch, and refusal of all others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "value",
    [
        *("on", "OFF", "deny", "deny=", "true", "baseline_only", "off!", "deny=off", "rms_norm", "# off"),
        *("deny=rmsnorm", "deny=RMS_NORM", "deny=rms_norm.float32", "deny=rms_norm,,softmax", "deny=rms_norm softmax"),
        *("deny=" + "a" * 11, "deny=" + "a" * 65, "deny=" + "g" * 12, "deny: rms_norm"),
    ],
)
def test_unknown_words_stop_kernels(value: str) -> None:
    switch = read_kill_switch({"GRISTMILL_KILL": value})
    assert switch.kernels and not switch.sampling
    assert switch.problem.startswith("GRISTMILL_KILL: found ")
    assert "expected off, baseline-only, or deny=" in switch.problem
    assert "\n" not in switch.problem


def test_what_is_understood_holds_beside_what_is_not() -> None:
    """A bad line must not weaken a good one."""
    assert read_kill_switch({"GRISTMILL_KILL": "off", "GRISTMILL_KILL_FILE": __file__}).sampling


def test_digests_are_taken_as_people_paste_them() -> None:
    assert read_kill_switch({"GRISTMILL_KILL": f"deny= {'AB' * 6} "}).digests == {"ab" * 6}


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


@pytest.mark.parametrize("damage", ["folder", "link to itself", "dangling link", "pipe", "garbage", "word", "long"])
def test_a_file_that_can_not_be_understood_stops_kernels(file: Path, damage: str) -> None:
    if damage == "folder":
        file.mkdir()
    elif damage.endswith("link") or damage.startswith("link"):
        file.symlink_to(file if damage == "link to itself" else file.with_name("nowhere"))
    elif damage == "pipe":
        os.mkfifo(file)
    else:
        contents = {"garbage": b"\xff\x00", "word": b"please", "long": b"deny=softmax\n" * 10_000}
        file.write_bytes(contents[damage])
    switch = read_kill_switch({"GRISTMILL_KILL_FILE": str(file)})
    assert switch.kernels and switch.problem.startswith(f"kill file {file}: ")


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_file_that_is_closed_to_this_process_stops_kernels(
    file: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As for an engine that is not root; tests may be."""
    file.write_text("deny=softmax")
    real, opened = os.access, os.open

    def access(path: str, mode: int, **more: bool) -> bool:
        closed = place == "folder" and (str(path) == str(file) or (str(path) == str(file.parent) and mode == os.X_OK))
        return not closed and real(path, mode, **more)

    def open_(path: Path, *arguments: int, **more: int) -> int:
        if str(path) == str(file):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(os, "open", open_)
    switch = read_kill_switch({"GRISTMILL_KILL_FILE": str(file)})
    assert switch.kernels and "unreadable: " in switch.problem


def test_no_file_and_no_folder_say_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "kill", tmp_path / "nowhere" / "kill", Path(__file__) / "kill"):
        assert read_kill_switch({"GRISTMILL_KILL_FILE": str(path)}) == KillSwitch()
