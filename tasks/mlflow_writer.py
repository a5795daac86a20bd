"""Turns the lines of a search's spool into MLflow runs and traces."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill import records
from tasks import mlflow_runs, mlflow_store, mlflow_traces, swarm_charts
from tasks.mlflow_spool import SearchEnd, SearchEpisode, SearchStart, SearchTrial, SpoolLine
from tasks.swarm_charts import EpisodeCourse

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.tracing.client import TracingClient

LOGGER = logging.getLogger(__name__)
TOTALS_EVERY = 10
"""Episodes between two points of the search's running costs, about."""
TRACES_A_PAGE = 500
REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
"""Error codes that trying again cannot mend."""


def outages() -> tuple[type[Exception], ...]:
    """What an unreachable, overloaded or refusing store raises."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError)


def refused(error: Exception) -> bool:
    """Whether the store is there and will never take this, or its client breaks on it: some read what a model wrote."""
    unwritable = isinstance(error.__cause__ or error.__context__, UnicodeError)
    return unwritable or not isinstance(error, outages()) or getattr(error, "error_code", "") in REFUSALS


class RunWriter:
    """The runs of one search. It begins by looking up what MLflow holds, so a line sent twice changes nothing."""

    def __init__(self, client: MlflowClient, traces: TracingClient, home: Path, *, local: bool) -> None:
        self._client = client
        self._traces = traces
        self._home = home
        self._local = local
        self._start: SearchStart | None = None
        self._experiment_id = ""
        self._runs: dict[str, tuple[str, str]] = {}
        self._trials: list[SearchTrial] = []
        self._best: dict[str, float] = {}
        self._courses: dict[str, EpisodeCourse] = {}
        """By trace."""
        self._complete = False
        """Whether the courses are those of all episodes that MLflow has, earlier lives of the search included."""
        self._traces_of: dict[str, list[str]] = {}
        """By candidate."""
        self.parent_run_id: str | None = None
        self.ended = False
        """Whether the last line seen was the end of the search."""

    @classmethod
    def connect(cls, home: Path, uri: str) -> RunWriter:
        client = mlflow_store.open_store(home, uri)
        from mlflow.tracing.client import TracingClient

        return cls(client, TracingClient(uri), home, local=mlflow_store.is_local(uri))

    def remember(self, line: SpoolLine) -> None:
        """Takes note of a line that has been sent before."""
        if line.start:
            self._begin(line.start)
        if line.trial:
            self._trials.append(line.trial)
            name = mlflow_runs.best_name(line.trial)
            self._best[name] = max(self._best.get(name, 1.0), mlflow_runs.proven_ratio(line.trial.verdict))
        if line.episode:
            self._note(line.episode)
        self.ended = line.end is not None

    def write(self, line: SpoolLine, *more: SpoolLine) -> None:
        """Sends one line, or several episodes."""
        if line.start:
            self._begin(line.start)
        if line.trial:
            self._write_trial(line.trial)
        if line.episode:
            self._write_episodes([one.episode for one in (line, *more) if one.episode])
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
                self._experiment_id, start.started_ms, mlflow_runs.parent_tags(start), mlflow_runs.search_name(start)
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
            except Exception as error:
                if refused(error):
                    self._client.set_terminated(run_id, "FAILED", trial.recorded_ms)
                raise
            self._runs[trial.candidate.digest] = (run_id, "FINISHED")
        self._link(self._traces_of.get(trial.candidate.digest, []), run_id)
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

    def _write_episodes(self, recorded: Sequence[SearchEpisode]) -> None:
        """The artifacts, the traces, their spans (of all of them at once), their links: each may be there already."""
        assert self._start is not None and self.parent_run_id is not None
        self._complete_courses()
        for one in recorded:
            text = records.canonical_json(one.episode).decode()
            self._client.log_text(self.parent_run_id, text, mlflow_traces.artifact_path(one.episode.id))
        try:
            for one in recorded:
                info = mlflow_traces.trace_info(self._start, one, self._experiment_id, self.parent_run_id)
                self._traces.start_trace(info)
            spans = [span for one in recorded for span in mlflow_traces.spans(self._start, one)]
            self._traces.log_spans(self._experiment_id, spans)
        except NotImplementedError as error:  # a server of before 3.4
            names = ", ".join(one.episode.id for one in recorded)
            LOGGER.warning("episodes are artifacts of their search only (%s): %s", names, error)
            return
        before = len(self._courses)
        for one in recorded:
            trace_id = mlflow_traces.trace_id(self._start.search_id, one.episode.id)
            for digest in one.episode.candidates:
                if digest in self._runs:
                    self._link([trace_id], self._runs[digest][0])
            self._note(one)
        if len(self._courses) // TOTALS_EVERY > before // TOTALS_EVERY:
            self._log_totals()

    def _note(self, recorded: SearchEpisode) -> None:
        assert self._start is not None
        trace_id = mlflow_traces.trace_id(self._start.search_id, recorded.episode.id)
        self._courses[trace_id] = swarm_charts.course_of(recorded)
        for digest in recorded.episode.candidates:
            traces = self._traces_of.setdefault(digest, [])
            if trace_id not in traces:
                traces.append(trace_id)

    def _link(self, trace_ids: list[str], run_id: str) -> None:
        if trace_ids:
            self._client.link_traces_to_run(trace_ids, run_id)

    def _complete_courses(self) -> None:
        """Looks up once what earlier lives of this search have sent, whose spools are gone."""
        assert self._start is not None
        token = None
        while not self._complete:
            page = self._client.search_traces(
                locations=[self._experiment_id],
                filter_string=f"tags.{mlflow_runs.SEARCH_TAG} = '{self._start.search_id}'",
                max_results=TRACES_A_PAGE,
                include_spans=False,
                page_token=token,
            )
            for trace in page:
                self._courses.setdefault(trace.info.trace_id, swarm_charts.course_of_trace(trace.info))
            token = page.token
            self._complete = not token

    def _log_totals(self) -> None:
        """What the search's language models have cost so far."""
        from mlflow.entities import Metric

        assert self.parent_run_id is not None
        courses = self._courses.values()
        values = {
            "usd": sum(course.usd for course in courses),
            "tokens": sum(course.tokens for course in courses),
            "episodes": len(courses),
        }
        ended_ms = max(course.period.ended_ms for course in courses)
        self._client.log_batch(
            self.parent_run_id, [Metric(name, value, ended_ms, len(courses)) for name, value in values.items()]
        )

    def _end(self, end: SearchEnd) -> None:
        from mlflow.entities import Metric

        assert self._start is not None and self.parent_run_id is not None
        if self._trials:
            figure = mlflow_runs.best_ratio_figure(self._trials)
            self._client.log_figure(self.parent_run_id, figure, "best_ratio.png")
            self._client.log_text(self.parent_run_id, mlflow_runs.leaderboard_csv(self._trials), "leaderboard.csv")
            for path, picture in mlflow_runs.pictures(self._trials).items():
                self._client.log_figure(self.parent_run_id, picture, path)
        if self._courses:
            self._complete_courses()
            self._log_totals()
            courses = list(self._courses.values())
            self._client.log_figure(self.parent_run_id, swarm_charts.cost_figure(courses), "cost.png")
            self._client.log_figure(self.parent_run_id, swarm_charts.timeline_figure(courses), "swarm.png")
        self._client.log_dict(self.parent_run_id, end.summary, "summary.json")
        last_step = max((trial.step for trial in self._trials), default=0)
        won = sum(trial.verdict.won for trial in self._trials)
        totals = {**self._best, "candidates": len(self._trials), "candidates_faster": won}
        self._client.log_batch(
            self.parent_run_id, [Metric(name, value, end.ended_ms, last_step) for name, value in totals.items()]
        )
        self._client.set_terminated(self.parent_run_id, "FINISHED", end.ended_ms)
