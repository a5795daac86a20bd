"""What may be where: litellm in the provider process alone, and there nothing of the search."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
LITELLM_STUB = "import sys, types; sys.modules['litellm'] = types.SimpleNamespace()"


def imported_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)}
    told = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    return set(told.stdout.split())


def test_the_search_imports_no_litellm() -> None:
    modules = sorted(path.stem for path in (CHECKOUT / "agents" / "models").glob("*.py") if path.stem != "__init__")
    loaded = imported_by("\n".join(f"import agents.models.{module}" for module in modules))
    assert "agents.models.configuration" in loaded and "litellm" not in loaded


def test_the_provider_process_needs_the_standard_library_and_records() -> None:
    loaded = imported_by(f"{LITELLM_STUB}\nimport agents.provider.process, agents.provider.__main__")
    ours = {name for name in loaded if name.split(".")[0] in ("agents", "gristmill", "harness", "kernels", "registry")}
    assert {name for name in ours if name.split(".")[0] not in ("agents", "gristmill")} == set()
    assert not loaded & {"torch", "numpy", "boto3", "tuf", "agents.brief", "agents.models.provider_client"}
