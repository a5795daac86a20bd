"""The local kill switch: the environment variable `GRISTMILL_KILL`, read again at every step boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gristmill.errors import KillSwitchError

VARIABLE = "GRISTMILL_KILL"


@dataclass(frozen=True)
class KillSwitch:
    """What the operator of this host has turned off."""

    kernels: bool = False
    """No kernel of ours runs (`off`, `baseline-only`)."""
    sampling: bool = False
    """Nothing is counted, timed or pulled either (`off`)."""
    denied: frozenset[str] = frozenset()
    """Operators that stay with the engine (`deny=<operator>`, several joined by commas)."""


def read_kill_switch(environ: Mapping[str, str]) -> KillSwitch:
    """Reads the switch.

    Raises:
        KillSwitchError: the value is none of the known ones.
    """
    value = environ.get(VARIABLE, "").strip()
    if not value:
        return KillSwitch()
    if value == "off":
        return KillSwitch(kernels=True, sampling=True)
    if value == "baseline-only":
        return KillSwitch(kernels=True)
    if value.startswith("deny=") and len(value) > len("deny="):
        return KillSwitch(denied=frozenset(name.strip() for name in value[len("deny=") :].split(",")))
    raise KillSwitchError(
        f"{VARIABLE}={value!r}: expected off, baseline-only or deny=<operator>[,<operator>]; unset it to run kernels"
    )
