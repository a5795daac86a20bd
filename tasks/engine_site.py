"""The engine's environment and what Gristmill puts on its path: the wheel's package and entry points, and no more.

The repository's own folder must not be there: transformers imports a package `kernels`, and would find ours.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from gristmill import __version__, durable_file
from tasks.errors import ServingError
from tasks.settings import REPOSITORY

VARIABLE = "MILL_VLLM_VENV"


def vllm_python(environ: dict[str, str] | os._Environ[str] = os.environ) -> Path:
    """The interpreter of the environment that holds vLLM.

    Raises:
        ServingError: none is named, or it has none.
    """
    named = environ.get(VARIABLE, "")
    python = Path(named).expanduser().absolute() / "bin" / "python"
    if not named or not os.access(python, os.X_OK):
        found = f"no Python at {python}" if named else "is not set"
        raise ServingError(f"{VARIABLE}: {found}; name an environment that holds vLLM, or let ./mill demo make one")
    return python


def serving_site(folder: Path) -> Path:
    """A folder for `PYTHONPATH` that looks as if the wheel was installed there: the package, its version, its entry
    points as pyproject.toml has them. Made anew each time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "gristmill"
    if link.is_symlink() or link.exists():
        link.unlink()
    link.symlink_to(REPOSITORY / "gristmill", target_is_directory=True)
    facts = folder / f"gristmill-{__version__}.dist-info"
    facts.mkdir(exist_ok=True)
    durable_file.write(facts / "METADATA", f"Metadata-Version: 2.1\nName: gristmill\nVersion: {__version__}\n".encode())
    durable_file.write(facts / "entry_points.txt", _entry_points().encode())
    return folder


def _entry_points() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    return "\n".join(sections)
