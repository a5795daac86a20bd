"""What an engine's interpreter finds on its path: the wheel's package and entry points, and nothing else of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill import __version__
from tasks.engine_site import VARIABLE, serving_site, vllm_python
from tasks.errors import ServingError

LOOK = """
import importlib.metadata, importlib.util, gristmill.adapters.vllm
points = [(p.name, p.value) for p in importlib.metadata.entry_points(group="vllm.general_plugins")]
print(points, importlib.metadata.version("gristmill"), [importlib.util.find_spec(n) for n in ("tasks", "cli", "flows")])
"""


def test_an_interpreter_finds_the_plugin_and_no_other_package_of_the_repository(tmp_path: Path) -> None:
    site = serving_site(serving_site(tmp_path / "site"))  # again: nothing is in its own way
    environ = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", LOOK]
    found = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    wanted = f"[('gristmill', 'gristmill.adapters.vllm:register')] {__version__} [None, None, None]"
    assert found.stdout.strip() == wanted
    assert sorted(path.name for path in site.iterdir()) == ["gristmill", f"gristmill-{__version__}.dist-info"]


@pytest.mark.parametrize("named", ["", "/nowhere/at/all"])
def test_without_an_environment_one_line_says_what_to_do(named: str) -> None:
    with pytest.raises(ServingError, match=VARIABLE):
        vllm_python({VARIABLE: named})
