"""The local kill switch: an environment variable and a file, read again at every step boundary.

`GRISTMILL_KILL` is for whoever starts the process, the file for whoever has to stop kernels in one that runs: its path
is in `GRISTMILL_KILL_FILE`, or `/etc/gristmill/kill`. Both hold the same words and add up. No network, no restart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gristmill import durable_file, records
from gristmill.errors import KillSwitchError
from gristmill.kernel_table import TableEntry

VARIABLE = "GRISTMILL_KILL"
FILE_VARIABLE = "GRISTMILL_KILL_FILE"
DEFAULT_FILE = "/etc/gristmill/kill"
MAX_FILE_BYTES = 65_536
_DIGEST = re.compile(rf"[0-9a-f]{{{records.SHOWN_DIGITS},64}}")


@dataclass(frozen=True)
class KillSwitch:
    """What the operator of this host has turned off."""

    kernels: bool = False
    """No kernel of ours runs (`off`, `baseline-only`)."""
    sampling: bool = False
    """Nothing is counted, timed or pulled either (`off`)."""
    denied: frozenset[str] = frozenset()
    """Operators that stay with the engine (`deny=<operator>`, several joined by commas)."""
    digests: frozenset[str] = frozenset()
    """Kernels that do not run: the first digits (`records.SHOWN_DIGITS` or more) of their candidate's or their object's digest."""

    def __or__(self, other: KillSwitch) -> KillSwitch:
        return KillSwitch(
            self.kernels or other.kernels,
            self.sampling or other.sampling,
            self.denied | other.denied,
            self.digests | other.digests,
        )

    def denies(self, entry: TableEntry) -> bool:
        """Whether a digest names this kernel."""
        return any(name.startswith(one) for one in self.digests for name in (entry.candidate, entry.object.sha256))


def kill_text(environ: Mapping[str, str]) -> tuple[str, str]:
    """What the variable and the file say now, undecoded. A file that is not there says nothing.

    One that is there and cannot be read stops kernels: somebody wanted something.
    """
    path, text = environ.get(FILE_VARIABLE) or DEFAULT_FILE, ""
    variable = environ.get(VARIABLE, "").strip()
    if not os.access(path, os.F_OK, follow_symlinks=False):  # a tenth of what an exception costs, at every step
        return variable, text
    try:
        text = durable_file.read(Path(path), MAX_FILE_BYTES, follow=True).decode(errors="replace")
    except OSError as error:
        text = f"unreadable: {error.strerror}" if os.path.lexists(path) else ""
    return variable, text.strip()


def read_kill_switch(environ: Mapping[str, str]) -> KillSwitch:
    """Reads the switch.

    Raises:
        KillSwitchError: the variable or the file holds none of the known words.
    """
    variable, text = kill_text(environ)
    switch = _parse(variable, VARIABLE)
    for line in text.splitlines():
        switch |= _parse(line.strip(), f"kill file {environ.get(FILE_VARIABLE) or DEFAULT_FILE}")
    return switch


def _parse(value: str, where: str) -> KillSwitch:
    if not value:
        return KillSwitch()
    if value == "off":
        return KillSwitch(kernels=True, sampling=True)
    if value == "baseline-only":
        return KillSwitch(kernels=True)
    names = frozenset(name.strip() for name in value.removeprefix("deny=").split(","))
    if value.startswith("deny=") and "" not in names:
        digests = frozenset(name for name in names if _DIGEST.fullmatch(name))
        return KillSwitch(denied=names - digests, digests=digests)
    raise KillSwitchError(
        f"{where}: found {value[:80]!r}, expected off, baseline-only or deny=<operator or digest>[,...]; empty it to "
        "run kernels"
    )
