"""Where the state of this checkout lives: databases, spools, caches, keys, reports."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MILL_HOME"
ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""


def home() -> Path:
    """`MILL_HOME`, or `.mill/` in the checkout; absolute, not necessarily there yet."""
    return Path(os.environ.get(VARIABLE) or ROOT / ".mill").expanduser().resolve()
