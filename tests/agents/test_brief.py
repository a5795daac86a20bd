"""Briefs refuse what cannot be searched, and weigh workloads by what is known."""

from __future__ import annotations

import dataclasses

import pytest

from agents.brief import Brief
from agents.errors import BriefError
from gristmill import records
from gristmill.hardware import Hardware
from gristmill.workload import Workload, dense

HARDWARE = Hardware("key", "test", 2, ())


def softmax(rows: int, calls: int = 0, time_ns: int = 0) -> Workload:
    layouts = (dense((rows, 8), "float32"),)
    return Workload("softmax", "float32", {"rows": rows, "columns": 8}, layouts, calls, time_ns)


def brief_for(*workloads: Workload) -> Brief:
    return Brief("softmax", "float32", workloads, HARDWARE, 2, 20.0, 100.0)


@pytest.mark.parametrize(
    ("workloads", "shares"),
    [
        ((softmax(1, 90, 100), softmax(2, 10, 300)), (0.25, 0.75)),
        ((softmax(1, 90), softmax(2, 10)), (0.9, 0.1)),
        ((softmax(1), softmax(2)), (0.5, 0.5)),
    ],
)
def test_weights_are_time_then_calls_then_even(workloads: tuple[Workload, ...], shares: tuple[float, ...]) -> None:
    brief = brief_for(*workloads)
    assert tuple(map(brief.weight, workloads)) == pytest.approx(shares)


def test_no_workloads() -> None:
    with pytest.raises(BriefError, match="no workloads; capture traffic first"):
        brief_for()


def test_foreign_workloads() -> None:
    with pytest.raises(BriefError, match="belongs to another search"):
        brief_for(softmax(1), dataclasses.replace(softmax(2), dtype="bfloat16"))


def test_a_brief_crosses_a_file() -> None:
    brief = brief_for(softmax(1, 2, 3))
    assert records.parse(Brief, records.canonical_json(brief)) == brief
