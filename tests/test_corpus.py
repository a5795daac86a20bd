"""Headers of corpus programs: what they say is read exactly, and what they cannot say is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.domain import AxisRange, Layout
from kernels import catalogue
from kernels.candidate import Language
from kernels.verdict import Status
from tests.corpus import DEFAULT_AXES, CorpusError, programs, read

MINIMAL = ("trick: does nothing", "family: semantics", "operator: rms_norm", "status: incorrect")


def written(folder: Path, *lines: str, name: str = "program.cpp", body: str = "\nint x;\n") -> Path:
    path = folder / name
    comment = "//" if name.endswith(".cpp") else "#"
    path.write_text("".join(f"{comment} {line}\n" for line in lines) + body)
    return path


def test_a_minimal_header(tmp_path):
    path = written(tmp_path, *MINIMAL)
    program = read(path)
    assert program.name == f"{tmp_path.name}/program.cpp"
    assert (program.trick, program.family, program.statuses) == ("does nothing", "semantics", (Status.INCORRECT,))
    assert (program.dtype, program.layout, program.ranges, program.flags) == ("float32", Layout.CONTIGUOUS, (), ())
    assert not (program.setup or program.edges or program.gpu) and program.deadline_s is None
    assert [w.axes for w in program.shapes()] == [{"tokens": t, "hidden": 512} for t in (1, 6)]
    candidate = program.candidate()
    assert candidate.files == {"main.cpp": path.read_text()} and candidate.language is Language.CPP


def test_every_key(tmp_path):
    lines = (
        *MINIMAL[:3],
        "status: incorrect cheated",
        "dtype: bfloat16",
        "axes: tokens=4 hidden=64 x_TH:128,1",
        "held_out: tokens=5 hidden=64; tokens=6 hidden=64",
        "layout: inner_contiguous",
        "ranges: tokens=1..64 hidden=64..4096/64",
        "flags: -O2 -ffast-math",
        "setup: yes",
        "edges: yes",
        "deadline: 0.5",
        "gpu: yes",
    )
    program = read(written(tmp_path, *lines, name="program.py"))
    assert program.statuses == (Status.INCORRECT, Status.CHEATED)
    (strided,) = program.shapes()
    assert strided.inputs[0].strides == (128, 1) and strided.inputs[1].contiguous and strided.dtype == "bfloat16"
    assert [w.axes["tokens"] for w in program.held_out] == [5, 6]
    assert program.ranges == (AxisRange("tokens", 1, 64), AxisRange("hidden", 64, 4096, 64))
    assert program.flags == ("-O2", "-ffast-math") and program.deadline_s == 0.5
    assert program.setup and program.edges and program.gpu
    candidate = program.candidate()
    assert candidate.language is Language.PYTHON and candidate.needs_setup
    assert candidate.domain.admits(strided)


def test_an_honest_program_may_be_faster_or_slower(tmp_path):
    program = read(written(tmp_path, "trick: plain loops", "family: style", "operator: softmax"))
    assert set(program.statuses) == {Status.FASTER, Status.SLOWER}


def test_only_programs_are_found_in_order(tmp_path):
    (tmp_path / "a").mkdir()
    written(tmp_path / "a", *MINIMAL, name="b.py")
    written(tmp_path / "a", *MINIMAL, name="a.cpp")
    written(tmp_path, *MINIMAL, name="test_evil.py")
    assert [program.name for program in programs(tmp_path)] == ["a/a.cpp", "a/b.py"]


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (("trik: x",), 1, "unknown key 'trik'"),
        (("trick: x", "trick: y"), 2, "twice"),
        (("trick: x", "just words"), 2, "key: value"),
        (("trick: x", "family:"), 2, "key: value"),
        ((), 1, "no key 'trick'"),
        (MINIMAL[:2], 1, "no key 'operator'"),
        (MINIMAL[:3], 1, "no key 'status'"),
        ((*MINIMAL[:3], "status: wrong"), 4, "'wrong' is no status"),
        ((*MINIMAL[:1], "family: charm", *MINIMAL[2:]), 2, "family is 'charm'"),
        ((*MINIMAL[:2], "operator: fft", MINIMAL[3]), 3, "operator is 'fft'"),
        ((*MINIMAL, "dtype: int4"), 5, "dtype is 'int4'"),
        ((*MINIMAL, "axes: tokens=1"), 5, "no workload"),
        ((*MINIMAL, "axes: tokens=x hidden=1"), 5, "no workload"),
        ((*MINIMAL, "axes: tokens=2 hidden=8 y:8,1"), 5, "no input y"),
        ((*MINIMAL, "axes: tokens=2 hidden=8 x_TH:4,1"), 5, "share memory"),
        ((*MINIMAL, "layout: sideways"), 5, "layout is 'sideways'"),
        ((*MINIMAL, "ranges: tokens=1-4"), 5, "no range"),
        ((*MINIMAL, "ranges: rows=1..4"), 5, "no range"),
        ((*MINIMAL, "setup: perhaps"), 5, "setup is 'perhaps'"),
        ((*MINIMAL, "deadline: soon"), 5, "no number"),
    ],
)
@pytest.mark.parametrize("name", ["program.cpp", "program.py"])
def test_what_cannot_be_read_is_named_with_file_and_line(tmp_path, lines, line, words, name):
    with pytest.raises(CorpusError) as caught:
        read(written(tmp_path, *lines, name=name))
    assert f"{name}:{line}: " in str(caught.value) and words in str(caught.value)


def test_defaults_cover_the_catalogue(tmp_path):
    assert set(DEFAULT_AXES) == set(catalogue.NAMES)
    for operator in DEFAULT_AXES:
        path = written(tmp_path, *MINIMAL[:2], f"operator: {operator}", MINIMAL[3])
        assert len(read(path).shapes()) == 2
