"""`./mill test`: the repository's tests, by pytest."""

from __future__ import annotations

import argparse
import subprocess
import sys

from cli.home import ROOT


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mill test [PYTEST ARGUMENTS]"
    parser.epilog = "Examples: ./mill test tests/harness   ./mill test -k rollback -x"
    parser.set_defaults(rest=())


def run(arguments: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "pytest", *arguments.rest]
    print("running pytest", *arguments.rest, "in the checkout", flush=True)
    return subprocess.call(command, cwd=ROOT)
