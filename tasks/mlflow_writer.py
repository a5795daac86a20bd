"""Turns the lines of a search's spool into MLflow runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import mlflow_runs, mlflow_store
from tasks.mlflow_spool import SearchEnd, SearchStart, SearchTrial, SpoolLine

if TYPE_CHECKING:
    from mlflow import MlflowClient

REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
"""Error codes that trying again cannot mend."""


def outages() -> tuple[type[Exception], ...]:
    """What an unreachable, overloaded or refusing store raises."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError)


def refused(error: Exception) -> bool:
    """Whether the store is there and will never take this."""
    return getattr(error, "error_code", "") in REFUSALS


class RunWriter:
    """The runs of one search. It begins by looking up what MLflow holds, so a line sent twice changes nothing."""

    def __init__(self, client: MlflowClient, home: Path, *, local: bool) -> None:
        self._client = client
        self._home = home
        self._local = local
        self._start: SearchStart | None = None
        self._experiment_id = ""
        self._runs: dict[str, tuple[str, str]] = {}
        self._trials: list[SearchTrial] = []
        self._best: dict[str, float] = {}
        self.parent_run_id: str | None = None
        self.ended = False
        """Whether the last line seen was the end of the search."""

    @classmethod
    def connect(cls, home: Path, uri: str) -> RunWriter:
        return cls(mlflow_store.open_store(home, uri), home, local=mlflow_store.is_local(uri))

    def remember(self, line: SpoolLine) -> None:
        """Takes note of a line that has been sent before."""
        if line.start:
            self._begin(line.start)
        if line.trial:
            self._trials.append(line.trial)
            name = mlflow_runs.best_name(line.trial)
            self._best[name] = max(self._best.get(name, 1.0), mlflow_runs.proven_ratio(line.trial.verdict))
        self.ended = line.end is not None

    def write(self, line: SpoolLine) -> None:
        """Sends one line."""
        if line.start:
            self._begin(line.start)
        if line.trial:
            self._write_trial(line.trial)
        if line.end:
            self._end(line.end)
        self.ended = line.end is not None

    def _begin(self, start: SearchStart) -> None:
        self._start = start
        self._experiment_id = mlflow_store.ensure_experiment(
            self._client, self._home, start.experiment, local=self._local
        )
        parents = self._search(start, "search")
        self.parent_run_id = (
            parents[0].info.run_id
            if parents
            else self._client.create_run(
                self._experiment_id, start.started_ms, mlflow_runs.parent_tags(start), start.search_id
            ).info.run_id
        )
        self._runs = {
            run.data.tags[mlflow_runs.CANDIDATE_TAG]: (run.info.run_id, run.info.status)
            for run in self._search(start, "candidate")
        }

    def _search(self, start: SearchStart, kind: str) -> list[Any]:
        query = f"tags.{mlflow_runs.SEARCH_TAG} = '{start.search_id}' and tags.kind = '{kind}'"
        runs: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id], query, max_results=1000, order_by=["attributes.start_time ASC"], page_token=token
            )
            runs.extend(page)
            token = page.token
            if not token:
                return runs

    def _write_trial(self, trial: SearchTrial) -> None:
        assert self._start is not None and self.parent_run_id is not None
        run_id, status = self._runs.get(trial.candidate.digest) or (self._create(trial), "RUNNING")
        if status == "RUNNING":
            try:
                self._fill(run_id, trial)
            except outages() as error:
                if refused(error):
                    self._client.set_terminated(run_id, "FAILED", trial.recorded_ms)
                raise
            self._runs[trial.candidate.digest] = (run_id, "FINISHED")
        name, ratio = mlflow_runs.best_name(trial), mlflow_runs.proven_ratio(trial.verdict)
        if ratio > self._best.get(name, 1.0):
            self._client.log_metric(self.parent_run_id, name, ratio, trial.recorded_ms, trial.step)
            self._best[name] = ratio
        self._trials.append(trial)

    def _create(self, trial: SearchTrial) -> str:
        assert self._start is not None and self.parent_run_id is not None
        began_ms = trial.recorded_ms - round(trial.verdict.duration_s * 1000)
        tags = mlflow_runs.child_tags(self._start, trial, self.parent_run_id)
        run = self._client.create_run(self._experiment_id, began_ms, tags, mlflow_runs.run_name(trial.candidate))
        self._runs[trial.candidate.digest] = (run.info.run_id, "RUNNING")
        return str(run.info.run_id)

    def _fill(self, run_id: str, trial: SearchTrial) -> None:
        from mlflow.entities import Metric, Param

        self._client.log_batch(
            run_id,
            metrics=[
                Metric(name, value, trial.recorded_ms, trial.step)
                for name, value in mlflow_runs.metrics(trial.verdict).items()
            ],
            params=[Param(name, value) for name, value in mlflow_runs.parameters(trial.candidate).items()],
        )
        for path, text in mlflow_runs.artifacts(trial).items():
            self._client.log_text(run_id, text, path)
        self._client.set_terminated(run_id, "FINISHED", trial.recorded_ms)

    def _end(self, end: SearchEnd) -> None:
        from mlflow.entities import Metric

        assert self._start is not None and self.parent_run_id is not None
        if self._trials:
            figure = mlflow_runs.best_ratio_figure(self._trials)
            self._client.log_figure(self.parent_run_id, figure, "best_ratio.png")
            self._client.log_text(self.parent_run_id, mlflow_runs.leaderboard_csv(self._trials), "leaderboard.csv")
        self._client.log_dict(self.parent_run_id, end.summary, "summary.json")
        last_step = max((trial.step for trial in self._trials), default=0)
        won = sum(trial.verdict.won for trial in self._trials)
        totals = {**self._best, "candidates": len(self._trials), "candidates_faster": won}
        self._client.log_batch(
            self.parent_run_id, [Metric(name, value, end.ended_ms, last_step) for name, value in totals.items()]
        )
        self._client.set_terminated(self.parent_run_id, "FINISHED", end.ended_ms)
