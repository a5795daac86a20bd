"""How far a search is, as a progress bar beside its flow run in the Prefect UI."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from tasks.search_session import Trial

KEY = "search-progress"
UPDATE_S = 10.0
"""Between two updates: each is a request to the server, made by the thread that judges."""
LOGGER = logging.getLogger(__name__)


class SearchProgress:
    """Told of every trial of a search. That the server does not answer costs the search nothing but the bar.

    Args:
        budget_s: how long the search may take.
        clock: seconds that pass.
    """

    def __init__(self, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._started_s = clock()
        self._updated_s = self._started_s - UPDATE_S
        self._artifact: UUID | None = None
        self._operator = ""
        self._trials = 0

    def operator(self, operator: str, dtype: str, budget_s: float, workloads: int) -> None:
        self._operator = f"{operator} {dtype}, {workloads} workloads, {budget_s:.0f} s"
        self._update(self._text())

    def trial(self, trial: Trial, best_ratio: float) -> None:
        self._trials += 1
        if self._clock() - self._updated_s >= UPDATE_S:
            self._update(self._text(f", best so far {best_ratio:.2f}x"))

    def waiting(self, agents: int, why: str, *, at_the_end: bool = False) -> None:
        """A bar does not tell."""

    def done(self, text: str) -> None:
        """The search is over."""
        self._send(100.0, text)

    def _text(self, more: str = "") -> str:
        return f"{self._operator}: candidate {self._trials}{more}"

    def _update(self, text: str) -> None:
        """Never full before the search has ended."""
        share = (self._clock() - self._started_s) / self._budget_s if self._budget_s > 0 else 0.0
        self._send(min(99.0, 100 * share), text)

    def _send(self, progress: float, text: str) -> None:
        from httpx import HTTPError
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.exceptions import PrefectException

        self._updated_s = self._clock()
        try:
            if self._artifact is None:
                made = create_progress_artifact(progress=progress, key=KEY, description=text)
                self._artifact = made if isinstance(made, UUID) else None
            else:
                update_progress_artifact(self._artifact, progress=progress, description=text)
        except (HTTPError, PrefectException) as error:
            LOGGER.warning("the search's progress is not shown: %s", error)
