"""Commands of `./mill` as calls of this process, which has loaded everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cli import __main__ as command_line

OURS = ("MILL_", "AWS_", "PREFECT_API")
Run = Callable[..., tuple[int, str, str]]
"""`(*arguments) -> exit code, standard output, standard error`."""


def fleet(folder: Path) -> dict[str, str]:
    """Variables of the fleet that `tests.tasks.world` speaks of, with home and store in this folder."""
    return {
        "MILL_HOME": str(folder / "home"),
        "MILL_STORE": f"file://{folder}/store",
        "MILL_FLEET": "chat",
        "MILL_MODEL": "tiny",
    }


def mill(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: Sequence[str] = (), **variables: str
) -> Run:
    """Runs this command, or whichever the arguments begin with. Of the variables that it may read it gets these."""
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = command_line.main([*command, *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run
