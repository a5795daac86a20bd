"""The processes that a judge keeps: one in which baselines run, and warm ones that wait for candidates."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from harness.native import Native
from harness.sandbox import Zygote
from harness.session import (
    BASELINE_LOAD_S,
    Finding,
    RunnerKind,
    Session,
    as_baseline_error,
    baseline_payload,
    load_payload,
    start_baseline_session,
    start_candidate_session,
    start_zygote,
)
from harness.shared_file import SharedFile
from kernels.candidate import Candidate
from kernels.definition import Definition

SPARES = 2
"""Warm runners per kind: one to take, one that is coming up."""
KEPT_FILES = 4
"""Files of outputs that wait for runners: their pages are there already."""
KEPT_OUTPUT_BYTES = 64 << 20
"""Of such a file."""
MAX_BURIALS = 4
"""Runners that may be waiting to be cleared away."""


class Runners:
    """A candidate's runner serves one candidate only. The baselines' runner lives on, and never sees a candidate."""

    def __init__(self, threads: int, inputs: SharedFile, native: Native) -> None:
        self._threads = threads
        self._inputs = inputs
        self._native = native
        self._baseline: tuple[str, Session] | None = None
        self._spares: dict[RunnerKind, list[Session]] = {}
        self._zygotes: dict[RunnerKind, Zygote] = {}
        self._files: list[SharedFile] = []
        self._burials: deque[Future[None]] = deque()
        self._undertaker = ThreadPoolExecutor(1, thread_name_prefix="undertaker")

    def close(self) -> None:
        """Ends them all, and returns when nothing of them is left."""
        for session in [session for spares in self._spares.values() for session in spares]:
            self._bury(session)
        self._spares.clear()
        self._undertaker.shutdown()
        for burial in self._burials:
            burial.result()
        for zygote in self._zygotes.values():
            zygote.close()
        for file in self._files:
            file.close()
        self._files.clear()
        self.drop_baseline()

    @contextlib.contextmanager
    def candidate(self, candidate: Candidate, object_path: Path | None, timeout_s: float) -> Iterator[Session]:
        """A warm runner with the candidate loaded.

        Raises:
            Finding: it cannot be loaded.
            HostFaultError: no runner comes up.
        """
        kind = RunnerKind(candidate.language, self._threads)
        if not self._spares.get(kind):
            self._start_spare(kind)
        session = self._spares[kind].pop(0)
        try:
            session.wait_ready()
            session.load(load_payload(candidate, object_path), timeout_s)
            yield session
        finally:
            self._bury(session)
            while len(self._spares[kind]) < SPARES:
                self._start_spare(kind)

    def _start_spare(self, kind: RunnerKind) -> None:
        random.shuffle(self._files)  # two files are not equally fast: neither side keeps the better one
        outputs = self._files.pop() if self._files else SharedFile("outputs", writable_by_runner=True)
        try:
            session = start_candidate_session(kind, self._zygote(kind), self._native, self._inputs, outputs)
        except BaseException:
            self._files.append(outputs)
            raise
        self._spares.setdefault(kind, []).append(session)

    def _zygote(self, kind: RunnerKind) -> Zygote:
        if kind not in self._zygotes:
            self._zygotes[kind] = start_zygote(kind)
        return self._zygotes[kind]

    def _bury(self, session: Session) -> None:
        """Ends a runner; what it leaves is cleared away while the next ones work, unless it piles up."""
        session.kill()
        while len(self._burials) >= MAX_BURIALS:
            self._burials.popleft().result()
        self._burials.append(self._undertaker.submit(self._clear_away, session))

    def _clear_away(self, session: Session) -> None:
        session.close()
        outputs = session.outputs
        if outputs is None:
            return
        if len(self._files) < KEPT_FILES:
            outputs.scrub(min(session.used_bytes, KEPT_OUTPUT_BYTES))
            self._files.append(outputs)
        else:
            outputs.close()

    def start_baseline(self) -> tuple[str, Session]:
        """Starts the baselines' process, if it does not run; returns what it has loaded."""
        if self._baseline is None:
            self._baseline = ("", start_baseline_session(self._threads, self._native, self._inputs))
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
                session.load(baseline_payload(definition.name, name), BASELINE_LOAD_S)
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
