"""One provider process for all tests that need a real one: litellm takes seconds to import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.models.keys import Keys, taken_from
from agents.models.provider_client import ProviderClient

KEY = "sk-0123456789abcdef0123456789"
CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def agents_python() -> Path:
    """The interpreter with litellm; `./mill test` sets its environment up and names it."""
    folder = Path(os.environ.get("MILL_AGENTS_VENV") or CHECKOUT / ".venv-agents")
    python = folder / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment with litellm: ./mill test sets one up, MILL_AGENTS_VENV names one")
    return python


@pytest.fixture(scope="session")
def keys() -> Keys:
    return taken_from({"OPENAI_API_KEY": KEY})


@pytest.fixture(scope="session")
def client(agents_python: Path, keys: Keys) -> Iterator[ProviderClient]:
    with ProviderClient(agents_python, keys) as client:
        yield client
