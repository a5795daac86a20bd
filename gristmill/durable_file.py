"""Files that appear whole and stay after a power cut: written aside, synced, renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Makes `path` hold exactly `content`: readers see the old file or the new one, never a part.

    Raises:
        OSError: nothing was changed.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".aside-")
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, not only the contents behind them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
