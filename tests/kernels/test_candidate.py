"""Candidates: identity covers what is built and where it may run; what cannot be a candidate is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.domain import AxisRange, Domain
from kernels.candidate import MAX_SOURCE_BYTES, Candidate, Language, Origin
from kernels.errors import CandidateError

DOMAIN = Domain("rms_norm", "float32")


def candidate(**changes: object) -> Candidate:
    made = Candidate("rms_norm", Language.CPP, {"main.cpp": "int x;"}, DOMAIN, Origin("person"))
    return replace(made, **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "softmax"},
        {"files": {"main.cpp": "int y;"}},
        {"files": {"main.cpp": "int x;", "more.h": ""}},
        {"domain": Domain("rms_norm", "float32", (AxisRange("tokens", 1, 2),))},
        {"needs_setup": True},
        {"compile_flags": ("-O2",)},
    ],
)
def test_what_is_built_and_where_it_runs_is_its_identity(change):
    assert candidate(**change).digest != candidate().digest


def test_who_wrote_it_is_not():
    assert candidate(origin=Origin("another", "pattern", {"N": "1"}, ("p",))).digest == candidate().digest


def test_it_survives_a_file():
    one = candidate(origin=Origin("a", "b", {"c": "d"}, ("e",)))
    assert records.parse(Candidate, records.canonical_json(one)) == one


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.h", "a/../../up.h", "", "nul\0.h"])
def test_paths_stay_in_its_folder(path):
    with pytest.raises(CandidateError, match="leaves the candidate's folder"):
        candidate(files={"main.cpp": "", path: ""})


def test_the_main_file_must_be_there():
    with pytest.raises(CandidateError, match=r"no file main\.cpp, found kernel\.cpp"):
        candidate(files={"kernel.cpp": ""})
    with pytest.raises(CandidateError, match=r"no file main\.py"):
        candidate(language=Language.PYTHON)


def test_a_megabyte_is_enough():
    with pytest.raises(CandidateError, match="exceed"):
        candidate(files={"main.cpp": "x" * (MAX_SOURCE_BYTES + 1)})


@given(st.text(max_size=20))
def test_any_accepted_name_stays_below_the_folder(path):
    try:
        made = candidate(files={"main.cpp": "", path: ""})
    except CandidateError:
        return
    for name in made.files:
        assert PurePosixPath("/folder", name).is_relative_to("/folder")
        assert ".." not in name.split("/")
