"""Every word of the kill switch, and refusal of all others."""

from __future__ import annotations

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
