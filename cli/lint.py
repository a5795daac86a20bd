"""`./mill lint`: style, types and import directions."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from cli.home import ROOT

BIN = Path(sys.executable).parent
CHECKS = {
    "ruff check": [sys.executable, "-m", "ruff", "check", "--quiet", ".", "mill"],
    "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "--quiet", ".", "mill"],
    "mypy --strict": [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"],
    "import-linter": [str(BIN / "lint-imports"), "--no-cache"],
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Runs every check, shows what failed, and exits 1 if any did."


def run(arguments: argparse.Namespace) -> int:
    failed = [name for name, command in CHECKS.items() if not _passes(name, command)]
    print(f"lint: {', '.join(failed)} failed" if failed else "lint: all clean")
    return 1 if failed else 0


def _passes(name: str, command: list[str]) -> bool:
    result = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(f"{name}: {'ok' if result.returncode == 0 else 'failed'}", flush=True)
    if result.returncode:
        print(result.stdout.rstrip(), flush=True)
    return result.returncode == 0
