from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.sampler import Sampler
from gristmill.sequence import Edge, StepTimes
from gristmill.site import Site
from gristmill.spool import COLUMNS, Identity, Spool
from gristmill.store import read
from gristmill.workload import TensorLayout, dense
from kernels import catalogue, inputs, sketch, spool_fold
from kernels.drift import drift
from kernels.errors import EmptyProfileError, SpoolObjectError
from kernels.profile import Quantiles, TrafficProfile, parse
from kernels.tally import Tally, total

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SOURCE = {"fleet": "chat", "model": "llama", "hardware": "cpu"}
FOLDER = "spool/chat/llama/cpu"

Row = dict[str, Any]


def operator_row(**changes: Any) -> Row:
    axes = {"tokens": 4, "hidden": 8}
    layouts = [dense((4, 8), "float32"), dense((8,), "float32")]
    row: Row = {
        "window_start_ns": 1_000_000_000,
        "window_end_ns": 2_000_000_000,
        "host": "a",
        "process": 1,
        "operator": "rms_norm",
        "dtype": "float32",
        "axes": records.canonical_json(axes).decode(),
        "layouts": records.canonical_json(layouts).decode(),
        "calls": 100,
        "timed_calls": 10,
        "timed_ns": 5000,
        "one_in": 10,
        "dropped": 0,
    }
    return row | changes


def request_row(prompt_tokens: int, generated_tokens: int, **changes: Any) -> Row:
    window = {"window_start_ns": 1_000_000_000, "window_end_ns": 2_000_000_000, "host": "a"}
    tokens = {"prompt_tokens": prompt_tokens, "generated_tokens": generated_tokens, "arrival_ns": 5, "cached_tokens": 0}
    return window | tokens | {"drafts": 0, "accepted": "[]", "weight": 1, "dropped": 0} | changes


def edge_row(**changes: Any) -> Row:
    row: Row = {
        "window_start_ns": 1_000_000_000,
        "window_end_ns": 2_000_000_000,
        "host": "a",
        "producer": "rms_norm",
        "producer_axes": '{"hidden":8}',
        "output": 0,
        "consumer": "skinny_linear",
        "consumer_axes": '{"in_features":8,"out_features":4}',
        "input": 0,
        "dtype": "float32",
        "uses": 2,
        "calls": 10,
    }
    return row | changes


def spool_file(
    rows: list[Row], kind: str = "operators", versions: dict[str, str] | None = None, **source: str
) -> tuple[str, bytes]:
    columns = COLUMNS[kind]
    facts = {**SOURCE, **source, "versions": json.dumps(versions or {"torch": "2.13.0"})}
    schema = pyarrow.schema(
        [(name, getattr(pyarrow, kind)()) for name, kind in columns.items()],
        metadata={f"gristmill.{key}": value for key, value in facts.items()},
    )
    return f"{FOLDER}/{kind}/1-a-1-0.parquet", _parquet(pyarrow.Table.from_pylist(rows, schema))


def _parquet(table: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def test_one_file_becomes_a_profile() -> None:
    profile = spool_fold.fold([spool_file([operator_row()])])
    assert (profile.fleet, profile.model, profile.hardware) == ("chat", "llama", "cpu")
    assert profile.window_start_utc == "1970-01-01T00:00:01.000000+00:00"
    assert profile.window_end_utc == "1970-01-01T00:00:02.000000+00:00"
    assert profile.versions == {"torch": "2.13.0"}
    (workload,) = profile.workloads
    assert workload.axes == {"tokens": 4, "hidden": 8}
    assert workload.inputs == (dense((4, 8), "float32"), dense((8,), "float32"))
    assert (workload.calls, workload.time_ns) == (100, 50_000)


def test_calls_of_one_pattern_add_up_however_the_json_is_written() -> None:
    respelled = operator_row(axes='{"hidden": 8,  "tokens": 4}', calls=50, timed_calls=0, timed_ns=0, host="b")
    profile = spool_fold.fold([spool_file([operator_row()]), spool_file([respelled])])
    (workload,) = profile.workloads
    assert (workload.calls, workload.time_ns) == (150, 50_000)


def test_a_timed_call_stands_for_as_many_as_its_row_says() -> None:
    """Also where no call was timed, and where a device told of more of them than were counted since."""
    rows = [
        operator_row(calls=7, timed_calls=1, timed_ns=100, one_in=5),
        operator_row(calls=3, timed_calls=0, timed_ns=0, one_in=5, host="b"),
        operator_row(calls=1, timed_calls=2, timed_ns=10, one_in=17, host="c"),
    ]
    (workload,) = spool_fold.fold([spool_file(rows)]).workloads
    assert (workload.calls, workload.time_ns) == (11, 500 + 170)


def test_calls_of_hosts_that_did_not_say_how_they_drew_take_what_the_timed_ones_took() -> None:
    name, content = spool_file([operator_row(calls=100, timed_calls=4, timed_ns=400)])
    old = _parquet(parquet.read_table(io.BytesIO(content)).drop_columns(["one_in"]))
    assert spool_fold.fold([(name, old)]).workloads[0].time_ns == 10_000


def test_patterns_that_differ_in_strides_stay_apart() -> None:
    strided = records.canonical_json([{"shape": [4, 8], "strides": [16, 1], "dtype": "float32"}]).decode()
    profile = spool_fold.fold([spool_file([operator_row(), operator_row(layouts=strided)])])
    assert len(profile.workloads) == 2


def test_edges_add_up_over_hosts_and_files_however_the_json_is_written() -> None:
    respelled = edge_row(host="b", consumer_axes='{"out_features": 4, "in_features": 8}', calls=5)
    alone = edge_row(uses=1, calls=20)
    profile = spool_fold.fold([spool_file([edge_row(), alone], "sequences"), spool_file([respelled], "sequences")])
    known = Edge(
        "rms_norm", {"hidden": 8}, 0, "skinny_linear", {"in_features": 8, "out_features": 4}, 0, "float32", 1, 20
    )
    assert profile.edges == (known, replace(known, uses=2, calls=15))
    assert records.parse(TrafficProfile, records.canonical_json(profile)) == profile


def _softmax(x_RC: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.softmax(x_RC, -1),)


def test_what_a_sampler_traced_arrives_in_the_profile(tmp_path: Path) -> None:
    sampler = Sampler(trace_period=1)
    dispatcher = Dispatcher(environ={})
    hook = Hook(
        Instruments(dispatcher, sampler), dispatcher.site("softmax", torch.float32, {"columns": 4}, (), _softmax)
    )
    store = DirectoryStore(tmp_path / "store")
    spool = Spool(store, Identity("chat", "llama", "cpu"), sampler, tmp_path / "waiting")
    sampler.boundary()
    first = torch.rand(2, 4)
    (second,) = hook.call(first)
    hook.call(second)
    sampler.boundary()
    profile = spool_fold.fold((key, read(store, key)) for key in spool.flush().keys)
    columns = {"columns": 4}
    assert profile.edges == (
        Edge("", {}, 0, "softmax", columns, 0, "float32", 0, 1),
        Edge("softmax", columns, 0, "softmax", columns, 0, "float32", 1, 1),
    )
    assert (profile.steps.steps, profile.steps.calls) == (1, 2)
    assert profile.operator_share is not None
    assert 0 < profile.operator_share <= 1
    assert spool.flush().keys == (), "the edges were taken once"


def test_a_profile_from_before_there_were_edges_is_read() -> None:
    profile = spool_fold.fold([spool_file([operator_row()])])
    text = records.encode(profile)
    del text["edges"]
    assert records.parse(TrafficProfile, json.dumps(text)) == profile


@pytest.mark.parametrize(
    "fault",
    [
        {"producer": "<b>"},
        {"consumer": "\n"},
        {"dtype": "a b"},
        {"uses": -1},
        {"input": -1},
        {"output": -1},
        {"calls": 0},
        {"producer_axes": "[]"},
        {"consumer_axes": "{"},
    ],
)
def test_a_malformed_edge_is_named(fault: Row) -> None:
    with pytest.raises(SpoolObjectError, match=r"sequences/.*row 1"):
        spool_fold.fold([spool_file([edge_row(), edge_row(**fault)], "sequences")])


def step_row(**changes: Any) -> Row:
    window = {"window_start_ns": 1_000_000_000, "window_end_ns": 2_000_000_000, "host": "a"}
    return window | {"steps": 2, "calls": 20, "step_ns": 1000, "operator_ns": 600} | changes


def test_operators_are_a_share_of_the_steps() -> None:
    files = [spool_file([step_row()], "steps"), spool_file([step_row(operator_ns=300, host="b")], "steps")]
    profile = spool_fold.fold([*files, spool_file([operator_row()])])
    assert profile.steps == StepTimes(4, 40, 2000, 900)
    assert profile.operator_share == pytest.approx(0.45)
    assert spool_fold.fold([spool_file([operator_row()])]).operator_share is None


@pytest.mark.parametrize("fault", [{"steps": 0}, {"calls": 1}, {"operator_ns": 1001}, {"operator_ns": -1}])
def test_malformed_steps_are_named(fault: Row) -> None:
    with pytest.raises(SpoolObjectError, match=r"steps/.*row 1"):
        spool_fold.fold([spool_file([step_row(), step_row(**fault)], "steps")])


def test_untimed_calls_count_without_time() -> None:
    profile = spool_fold.fold([spool_file([operator_row(timed_calls=0, timed_ns=0)])])
    assert (profile.workloads[0].calls, profile.workloads[0].time_ns) == (100, 0)


def test_dropped_samples_count_once_per_flush() -> None:
    first_only = [operator_row(dropped=7), operator_row(dtype="bfloat16")]
    other_process = [operator_row(dropped=5, process=2)]
    assert spool_fold.fold([spool_file(first_only), spool_file(other_process)]).dropped == 12


def test_requests_become_quantiles() -> None:
    rows = [request_row(prompt, 2 * prompt) for prompt in range(1, 101)]
    requests = spool_fold.fold([spool_file(rows, "requests")]).requests
    assert requests.count == 100
    assert requests.prompt_tokens == Quantiles(p10=10, p50=50, p90=90, p99=99, maximum=100)
    assert requests.generated_tokens.p50 == 100


def test_a_request_counts_for_those_it_stands_for() -> None:
    rows = [request_row(10, 1, weight=3, dropped=7), request_row(20, 1)]
    requests = spool_fold.fold([spool_file(rows, "requests")]).requests
    assert (requests.count, requests.dropped, requests.prompt_tokens_total) == (4, 7, 50)
    assert requests.prompt_tokens.p50 == 10


def test_caches_and_drafts_add_up() -> None:
    rows = [
        request_row(10, 8, cached_tokens=4, drafts=4, accepted="[3,1]", weight=2),
        request_row(10, 8, cached_tokens=1, drafts=2, accepted="[2,1,1]"),
    ]
    requests = spool_fold.fold([spool_file(rows[:1], "requests"), spool_file(rows[1:], "requests")]).requests
    assert (requests.cached_tokens_total, requests.drafts, requests.accepted) == (9, 10, (8, 3, 1))


def test_requests_of_hosts_before_there_were_weights_are_read() -> None:
    name, content = spool_file([request_row(10, 1), request_row(20, 2)], "requests")
    later = ["cached_tokens", "drafts", "accepted", "weight", "dropped"]
    old = _parquet(parquet.read_table(io.BytesIO(content)).drop_columns(later))
    assert spool_fold.fold([(name, old)]) == spool_fold.fold([(name, content)])


def test_a_fleet_in_the_middle_of_an_upgrade_lists_both_versions() -> None:
    files = [spool_file([operator_row()], versions={"torch": v}) for v in ("2.13.0", "2.12.0", "2.13.0")]
    assert spool_fold.fold(files).versions == {"torch": "2.12.0, 2.13.0"}


rows = st.builds(
    lambda host, tokens, calls, share, ns, one_in, dropped: operator_row(
        host=host,
        axes=records.canonical_json({"tokens": tokens, "hidden": 8}).decode(),
        calls=calls,
        timed_calls=int(calls * share),
        timed_ns=ns,
        one_in=one_in,
        dropped=dropped,
    ),
    st.sampled_from("abc"),
    st.integers(1, 3),
    st.integers(0, 1000),
    st.floats(0, 1),
    st.integers(0, 10**6),
    st.integers(0, 20),
    st.integers(0, 3),
)
requests = st.builds(
    lambda prompt, generated, cached, weight, dropped, drafts, accepted: request_row(
        prompt,
        generated,
        cached_tokens=min(prompt, cached),
        weight=weight,
        dropped=dropped,
        drafts=drafts,
        accepted=json.dumps(sorted((min(drafts, count) for count in accepted), reverse=True)),
    ),
    st.integers(0, 5000),
    st.integers(0, 500),
    st.integers(0, 5000),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 9),
    st.lists(st.integers(0, 9), max_size=3),
)
files = st.lists(
    st.one_of(
        st.lists(rows, min_size=1, max_size=4).map(spool_file),
        st.lists(requests, min_size=1, max_size=4).map(lambda r: spool_file(r, "requests")),
    ),
    min_size=1,
    max_size=6,
)


def enumerated(tallies: list[Tally]) -> list[tuple[str, Tally]]:
    return [(f"part {number}", one) for number, one in enumerate(tallies)]


@settings(deadline=None, max_examples=40)
@given(files, st.integers(0, 100), st.integers(0, 6))
def test_order_and_grouping_of_files_do_not_matter(parts: list[tuple[str, bytes]], seed: int, cut: int) -> None:
    expected = spool_fold.fold(parts)
    shuffled = parts[:]
    random.Random(seed).shuffle(shuffled)
    assert spool_fold.fold(shuffled) == expected
    tallies = [spool_fold.tally(*part) for part in shuffled]
    halves = [total(enumerated(half)) for half in (tallies[:cut], tallies[cut:]) if half]
    grouped = total(enumerated(halves))
    assert grouped.profile() == expected
    assert sum(w.calls for w in expected.workloads) == sum(c.calls for c in grouped.patterns.values())
    assert total(enumerated(tallies)).profile() == expected, "adding has changed what was added"


def _without(column: str) -> tuple[str, bytes]:
    name, content = spool_file([operator_row()])
    return name, _parquet(parquet.read_table(io.BytesIO(content)).drop_columns([column]))


def _with_null(column: str) -> tuple[str, bytes]:
    return spool_file([operator_row(**{column: None})])


def _retyped() -> tuple[str, bytes]:
    name, content = spool_file([operator_row()])
    table = parquet.read_table(io.BytesIO(content))
    position = table.column_names.index("calls")
    return name, _parquet(table.set_column(position, "calls", table.column("calls").cast("double")))


def _bare() -> tuple[str, bytes]:
    name, content = spool_file([operator_row()])
    return name, _parquet(parquet.read_table(io.BytesIO(content)).replace_schema_metadata({}))


MALFORMED: dict[str, tuple[Callable[[], tuple[str, bytes]], str]] = {
    "empty": (lambda: (f"{FOLDER}/operators/x.parquet", b""), "not a Parquet file"),
    "text": (lambda: (f"{FOLDER}/operators/x.parquet", b"a,b\n1,2\n"), "not a Parquet file"),
    "truncated": (lambda: (f"{FOLDER}/operators/x.parquet", spool_file([operator_row()])[1][:-20]), "not a Parquet"),
    "other kind": (lambda: (f"{FOLDER}/spans/x.parquet", spool_file([operator_row()])[1]), "folder 'spans'"),
    "no folder": (lambda: ("x.parquet", spool_file([operator_row()])[1]), "operators/, requests/, sequences/, steps/"),
    "column missing": (lambda: _without("timed_ns"), "no column 'timed_ns'"),
    "null": (lambda: _with_null("calls"), "'calls'"),
    "column type": (_retyped, "'calls' is double"),
    "no metadata": (_bare, "gristmill.fleet"),
    "no rows": (lambda: spool_file([]), "no row"),
    "negative": (lambda: spool_file([operator_row(calls=-1, timed_calls=-2)]), "row 0"),
    "negative weight": (lambda: spool_file([operator_row(one_in=-1)]), "one_in=-1"),
    "more timed than called": (lambda: spool_file([operator_row(calls=1, timed_calls=2, one_in=0)]), "timed_calls <="),
    "axes no JSON": (lambda: spool_file([operator_row(axes="{tokens: 4}")]), "row 0, axes"),
    "axes a list": (lambda: spool_file([operator_row(axes="[4, 8]")]), "row 0, axes"),
    "extent a string": (lambda: spool_file([operator_row(axes='{"tokens": "4"}')]), "row 0, axes"),
    "layouts": (lambda: spool_file([operator_row(layouts='[{"shape": [4]}]')]), "row 0, layouts"),
    "second row": (lambda: spool_file([operator_row(), operator_row(layouts="7")]), "row 1, layouts"),
    "window": (lambda: spool_file([operator_row(window_end_ns=1)]), "start before the end"),
    "tokens": (lambda: spool_file([request_row(-5, 1)], "requests"), "prompt_tokens"),
    "cached": (lambda: spool_file([request_row(5, 1, cached_tokens=6)], "requests"), "cached_tokens"),
    "weightless": (lambda: spool_file([request_row(5, 1, weight=0)], "requests"), "weight"),
    "accepted no list": (lambda: spool_file([request_row(5, 1, accepted="{}")], "requests"), "accepted"),
    "accepted rises": (lambda: spool_file([request_row(5, 1, drafts=3, accepted="[1,2]")], "requests"), "never rises"),
    "accepted negative": (lambda: spool_file([request_row(5, 1, accepted="[-1]")], "requests"), "never rises"),
    "other source": (lambda: spool_file([operator_row()], fleet="batch"), "batch/llama/cpu"),
}


HOSTILE: dict[str, Row] = {
    "an axis that no text can hold": {"axes": '{"tokens": 4, "\\ud800": 8}'},
    "an element type that no text can hold": {"layouts": '[{"shape":[4],"strides":[1],"dtype":"\\ud800"}]'},
    "an extent beyond 64 bits": {"axes": '{"tokens": 4, "hidden": 1' + "0" * 40 + "}"},
    "an operator that draws on terminals": {"operator": "norm\x1b[31m"},
    "an operator of two lines": {"operator": "rms_norm\n"},
    "an operator that is a page": {"operator": "<script>alert(1)</script>"},
    "no dtype": {"dtype": ""},
    "a time that nobody has": {"timed_ns": (1 << 63) - 1, "one_in": 17},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_one_host_cannot_write_what_no_profile_can_keep(case: str) -> None:
    with pytest.raises(SpoolObjectError, match=r"operators/.*row 1"):
        spool_fold.fold([spool_file([operator_row(), operator_row(**HOSTILE[case])])])
    with pytest.raises(SpoolObjectError, match="versions"):
        spool_fold.fold([spool_file([operator_row()], versions={"torch": "\ud800"})])


def test_the_most_that_hosts_can_count_is_kept_and_read_again() -> None:
    most = operator_row(calls=(1 << 63) - 1, timed_calls=(1 << 63) - 1, timed_ns=(1 << 63) - 1, one_in=0)
    profile = spool_fold.fold([spool_file([most]), spool_file([most])])
    kept = parse(records.canonical_json(profile), "profile")
    assert kept == profile and sum(sketch.from_record(kept.sketch).counts.values()) == 2 * most["calls"]
    assert not drift(kept, profile).exceeds


@pytest.mark.parametrize(
    "text",
    [
        '[{"dtype":"float32","shape":[4,8],"strides":[8,1]}]',
        '[{"strides": [8, 1], "shape": [4, 8], "dtype": "float32"}]',
        "[]",
    ],
)
def test_layouts_are_read_as_records_are(text: str) -> None:
    slow = records.parse(tuple[TensorLayout, ...], text, "list")
    profile = spool_fold.fold([spool_file([operator_row(layouts=text)])])
    assert profile.workloads[0].inputs == slow
    assert records.canonical_json(profile.workloads[0].inputs) == records.canonical_json(slow)


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_object_is_named_with_its_fault(case: str) -> None:
    make, fault = MALFORMED[case]
    name, content = make()
    with pytest.raises(SpoolObjectError) as caught:
        spool_fold.fold([spool_file([operator_row()]), (name, content)])
    message = str(caught.value)
    assert name in message
    assert fault in message
    assert "\n" not in message


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 5000), st.integers(0, 255))
def test_a_flipped_byte_is_an_error_or_a_tally_never_a_crash(position: int, value: int) -> None:
    name, content = spool_file([operator_row()])
    spoiled = bytearray(content)
    spoiled[position % len(spoiled)] = value
    try:
        spool_fold.tally(name, bytes(spoiled)).profile()
    except SpoolObjectError as error:
        assert name in str(error)


def test_no_object_is_an_empty_profile() -> None:
    with pytest.raises(EmptyProfileError):
        spool_fold.fold([])


def test_what_a_host_spools_is_what_is_folded(tmp_path: Path) -> None:
    """The writer and the reader of the spool, through a store, on samples of a real call."""
    norm = catalogue.operator("rms_norm")
    site = Site(0, "rms_norm", torch.float32, {"hidden": 8}, (1e-6,), norm.baselines["eager"])
    sampler = Sampler(period=10)
    cell = sampler.cell(site, 4, (torch.ones(4, 16)[:, :8], torch.ones(8)))
    cell.calls, cell.timed_calls, cell.timed_ns = 40, 4, 400
    store = DirectoryStore(tmp_path / "store")
    spool = Spool(store, Identity("chat", "llama", "cpu", {"torch": "2.13.0"}), sampler, tmp_path / "waiting")
    for prompt_tokens in (10, 20, 30):
        spool.add_request(prompt_tokens, 5, 1)
    keys = spool.flush().keys
    profile = spool_fold.fold((key, read(store, key)) for key in keys)
    assert profile.requests.prompt_tokens.p50 == 20
    (workload,) = profile.workloads
    assert (workload.calls, workload.time_ns) == (40, 4000)
    assert workload.inputs[0].strides == (16, 1)
    inputs.check_workload(norm, workload)


WIDE_TH = torch.ones(4, 32)
CAPTURED_TH = {
    "slice of rows": WIDE_TH[:, :8],
    "every second column": WIDE_TH[:, :16:2],
    "transposed": torch.ones(8, 4).T,
    "one row for all": torch.ones(1, 8).expand(4, 8),
    "one value for a row": torch.ones(4, 1).expand(4, 8),
}


@pytest.mark.parametrize("captured", CAPTURED_TH)
def test_a_layout_goes_from_the_host_to_the_judge_s_inputs_unchanged(captured: str, tmp_path: Path) -> None:
    norm = catalogue.operator("rms_norm")
    x_TH, weight_H = CAPTURED_TH[captured], torch.ones(16)[::2]
    sampler = Sampler()
    site = Site(0, "rms_norm", torch.float32, {"hidden": 8}, (1e-6,), norm.baselines["eager"])
    sampler.cell(site, 4, (x_TH, weight_H)).calls = 3
    store = DirectoryStore(tmp_path / "store")
    spool = Spool(store, Identity("chat", "llama", "cpu", {"torch": "2.13.0"}), sampler, tmp_path / "waiting")
    profile = spool_fold.fold((key, read(store, key)) for key in spool.flush().keys)
    profile = records.parse(TrafficProfile, records.canonical_json(profile), "profile")
    (workload,) = profile.of("rms_norm", "float32")
    tensors = inputs.materialise(norm, workload, "traffic", torch.Generator().manual_seed(0))
    assert [tensor.stride() for tensor in tensors] == [x_TH.stride(), weight_H.stride()]
    neighbours = inputs.held_out(norm, [workload], random.Random(0))
    assert neighbours
    for neighbour in neighbours:
        assert [0 in tensor.strides for tensor in neighbour.inputs] == [0 in x_TH.stride(), False]
        assert neighbour.inputs[1].strides == (2,)
        assert neighbour.inputs[0].inner_contiguous == (x_TH.stride(1) == 1)


def test_a_call_that_no_kernel_can_serve_is_counted_but_not_searched_for() -> None:
    """A strided tensor of three dimensions: hosts fold the leading dimensions of dense ones only."""
    batched = [{"shape": [2, 2, 8], "strides": [64, 16, 1], "dtype": "float32"}, dense((8,), "float32")]
    layouts = records.canonical_json(batched).decode()
    profile = spool_fold.fold([spool_file([operator_row(), operator_row(layouts=layouts)])])
    assert len(profile.workloads) == 2
    (workload,) = profile.of("rms_norm", "float32")
    assert workload.inputs[0] == dense((4, 8), "float32")
