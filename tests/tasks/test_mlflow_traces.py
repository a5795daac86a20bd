"""Every episode becomes one trace with its prompts, answers, tools and costs, beside its candidates, and no secret."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.chat import Answer, Finish, Message, Role, ToolCall, Usage
from agents.episode import Episode, ModelTurn, Outcome, Step, ToolTurn
from agents.redaction import Redactor
from gristmill import records
from tasks import mlflow_store, mlflow_traces, swarm_charts
from tasks.mlflow_sink import SearchLog, send_leftovers, spool_folder
from tasks.mlflow_spool import SearchEpisode, SearchStart, SearchTrial, Spool, SpoolLine
from tasks.mlflow_writer import RunWriter
from tests.tasks.test_mlflow_sink import TAGS, FailingClient, artifact, candidate, children, connect_through, verdict

START = SearchStart("s1", "gristmill", 1000, TAGS)
BEGAN_MS = 1_764_650_000_000


def episode(number: int, *candidates: str, began_ms: int = BEGAN_MS, text: str = "") -> Episode:
    """A tool loop: a question, a call of `build`, its result, a submission."""
    system, user = Message(Role.SYSTEM, "You write kernels."), Message(Role.USER, f"Make it faster. {text}")
    call = ToolCall("c1", "build", '{"source": "// none"}')
    first = Answer("openai/small", "", (call,), Finish.TOOLS, Usage(1000, 50, 0.02), 1.5)
    last = Answer("openai/large", "```cpp\n```", (), Finish.DONE, Usage(1200, 90, 0.03), 2.5)
    steps = (
        Step(model=ModelTurn(began_ms, (system, user), first)),
        Step(tool=ToolTurn(began_ms + 1500, "build", call.arguments, "main.cpp:1: error", 0.25)),
        Step(model=ModelTurn(began_ms + 1800, (Message(Role.TOOL, "main.cpp:1: error", (), "c1"),), last)),
    )
    return Episode(
        f"e{number}",
        f"llm-{number % 3}",
        "openai/small",
        "rms_norm",
        "float32",
        "online-softmax",
        "islands",
        ("p" * 64,),
        steps,
        Outcome.SUBMITTED if candidates else Outcome.NO_CODE,
        "one candidate" if candidates else "the answer holds no code block",
        candidates,
        Usage(2200, 140, 0.05),
    )


def traces(home: Path, run_id: str) -> list[Any]:
    """What the Traces tab of a run shows."""
    client = mlflow_store.open_store(home)
    experiment = client.get_experiment_by_name("gristmill")
    return list(client.search_traces(locations=[experiment.experiment_id], run_id=run_id, max_results=100))


def test_an_episode_is_a_trace_of_the_search_and_of_its_candidates(home: Path) -> None:
    submitted, empty = episode(0, candidate(0).digest), episode(1)
    with SearchLog(home, "s1", tags=TAGS) as log:
        log.episodes.record(submitted)
        log.record(candidate(0), verdict(candidate(0)), 0)
        log.episodes.record(empty)
        log.finish({})
        assert log.close()
    (run,) = children(home, "s1")
    (of_candidate,) = traces(home, run.info.run_id)
    assert {trace.info.client_request_id for trace in traces(home, log.parent_run_id)} == {"e0", "e1"}
    info = of_candidate.info
    assert (info.request_time, info.execution_duration) == (BEGAN_MS, 4300)
    assert info.token_usage == {"input_tokens": 2200, "output_tokens": 140, "total_tokens": 2340}
    assert json.loads(info.trace_metadata["mlflow.trace.cost"])["total_cost"] == 0.05
    assert info.tags["candidates"] == candidate(0).digest and info.tags["outcome"] == "submitted"
    assert info.request_preview.startswith("Make it faster.")
    root, first, tool, last = of_candidate.data.spans
    assert [s.span_type for s in (root, first, tool, last)] == ["AGENT", "CHAT_MODEL", "TOOL", "CHAT_MODEL"]
    assert {s.parent_id for s in (first, tool, last)} == {root.span_id}
    assert first.inputs["messages"][1] == {"role": "user", "content": "Make it faster. "}
    assert first.outputs["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "build"
    assert first.get_attribute("mlflow.chat.tokenUsage")["input_tokens"] == 1000
    assert last.llm_cost["total_cost"] == 0.03 and last.model_name == "openai/large"
    assert (tool.inputs, tool.outputs) == ({"source": "// none"}, {"result": "main.cpp:1: error"})
    assert tool.end_time_ns - tool.start_time_ns == 250_000_000
    stored = artifact(home, log.parent_run_id, mlflow_traces.artifact_path("e0"))
    assert records.parse(Episode, stored) == submitted
    parent = mlflow_store.open_store(home).get_run(log.parent_run_id)
    assert {name: parent.data.metrics[name] for name in ("usd", "tokens", "episodes")} == {
        "usd": pytest.approx(0.1),
        "tokens": 4680,
        "episodes": 2,
    }
    artifacts = mlflow_store.open_store(home).list_artifacts(log.parent_run_id)
    assert {"cost.png", "swarm.png"} <= {item.path for item in artifacts}


def test_a_candidate_that_is_judged_first_gets_its_trace_all_the_same(home: Path) -> None:
    with SearchLog(home, "s1", tags=TAGS) as log:
        log.record(candidate(0), verdict(candidate(0)), 0)
        log.episodes.record(episode(0, candidate(0).digest))
        log.episodes.record(episode(1, candidate(0).digest))
        log.finish({})
        assert log.close()
    (run,) = children(home, "s1")
    assert len(traces(home, run.info.run_id)) == 2


def test_a_later_life_of_a_search_adds_to_what_an_earlier_one_sent(home: Path) -> None:
    for number in range(2):
        with SearchLog(home, "s1", tags=TAGS) as log:
            log.episodes.record(episode(0))
            log.episodes.record(episode(number))
            log.finish({})
            assert log.close()
    assert len(traces(home, log.parent_run_id)) == 2
    metrics = mlflow_store.open_store(home).get_run(log.parent_run_id).data.metrics
    assert (metrics["episodes"], metrics["tokens"]) == (2, 4680)


HOSTILE = (
    '{"a":' * 3000,
    '{"a":' * 500 + "1" + "}" * 500,
    "9" * 5000,
    "[" * 3000,
    '"',
    "NaN",
    '{"a":1e400}',
    "",
    '{"\\ud800":"\\udc00"}',
)


@pytest.mark.parametrize("written", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_model_wrote_becomes_a_trace(home: Path, caplog: pytest.LogCaptureFixture, written: str) -> None:
    whole = episode(0)
    tool = ToolTurn(BEGAN_MS, written or "x" * 1000, written, written, 0.1)
    call = ToolCall("c1", "build", written)
    answer = Answer("openai/small", written, (call,), Finish.TOOLS, Usage(1, 1, 0.0), 0.1)
    turn = ModelTurn(BEGAN_MS, (Message(Role.ASSISTANT, written, (call,)),), answer)
    with SearchLog(home, "s1", tags=TAGS) as log:
        log.episodes.record(replace(whole, steps=(Step(model=turn), Step(tool=tool))))
        log.finish({})
        assert log.close()
    (trace,) = traces(home, log.parent_run_id)
    assert len(trace.data.spans) == 3 and not caplog.records


def test_spans_survive_the_way_to_a_tracking_server() -> None:
    """They go there as OpenTelemetry's own messages, and a server makes spans of these again."""
    from mlflow.entities import Span

    for span in mlflow_traces.spans(START, SearchEpisode(BEGAN_MS, episode(0, "c" * 64))):
        arrived = Span.from_otel_proto(span.to_otel_proto())
        assert (arrived.trace_id, arrived.span_id, arrived.parent_id) == (span.trace_id, span.span_id, span.parent_id)
        assert (arrived.start_time_ns, arrived.end_time_ns) == (span.start_time_ns, span.end_time_ns)
        assert arrived.attributes == span.attributes


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("after", [False, True])
def test_a_cut_at_any_call_changes_nothing_in_the_end(home: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    cuts = 0
    while True:
        cuts += 1
        search_id = f"s{cuts}"
        failing = FailingClient(mlflow_store.open_store(home), cuts, after)
        spool = Spool(spool_folder(home) / f"{search_id}.jsonl")
        assert spool.open()
        spool.append(SpoolLine(start=SearchStart(search_id, "gristmill", 1000, TAGS)))
        spool.append(SpoolLine(trial=SearchTrial(0, 2000, candidate(0), verdict(candidate(0), None))))
        spool.close()
        send_leftovers(home)
        assert spool.open()
        spool.append(SpoolLine(episode=SearchEpisode(2500, episode(0, candidate(0).digest))))
        spool.close()
        with monkeypatch.context() as patched:
            patched.setattr(RunWriter, "connect", partial(connect_through, failing))
            send_leftovers(home)
        send_leftovers(home)
        spool.remove()
        (run,) = children(home, search_id)
        (trace,) = traces(home, run.info.run_id)
        assert len(trace.data.spans) == 4, f"cut at call {cuts}"
        assert len(traces(home, run.data.tags["mlflow.parentRunId"])) == 1
        if not failing.used_up:
            break
    assert cuts == 5, "the artifact, the trace, its spans, its link; then no cut"


KILLED_SEARCH = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from tests.tasks.test_mlflow_traces import TAGS, episode
from tasks.mlflow_sink import SearchLog
log = SearchLog(Path(sys.argv[1]), "s1", tags=TAGS)
log.__enter__()
for number in range(5):
    log.episodes.record(episode(number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_search_loses_no_episode(home: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", KILLED_SEARCH, str(home), root]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with SearchLog(home, "s1", tags=TAGS) as log:
        log.episodes.record(episode(5))
        log.finish({})
        assert log.close()
    found = {trace.info.client_request_id for trace in traces(home, log.parent_run_id)}
    assert found == {f"e{number}" for number in range(6)}


def test_many_agents_record_at_once(home: Path) -> None:
    with SearchLog(home, "s1", tags=TAGS, tracking_uri="http://127.0.0.1:9") as log:
        threads = [threading.Thread(target=log.episodes.record, args=(episode(n // 2),)) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.close(stall_s=0.1)
    lines = (spool_folder(home) / "s1.jsonl").read_bytes().splitlines()
    ids = [line.episode.episode.id for line in (records.parse(SpoolLine, text) for text in lines) if line.episode]
    assert sorted(ids) == sorted(f"e{number}" for number in range(20)), "each once, each line whole"


def test_no_secret_reaches_the_spool(home: Path) -> None:
    secret = "not-to-be-shown-anywhere"
    redactor = Redactor([secret], ["/opt/private"], ["builder-17"])
    with SearchLog(home, "s1", tags=TAGS, tracking_uri="http://127.0.0.1:9", redactor=redactor) as log:
        log.episodes.record(episode(0, text=f"{secret} /opt/private/x.cpp on builder-17 \ud800"))
        log.close(stall_s=0.1)
    spool = (spool_folder(home) / "s1.jsonl").read_text()
    assert not [word for word in (secret, "/opt/private", "builder-17") if word in spool]
    assert "[path]/x.cpp on [name] ?" in spool


class RefusingTraces:
    """A store that will never take a trace."""

    def start_trace(self, info: object) -> None:
        from mlflow.exceptions import MlflowException

        raise MlflowException.invalid_parameter_value("this trace is odd")


class OldServer:
    """A tracking server that knows no spans."""

    def start_trace(self, info: object) -> None: ...

    def log_spans(self, location: str, spans: object) -> None:
        raise NotImplementedError("MLflow server version 3.1 is less than 3.4")


@pytest.mark.parametrize(
    ("store", "complaint"), [(RefusingTraces(), "refuses episode e0"), (OldServer(), "less than 3.4")]
)
def test_an_episode_that_mlflow_does_not_take_does_not_hold_up_the_rest(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, store: Any, complaint: str
) -> None:
    connect = RunWriter.connect

    def connected(home: Path, uri: str) -> RunWriter:
        writer = connect(home, uri)
        writer._traces = store
        return writer

    monkeypatch.setattr(RunWriter, "connect", connected)
    with SearchLog(home, "s1", tags=TAGS) as log:
        log.episodes.record(episode(0))
        log.record(candidate(1), verdict(candidate(1)), 1)
        log.finish({})
        assert log.close()
    assert complaint in caplog.text
    assert len(children(home, "s1")) == 1
    assert records.parse(Episode, artifact(home, log.parent_run_id, "episodes/e0.json")) == episode(0)


class Counting:
    """The store, which takes spans of so many traces at once, and never one of the trace `e2`."""

    def __init__(self, store: Any, at_once: int) -> None:
        self._store = store
        self._at_once = at_once
        self.taken: list[int] = []
        """Traces per call."""

    def start_trace(self, info: Any) -> None:
        from mlflow.exceptions import MlflowException

        if info.client_request_id == "e2":
            raise MlflowException.invalid_parameter_value("this trace is odd")
        self._store.start_trace(info)

    def log_spans(self, location: str, spans: Any) -> None:
        from mlflow.exceptions import MlflowException

        found = {span.trace_id for span in spans}
        if len(found) > self._at_once:
            raise MlflowException.invalid_parameter_value("spans of several traces")
        self._store.log_spans(location, spans)
        self.taken.append(len(found))


@pytest.mark.parametrize(
    ("numbers", "at_once", "taken"),
    [(range(3, 9), 99, [6]), (range(3, 6), 1, [1, 1, 1]), (range(1, 4), 99, [1, 1])],
    ids=["together", "by a server that takes one", "one of them odd"],
)
def test_episodes_that_wait_are_sent_together_where_that_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch, numbers: range, at_once: int, taken: list[int]
) -> None:
    with SearchLog(home, "s1", tags=TAGS, tracking_uri="http://127.0.0.1:9") as log:
        for number in numbers:
            log.episodes.record(episode(number))
        log.finish({})
        log.close(stall_s=0.1)
    connect, stores = RunWriter.connect, []

    def connected(home: Path, uri: str) -> RunWriter:
        writer = connect(home, uri)
        stores.append(Counting(writer._traces, at_once))
        writer._traces = stores[-1]  # type: ignore[assignment]
        return writer

    monkeypatch.setattr(RunWriter, "connect", connected)
    assert send_leftovers(home) == 0
    assert [count for store in stores for count in store.taken] == taken
    client = mlflow_store.open_store(home)
    experiment = client.get_experiment_by_name("gristmill")
    (run,) = client.search_runs([experiment.experiment_id], "tags.kind = 'search'")
    found = {trace.info.tags["episode"]: len(trace.data.spans) for trace in traces(home, run.info.run_id)}
    assert found == {f"e{number}": len(episode(number).steps) + 1 for number in numbers if number != 2}


TEXTS = st.text(max_size=30)
USAGES = st.builds(Usage, st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 10))
CALLS = st.builds(ToolCall, TEXTS, TEXTS, TEXTS | st.just("[" * 5000) | st.just('{"a": NaN}'))
MESSAGES = st.builds(Message, st.sampled_from(Role), TEXTS, st.lists(CALLS, max_size=2).map(tuple), TEXTS)
ANSWERS = st.builds(
    Answer,
    TEXTS,
    TEXTS,
    st.lists(CALLS, max_size=2).map(tuple),
    st.sampled_from(Finish),
    USAGES,
    st.floats(0, 1e4),
)
TIMES = st.integers(0, 2**41)
STEPS = st.builds(
    Step,
    st.builds(ModelTurn, TIMES, st.lists(MESSAGES, max_size=3).map(tuple), st.none() | ANSWERS, TEXTS),
    st.none(),
) | st.builds(Step, st.none(), st.builds(ToolTurn, TIMES, TEXTS, TEXTS, TEXTS, st.floats(0, 1e4)))
EPISODES = st.builds(
    Episode,
    *[TEXTS] * 7,
    st.lists(TEXTS, max_size=2).map(tuple),
    st.lists(STEPS, max_size=4).map(tuple),
    st.sampled_from(Outcome),
    TEXTS,
    st.lists(TEXTS, max_size=2).map(tuple),
    USAGES,
)


@given(EPISODES)
def test_any_episode_makes_a_trace_within_its_period(some: Episode) -> None:
    recorded = SearchEpisode(BEGAN_MS, some)
    info = mlflow_traces.trace_info(START, recorded, "1", "run")
    made = mlflow_traces.spans(START, recorded)
    assert len(made) == len(some.steps) + 1 and len({span.span_id for span in made}) == len(made)
    assert {span.trace_id for span in made} == {info.trace_id}
    assert all(made[0].start_time_ns <= s.start_time_ns <= s.end_time_ns <= made[0].end_time_ns for s in made)
    assert all(len(value) <= 8000 for value in info.tags.values())


@given(st.text(), st.integers(100, 300))
def test_a_cut_text_is_no_longer_than_allowed_and_keeps_both_ends(text: str, chars: int) -> None:
    text *= 20
    cut = mlflow_traces._cut(text, chars)
    assert len(cut) <= max(chars, 0) or len(text) <= chars
    assert cut == text or (text[:20] == cut[:20] and text[-10:] == cut[-10:])


def test_long_texts_are_cut_in_spans_and_whole_in_the_artifact(home: Path) -> None:
    long = episode(0, text="x" * 100_000)
    with SearchLog(home, "s1", tags=TAGS) as log:
        log.episodes.record(long)
        log.finish({})
        assert log.close()
    (trace,) = traces(home, log.parent_run_id)
    assert "characters left out" in trace.data.spans[1].inputs["messages"][1]["content"]
    assert "x" * 100_000 in artifact(home, log.parent_run_id, mlflow_traces.artifact_path("e0"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b", "", "x" * 300])
def test_an_odd_episode_id_is_no_path(name: str) -> None:
    assert mlflow_traces.SAFE_NAME.fullmatch(mlflow_traces.artifact_path(name).removeprefix("episodes/"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30))
def test_lanes_hold_every_episode_and_none_overlap(entries: list[tuple[int, int, int]]) -> None:
    courses = [
        swarm_charts.EpisodeCourse(f"a{agent}", "submitted", mlflow_traces.Period(start, start + length), 0.0, 0)
        for agent, start, length in entries
    ]
    rows = swarm_charts.lanes(courses)
    assert sorted(map(repr, courses)) == sorted(repr(course) for row in rows for course in row)
    for row in rows:
        assert len({course.agent for course in row}) == 1
        for one, next_one in itertools.pairwise(row):
            assert one.period.ended_ms <= next_one.period.started_ms


def test_a_swarm_of_any_size_has_its_pictures() -> None:
    chance = random.Random(1)
    recorded = [SearchEpisode(0, episode(n, began_ms=BEGAN_MS + chance.randrange(10**5))) for n in range(300)]
    courses = [swarm_charts.course_of(one) for one in recorded]
    assert len(swarm_charts.timeline_figure(courses).axes[0].get_yticks()) <= swarm_charts.MAX_ROWS
    money, tokens = swarm_charts.cost_figure(courses).axes
    assert money.get_title(loc="left") == "15 USD" and tokens.get_title(loc="left") == "702,000 tokens"
