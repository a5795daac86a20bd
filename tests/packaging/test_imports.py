"""What may be imported where, and what an import costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "boto3", "tuf", "prefect", "mlflow", "pandas", "pyarrow", "transformers", "numpy"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh process after a statement."""
    script = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import gristmill, gristmill.records, gristmill.kernel_table, gristmill.workload, gristmill.hardware",
        "import kernels.candidate, kernels.verdict",
        "import cli.door, cli.__main__",
        "import tasks.mlflow_sink, tasks.mlflow_spool",
    ],
)
def test_light_modules_pull_in_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) & HEAVY == set()


def test_the_launcher_needs_the_standard_library_only() -> None:
    ours = {"agents", "cli", "gristmill"}
    assert loaded_by("import cli.door") - loaded_by("pass") - ours <= sys.stdlib_module_names


def test_imports_run_one_way() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([linter, "--no-cache"], cwd=ROOT, text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stdout


def test_every_package_is_under_the_checker() -> None:
    checked = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"])
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"}
    assert packages <= checked
