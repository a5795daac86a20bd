"""The processes that a judge keeps: one in which baselines run, and warm ones that wait for candidates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from harness.arena import SharedFile
from harness.session import (
    Finding,
    RunnerKind,
    Session,
    as_baseline_error,
    load_message,
    start_baseline_session,
    start_candidate_session,
)
from kernels.candidate import Candidate
from kernels.definition import Definition


class Runners:
    """A candidate's runner serves one candidate only. The baselines' runner lives on, and never sees a candidate."""

    def __init__(self, threads: int, inputs: SharedFile) -> None:
        self._threads = threads
        self._inputs = inputs
        self._baseline: tuple[str, Session] | None = None
        self._spares: dict[RunnerKind, Session] = {}

    def close(self) -> None:
        """Ends them all."""
        for session in self._spares.values():
            session.close()
        self._spares.clear()
        self.drop_baseline()

    @contextlib.contextmanager
    def candidate(self, candidate: Candidate, object_path: Path | None) -> Iterator[tuple[Session, tuple[str, ...]]]:
        """A warm runner with the candidate loaded, and the layers around it; the next one comes up afterwards.

        Raises:
            Finding: it cannot be loaded.
            HostFaultError: no runner comes up.
        """
        kind = RunnerKind(candidate.language, self._threads)
        if kind not in self._spares:
            self._spares[kind] = start_candidate_session(kind, self._inputs)
        session = self._spares.pop(kind)
        try:
            session.wait_ready()
            session.load(load_message(candidate, object_path))
            yield session, session.isolation
        finally:
            session.close()
            self._spares[kind] = start_candidate_session(kind, self._inputs)

    def start_baseline(self) -> tuple[str, Session]:
        """Starts the baselines' process, if it does not run; returns what it has loaded."""
        if self._baseline is None:
            self._baseline = ("", start_baseline_session(self._threads, self._inputs))
        return self._baseline

    def baseline(self, definition: Definition, name: str) -> Session:
        """The baselines' process, with that baseline loaded.

        Raises:
            BaselineError: it does not load.
        """
        wanted = f"{definition.name}/{name}"
        loaded, session = self.start_baseline()
        session.wait_ready()
        if loaded != wanted:
            try:
                session.load({"operator": definition.name, "baseline": name})
            except Finding as finding:
                self.drop_baseline()
                raise as_baseline_error(name, finding) from None
            self._baseline = (wanted, session)
        return session

    def drop_baseline(self) -> None:
        """Ends the baselines' process; the next one is fresh."""
        if self._baseline is not None:
            self._baseline[1].close()
            self._baseline = None
