"""From `./mill COMMAND` to the same command inside the environment. Standard library only."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from agents.models import keys
from cli import __main__ as command_line
from cli import commands, environment, home
from gristmill.errors import GristmillError

HELP = ("-h", "--help")
CALL_MODELS = ("demo", "compile", "continuous", "ui", "worker")
"""Commands that search, or whose worker does."""


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
        keys.bequeathed(os.environ)  # before anything is started, pip included
        python = environment.python_for(command.requirements)
        variables = _variables(command, arguments[1:], python)
    except GristmillError as error:
        print(f"mill: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("mill: interrupted; the same command continues where it stopped", file=sys.stderr)
        return 130
    return _become(python, arguments, variables)


def _variables(command: commands.Command, options: Sequence[str], python: Path) -> dict[str, str]:
    """The command's environment. Provider keys are behind a descriptor, which only one that calls models inherits."""
    search_path = os.pathsep.join(filter(None, [str(home.ROOT), os.environ.get("PYTHONPATH")]))
    binaries = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    variables = {**os.environ, "PYTHONPATH": search_path, "PATH": binaries, home.VARIABLE: str(home.home())}
    calls_models = command.name in CALL_MODELS and _asks_models(options, variables)
    tests_them = command.name == "test" and not variables.get("MILL_VENV")
    if command.name in (*CALL_MODELS, "test", "doctor"):
        environment.name_agents_environment(variables, wanted=calls_models or tests_them)
    if command.name == "demo" and _serves_vllm(options):
        environment.name_vllm_environment(variables)
    if not calls_models:
        keys.taken_from(variables)
    return variables


def _asks_models(options: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether a search would, with these options: one names a model, or some are configured, and agents ask them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", nargs="?", const="", default=None)
    parser.add_argument("--agents", nargs="?", const="", default="")
    given, _ = parser.parse_known_args(options)
    nobody = given.agents.isdecimal() and int(given.agents) == 0
    return not nobody and (given.model is not None or environment.models_configured(variables))


def _serves_vllm(options: Sequence[str]) -> bool:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--engine", nargs="?", default="")
    given, _ = parser.parse_known_args(options)
    return bool(given.engine == "vllm")


def _become(python: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replaces this process, so that signals and exit codes are the command's own.

    The working directory stays the caller's, for the files it names, and is kept off the import path (`-P`).
    """
    os.execve(python, [str(python), "-P", "-m", "cli", *arguments], variables)
