"""How a candidate came about, or what a search has judged: found in MLflow, or in this host's journals and spools
where MLflow is away.

A candidate of a language model has episodes. One of a pattern agent has none: its path is what the same agent had
judged before it, in the same search.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agents.episode import Episode
from gristmill import records
from gristmill.errors import MalformedRecordError
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks import journal, mlflow_runs, mlflow_store, mlflow_traces, proposal_record
from tasks.errors import ReplayError
from tasks.mlflow_sink import spool_folder
from tasks.mlflow_spool import Spool
from tasks.mlflow_writer import outages
from tasks.settings import Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

LEAST_DIGEST_CHARS = 6
DIGEST = re.compile(rf"[0-9a-f]{{{LEAST_DIGEST_CHARS},64}}")
RUN_ID = re.compile(r"[0-9a-f]{32}")
QUOTABLE = re.compile(r"[\w.:-]{1,200}", re.ASCII)
"""What may stand in a query to MLflow."""
LOGGER = logging.getLogger(__name__)
PAGE = 1000
SUMMARY = "summary.json"
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]\d+)?", re.ASCII)
"""A gain in there."""
R = TypeVar("R")


@dataclass(frozen=True)
class Judged:
    """A candidate and what the judge said of it, as far as a replay tells."""

    search: str
    digest: str
    operator: str
    dtype: str
    agent: str
    pattern: str
    parameters: dict[str, str]
    parents: tuple[str, ...]
    model: str
    episode: str
    status: str
    reason: str
    ratio: float | None
    """Over the workloads that it was timed on, those on which it is slower included: by their calls and the times that
    the judge measured, where `SearchReplay.gains` goes by the times that the engine spent in the traffic.
    """
    run_id: str = ""
    """Of MLflow; empty if MLflow was not asked."""


@dataclass(frozen=True)
class Replay:
    """One agent's path."""

    source: str
    """`MLflow`, or `this host`."""
    candidate: Judged | None
    """None for an episode without a candidate."""
    episodes: tuple[Episode, ...]
    """That led to it, the first one first."""
    lineage: tuple[Judged, ...]
    """Its parents, their parents and so on, the nearest first, as far as the same search judged them."""
    course: tuple[Judged, ...]
    """What the same agent had judged in the same search before, in order, up to the candidate itself."""


@dataclass(frozen=True)
class SearchReplay:
    """All that one search has judged, in order."""

    source: str
    """`MLflow`, or `this host`."""
    search: str
    judged: tuple[Judged, ...]
    gains: dict[str, float]
    """By operator and dtype, as `./mill compile` tells them: on all of the traffic, with the best candidate for each
    workload. Empty until the search has ended.
    """


class History(Protocol):
    """Where past searches are looked up."""

    @property
    def name(self) -> str: ...

    def find(self, text: str) -> list[Judged]:
        """Candidates whose run, digest (its beginning) or episode this is; the latest search last."""
        ...

    def judged(self, search: str) -> list[Judged]:
        """Everything that a search has judged, in order; nothing if there is none of that name."""
        ...

    def gains(self, search: str) -> dict[str, float]:
        """See `SearchReplay`."""
        ...

    def episodes(self, candidate: Judged) -> list[Episode]:
        """Those that led to a candidate."""
        ...

    def episode(self, text: str) -> Episode | None:
        """The one with this id."""
        ...


def replay(settings: Settings, text: str) -> tuple[Replay | SearchReplay, str]:
    """What is known, from the first history that knows it; and why MLflow could not be asked, if it could not.

    Raises:
        ReplayError: nobody knows it, or it means several candidates.
    """
    away = ""
    local = LocalHistory(settings)
    try:
        client = _client(settings)
        found = _replay(MlflowHistory(client), text, local) if client else None
    except outages() as error:
        found, away = None, f"MLflow is away ({str(error).splitlines()[0][:120]})"
    if isinstance(found, Replay) and found.candidate and not found.episodes:
        found = replace(found, episodes=tuple(local.episodes(found.candidate)))  # not sent yet, perhaps
    if isinstance(found, SearchReplay) and not found.gains:
        found = replace(found, gains=local.gains(found.search))
    found = found or _replay(local, text, local)
    if found is None:
        raise ReplayError(
            f"{text!r}: neither a run of MLflow, nor the beginning of a candidate's digest ({LEAST_DIGEST_CHARS} "
            f"characters at least), nor an episode or a search that is known{' here; ' + away if away else ''}; "
            "./mill ui shows all runs"
        )
    local.look_over(_search_of(found))
    return found, away


def _search_of(found: Replay | SearchReplay) -> str:
    """Empty for an episode without a candidate."""
    if isinstance(found, SearchReplay):
        return found.search
    return found.candidate.search if found.candidate else ""


def _replay(history: History, text: str, local: History) -> Replay | SearchReplay | None:
    matches = history.find(text)
    digests = sorted({match.digest for match in matches})
    if not matches:
        episode = history.episode(text)
        if episode:
            return Replay(history.name, None, (episode,), (), ())
        judged = history.judged(text)
        gains = history.gains(text) if judged else {}
        return SearchReplay(history.name, text, _completed(judged, local.judged(text)), gains) if judged else None
    if len(digests) > 1 and not any(match.episode == text for match in matches):
        several = ", ".join(digest[: max(records.SHOWN_DIGITS, len(text) + 4)] for digest in digests[:5])
        raise ReplayError(f"{text!r} begins {len(digests)} digests ({several}, ...); give more of it")
    candidate = matches[-1]
    judged = _completed(history.judged(candidate.search), local.judged(candidate.search))
    return Replay(
        history.name,
        candidate,
        tuple(history.episodes(candidate)),
        tuple(_lineage(candidate, judged)),
        tuple(_course(candidate, judged)),
    )


def _completed(judged: Sequence[Judged], local: Sequence[Judged]) -> tuple[Judged, ...]:
    """What a history has of a search, and behind it what this host's journal has besides: that was not sent yet."""
    there = {one.digest for one in judged}
    return (*judged, *(one for one in local if one.digest not in there))


def _lineage(candidate: Judged, judged: Iterable[Judged]) -> list[Judged]:
    known = {one.digest: one for one in judged}
    found: dict[str, Judged] = {}
    waiting = list(candidate.parents)
    while waiting:
        digest = waiting.pop(0)
        if digest in known and digest not in found and digest != candidate.digest:
            found[digest] = known[digest]
            waiting += known[digest].parents
    return list(found.values())


def _course(candidate: Judged, judged: Sequence[Judged]) -> list[Judged]:
    """Of its agent and operator, up to the candidate."""
    mine = [
        one
        for one in judged
        if (one.agent, one.operator, one.dtype) == (candidate.agent, candidate.operator, candidate.dtype)
    ]
    places = [place for place, one in enumerate(mine) if one.digest == candidate.digest]
    return mine[: places[0] + 1] if places else []


class LocalHistory:
    """The journals of this home's searches, and the spools that have not reached MLflow. See `History`."""

    name = "this host"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._searches_dir = settings.searches_dir
        self._spools = sorted(spool_folder(settings.home).glob("*.jsonl"))
        self._read: dict[str, list[Judged]] = {}

    def find(self, text: str) -> list[Judged]:
        return [one for search in self._searches() for one in self.judged(search) if _means(one, text)]

    def judged(self, search: str) -> list[Judged]:
        if search not in self._read and search in self._searches():
            entries = journal.read(self._searches_dir / search / "verdicts.jsonl")
            self._read[search] = [_judged(search, entry.candidate, entry.verdict) for entry in entries]
        return self._read.get(search, [])

    def gains(self, search: str) -> dict[str, float]:
        from tasks import results

        if not (self._searches_dir / search / "result.json").exists():
            return {}
        try:
            found = results.load(self._settings, search).result.operators
        except MalformedRecordError as error:
            LOGGER.warning("the result of search %s is left out: %s", search, error)
            return {}
        return {f"{one.operator} {one.dtype}": one.gain for one in found}

    def look_over(self, search: str) -> None:
        """Warns of damaged lines in what this host keeps of a search: the answer may be MLflow's, which has them all,
        while a resume of that search would judge them again.
        """
        if search in self._searches():
            self.judged(search)
            proposal_record.read(self._searches_dir / search / proposal_record.FILE_NAME)

    def episodes(self, candidate: Judged) -> list[Episode]:
        return [
            one for one in self._all_episodes() if one.id == candidate.episode or candidate.digest in one.candidates
        ]

    def episode(self, text: str) -> Episode | None:
        return next((one for one in self._all_episodes() if one.id == text), None)

    def _searches(self) -> list[str]:
        paths = sorted(self._searches_dir.glob("*/verdicts.jsonl"), key=lambda path: path.stat().st_mtime)
        return [path.parent.name for path in paths]

    def _all_episodes(self) -> Iterable[Episode]:
        """Without a lock: whole lines only, and a search may be adding more."""
        for path in self._spools:
            if path.exists():
                yield from (line.episode.episode for line, _ in Spool(path).lines() if line.episode)


class MlflowHistory:
    """The runs, traces and artifacts of a tracking store. See `History`."""

    name = "MLflow"

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._experiments = [experiment.experiment_id for experiment in client.search_experiments()]

    def find(self, text: str) -> list[Judged]:
        if RUN_ID.fullmatch(text):
            runs = [run for run in self._runs(f"attributes.run_id = '{text}'") if "candidate" in run.data.tags]
            if runs:
                return [_judged_run(run) for run in runs]
        queries = [f"tags.candidate LIKE '{text}%'"] if DIGEST.fullmatch(text) else []
        queries += [f"tags.episode = '{text}'"] if QUOTABLE.fullmatch(text) else []
        found = [_judged_run(run) for query in queries for run in self._runs(f"tags.kind = 'candidate' and {query}")]
        return [one for one in found if _means(one, text)]

    def judged(self, search: str) -> list[Judged]:
        if not QUOTABLE.fullmatch(search):
            return []
        runs = self._runs(f"tags.search = '{search}' and tags.kind = 'candidate'")
        # Runs of before there was a tag for it are in the order of their beginning, which is nearly the same.
        return [_judged_run(run) for run in sorted(runs, key=lambda run: int(run.data.tags.get("step", 0)))]

    def gains(self, search: str) -> dict[str, float]:
        for run in self._runs(f"tags.search = '{search}' and tags.kind = 'search'"):
            if any(file.path == SUMMARY for file in self._client.list_artifacts(run.info.run_id)):
                summary = self._record(run.info.run_id, SUMMARY, dict[str, str]) or {}
                numbers = {name: gain for name, gain in summary.items() if NUMBER.fullmatch(gain)}
                return {" ".join(name.rsplit(".", 1)): float(gain) for name, gain in numbers.items()}
        return {}

    def episodes(self, candidate: Judged) -> list[Episode]:
        traces = self._client.search_traces(
            locations=self._experiments, run_id=candidate.run_id, include_spans=False, order_by=["timestamp_ms ASC"]
        )
        return [found for trace in traces if (found := self._artifact(trace.info)) is not None]

    def episode(self, text: str) -> Episode | None:
        if not QUOTABLE.fullmatch(text) or not self._experiments:
            return None
        traces = self._client.search_traces(
            locations=self._experiments, filter_string=f"tags.episode = '{text}'", include_spans=False, max_results=1
        )
        return self._artifact(traces[0].info) if traces else None

    def _artifact(self, info: Any) -> Episode | None:
        """The whole episode; its spans may have been cut."""
        path = mlflow_traces.artifact_path(info.tags[mlflow_traces.EPISODE_TAG])
        return self._record(info.trace_metadata["mlflow.sourceRun"], path, Episode)

    def _record(self, run_id: str, path: str, kind: type[R]) -> R | None:
        """An artifact. One that is gone or damaged is left out with a warning, and costs the rest nothing."""
        try:
            with tempfile.TemporaryDirectory(prefix="mill-") as folder:
                content = Path(self._client.download_artifacts(run_id, path, folder)).read_bytes()
            return records.parse(kind, content, path)
        except (*outages(), MalformedRecordError) as error:
            LOGGER.warning("run %s: artifact %s is left out: %s", run_id, path, str(error).splitlines()[0][:200])
            return None

    def _runs(self, query: str) -> list[Any]:
        found: list[Any] = []
        token = None
        while self._experiments:
            page = self._client.search_runs(
                self._experiments, query, max_results=PAGE, order_by=["attributes.start_time ASC"], page_token=token
            )
            found += page
            token = page.token
            if not token:
                break
        return found


def _client(settings: Settings) -> MlflowClient | None:
    """None where nothing was ever recorded in a local store: looking must not make one."""
    uri = mlflow_store.store_uri(settings.home, settings.tracking_uri)
    if mlflow_store.is_local(uri) and not Path(uri.removeprefix("sqlite:///")).exists():
        return None
    return mlflow_store.open_store(settings.home, settings.tracking_uri)


def _means(one: Judged, text: str) -> bool:
    return (text != "" and one.episode == text) or (DIGEST.fullmatch(text) is not None and one.digest.startswith(text))


def _judged(search: str, candidate: Candidate, verdict: Verdict) -> Judged:
    origin = candidate.origin
    return Judged(
        search,
        candidate.digest,
        candidate.operator,
        candidate.domain.dtype,
        origin.agent,
        origin.pattern,
        origin.parameters,
        origin.parents,
        origin.model,
        origin.episode,
        verdict.status.value,
        verdict.reason,
        verdict.ratio,
    )


def _judged_run(run: Any) -> Judged:
    tags = run.data.tags
    return Judged(
        tags[mlflow_runs.SEARCH_TAG],
        tags[mlflow_runs.CANDIDATE_TAG],
        tags["operator"],
        tags["dtype"],
        tags["agent"],
        tags["pattern"],
        dict(run.data.params),
        tuple(tags["parents"].split()),
        tags.get("model", ""),
        tags.get("episode", ""),
        tags["status"],
        tags["reason"],
        run.data.metrics.get("ratio"),
        run.info.run_id,
    )
