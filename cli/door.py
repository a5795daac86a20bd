"""From `./mill COMMAND` to the same command inside the environment. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cli import __main__ as command_line
from cli import commands, environment, home
from gristmill.errors import GristmillError

HELP = ("-h", "--help")


def enter(arguments: Sequence[str]) -> int:
    """Shows help at once; anything else goes to the environment's Python, after setting that up where needed."""
    command = commands.find(arguments[0]) if arguments else None
    if command is None:
        return command_line.main(arguments)
    if any(argument in HELP for argument in arguments[1:]):
        try:
            return command_line.main(arguments)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("cli"):
                raise
            # This command's options come from packages that only the environment has.
    try:
        python = environment.python_for(command.requirements)
    except GristmillError as error:
        print(f"mill: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("mill: interrupted; the same command continues where it stopped", file=sys.stderr)
        return 130
    return _become(python, arguments)


def _become(python: Path, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process, so that signals and exit codes are the command's own.

    The working directory stays the caller's, for the files it names, and is kept off the import path (`-P`).
    """
    search_path = os.pathsep.join(filter(None, [str(home.ROOT), os.environ.get("PYTHONPATH")]))
    binaries = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    variables = {**os.environ, "PYTHONPATH": search_path, "PATH": binaries, home.VARIABLE: str(home.home())}
    os.execve(python, [str(python), "-P", "-m", "cli", *arguments], variables)
