"""Runs a file of tests in the environment of an engine, with this environment's pytest behind the engine's packages."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

from tasks.settings import REPOSITORY

RUN = "import sys; sys.path.append(sys.argv[1]); import pytest; sys.exit(pytest.main(sys.argv[2:]))"


def passes(environment: str, tests: Path, cwd: Path, *paths: Path) -> str:
    """What pytest said. `paths` come before the repository's on the path of all processes.

    Raises:
        AssertionError: a test failed.
    """
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "-o", "timeout=0", str(tests)]
    found = subprocess.run(
        [f"{environment}/bin/python", "-c", RUN, sysconfig.get_paths()["purelib"], *arguments],
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (*paths, REPOSITORY))),
        },
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    return found.stdout
