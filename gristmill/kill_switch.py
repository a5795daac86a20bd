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
from gristmill.contract import CONTRACTS
from gristmill.kernel_table import TableEntry

VARIABLE = "GRISTMILL_KILL"
FILE_VARIABLE = "GRISTMILL_KILL_FILE"
DEFAULT_FILE = "/etc/gristmill/kill"
MAX_FILE_BYTES = 65_536
UNREADABLE = "unreadable"
WORDS = (
    f"off, baseline-only, or deny= with operators ({', '.join(CONTRACTS)}) or digests of candidates or objects "
    f"({records.SHOWN_DIGITS} digits or more), joined by commas"
)
"""All that may be said, one per line."""
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
    """Kernels that do not run: the first digits of their candidate's or their object's digest, `records.SHOWN_DIGITS`
    or more."""

    problem: str = ""
    """What was not understood; then no kernel runs."""

    def __or__(self, other: KillSwitch) -> KillSwitch:
        return KillSwitch(
            self.kernels or other.kernels,
            self.sampling or other.sampling,
            self.denied | other.denied,
            self.digests | other.digests,
            self.problem or other.problem,
        )

    def denies(self, entry: TableEntry) -> bool:
        """Whether a digest names this kernel."""
        return any(name.startswith(one) for one in self.digests for name in (entry.candidate, entry.object.sha256))


def kill_text(environ: Mapping[str, str]) -> tuple[str, str]:
    """What the variable and the file say now, undecoded. A file that is not there says nothing.

    One that is there and cannot be read stops kernels: somebody wanted something. So does a folder that this process
    may not look into.
    """
    path, text = environ.get(FILE_VARIABLE) or DEFAULT_FILE, ""
    variable = environ.get(VARIABLE, "").strip()
    if not os.access(path, os.F_OK, follow_symlinks=False):  # a tenth of what an exception costs, at every step
        folder = os.path.dirname(path) or "."  # noqa: PTH120
        hidden = not os.access(folder, os.X_OK) and os.access(folder, os.F_OK) and os.path.isdir(folder)  # noqa: PTH112
        return variable, f"{UNREADABLE}: {folder} is closed to this process" if hidden else text
    try:
        content = durable_file.read(Path(path), MAX_FILE_BYTES + 1, follow=True)
        text = content.decode(errors="replace")
        if len(content) > MAX_FILE_BYTES:
            text = f"{UNREADABLE}: longer than {MAX_FILE_BYTES} bytes"
    except OSError as error:
        text = f"{UNREADABLE}: {error.strerror}" if os.path.lexists(path) else ""
    return variable, text.strip()


def read_kill_switch(environ: Mapping[str, str]) -> KillSwitch:
    """Reads the switch. What it does not understand stops kernels, and is said in `KillSwitch.problem`: whoever wrote
    it wanted something stopped, and the engine's own kernels are always right."""
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
    names = [name.strip() for name in value.removeprefix("deny=").split(",")] if value.startswith("deny=") else [value]
    operators = frozenset(name for name in names if name in CONTRACTS)
    digests = frozenset(name.lower() for name in names if _DIGEST.fullmatch(name.lower()))
    unknown = next((name for name in names if name not in operators and name.lower() not in digests), None)
    if value.startswith("deny=") and unknown is None:
        return KillSwitch(denied=operators, digests=digests)
    found = value if unknown is None or not value.startswith("deny=") else f"deny={unknown}"
    return KillSwitch(
        kernels=True, problem=f"{where}: found {found[:80]!r}, expected {WORDS}; no kernels run until it is mended"
    )
