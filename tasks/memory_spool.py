"""The spool between a search and memory's store: what was learned waits on disk until the store has taken it.

One file per segment, appearing whole. A file may be sent twice, by this process and by another with the same home, or
again after a crash: the store counts it once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.memory import Segment
from gristmill import durable_file, records
from gristmill.errors import GristmillError
from kernels.candidate import Candidate

LOGGER = logging.getLogger(__name__)
SUFFIX = ".segment"
MAX_WAITING = 1000
"""Files; then the oldest is let go with a warning."""


@dataclass(frozen=True)
class Parcel:
    """A segment with the sources that it names."""

    segment: Segment
    sources: tuple[Candidate, ...]


class MemorySpool:
    """A folder of parcels, in the order in which they were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned: set[Path] = set()

    def put(self, parcel: Parcel) -> None:
        """Returns once the parcel is on disk.

        Raises:
            OSError: it is not.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        segment = parcel.segment
        name = f"{segment.written_ms:015d}-{segment.writer}-{segment.number:06d}{SUFFIX}"
        durable_file.write(self.folder / name, records.canonical_json(parcel))
        for path in self.waiting()[:-MAX_WAITING]:
            LOGGER.warning("memory: more than %d segments wait for the store; %s is let go", MAX_WAITING, path.name)
            path.unlink(missing_ok=True)

    def waiting(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    def parcels(self) -> Iterator[tuple[Path, Parcel]]:
        """What waits, oldest first. A damaged file is put aside, with a warning that names it; one that
        this user cannot read stays, and keeps nothing behind it.
        """
        for path in self.waiting():
            try:
                yield path, records.parse(Parcel, path.read_bytes(), path.name)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._warn(path, error.strerror or str(error))
            except GristmillError as error:
                LOGGER.warning("memory: %s is left out: %s", path, error)
                path.replace(path.with_suffix(".damaged"))

    def _warn(self, path: Path, why: str) -> None:
        """Once for each file: what waits is looked through every half minute."""
        if path not in self._warned:
            self._warned.add(path)
            LOGGER.warning("memory: %s is left out: %s", path, why)
