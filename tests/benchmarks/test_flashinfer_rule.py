"""The side-by-side counts what it should, and FlashInfer-Bench's evaluator really judges what ran in our sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import Outcome as Verdict
from benchmarks.flashinfer_rule import Bench, Outcome, can_be_told, dense_workloads, figures
from tests.corpus import Program, read

HEADERS = {"honest": "# trick: doubles nothing\n# family: style\n", "evil": "# trick: lies\n# family: semantics\n"}
SOFTMAX = "# operator: softmax\n# axes: rows=2 columns=8; rows=2 columns=8 x_RC:1,2\n# layout: any\n"


@pytest.fixture
def program(tmp_path: Path):
    def make(kind: str, line: str, status: str = "incorrect") -> Program:
        path = tmp_path / f"{kind}{len(list(tmp_path.iterdir()))}.py"
        wanted = f"# status: {status}\n" if kind == "evil" else ""
        path.write_text(f"{HEADERS[kind]}{SOFTMAX}{wanted}\nimport torch\n\n\ndef run(x, out):\n    {line}\n")
        return read(path)

    return make


def test_the_rows_are_met_if_the_judge_is_nowhere_worse(program):
    evil, honest = program("evil", "pass"), program("honest", "pass")
    better = [Outcome(evil, ours=False, theirs=True), Outcome(evil, False, False), Outcome(honest, True, False)]
    cheats, rejected = figures(better, "0")
    assert (cheats.measured, cheats.unit, cheats.verdict) == (1.0, "of 2", Verdict.MET) and "2 of 2" in cheats.note
    assert (rejected.measured, rejected.unit, rejected.verdict) == (1.0, "of 1", Verdict.MET)
    worse = [Outcome(evil, ours=True, theirs=False), Outcome(honest, ours=False, theirs=True)]
    assert [row.verdict for row in figures(worse, "0")] == [Verdict.MISSED] * 2


def test_programs_whose_answers_are_right_are_left_out(program):
    assert not can_be_told(program("evil", "pass", status="slower"))
    assert can_be_told(program("evil", "pass")) and can_be_told(program("honest", "pass"))


def test_their_workloads_are_dense_and_none_comes_twice(program):
    (only,) = dense_workloads(program("honest", "pass"))
    assert all(layout.contiguous for layout in only.inputs)


def test_their_evaluator_judges_what_ran_in_the_sandbox(program, tmp_path_factory):
    pytest.importorskip("flashinfer_bench")
    with Bench(tmp_path_factory.mktemp("bench"), threads=1) as bench:
        assert bench.accepts(program("honest", "torch.softmax(x, -1, out=out)"))
        assert bench.accepts(program("evil", "out.copy_(torch.softmax(x, -1) + 0.009)")), "within 1e-2"
        assert not bench.accepts(program("evil", "out.copy_(torch.softmax(x, -1) + 0.05)"))
        assert not bench.accepts(program("evil", "out.fill_(float('nan'))"))
        assert not bench.accepts(program("evil", "raise ValueError"))
