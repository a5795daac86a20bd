"""Shapes of damage have names; `test_comparer_mutants.py` changes this module everywhere as well."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import damage
from kernels.verdict import Mismatch

BLANK = Mismatch("w", "out", (0,), "", "", "", 0, 0, "")


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda m: m.fill_(True), "all"),
        (lambda m: m.fill_(False), "all"),
        (lambda m: m.flatten()[-3:].fill_(True), "tail"),
        (lambda m: m[2:].fill_(True), "tail"),
        (lambda m: m[1].fill_(True), "rows"),
        (lambda m: m[:, 1].fill_(True), "columns"),
        (lambda m: m[:, 4:].fill_(True), "tail"),
        (lambda m: m[::2].fill_(True), "one row in 2"),
        (lambda m: m[1::2].fill_(True), "one row in 2"),
        (lambda m: (m.fill_(True), m[::2].fill_(False)), "one row in 2"),
        (lambda m: (m.fill_(True), m[::3].fill_(False)), "all but one row in 3"),
        (lambda m: m[:, ::2].fill_(True), "one column in 2"),
        (lambda m: m[:, 2::3].fill_(True), "columns"),
        (lambda m: m[1:6:2].fill_(True), "one row in 2"),
        (lambda m: m[:4:2].fill_(True), "rows"),
        (lambda m: m.flatten()[3::4].fill_(True), "one element in 4"),
        (lambda m: (m[0, 1].fill_(True), m[2, 3].fill_(True)), "scattered"),
        (lambda m: m[:, :2].fill_(True), "columns"),
    ],
)
def test_patterns_have_names(wrong, name):
    mask = torch.zeros(7, 6, dtype=torch.bool)
    wrong(mask)
    assert damage.pattern(mask) == name


def test_nan_is_a_pattern_of_its_own():
    found, wanted = torch.ones(4, 6), torch.ones(4, 6)
    found[1:, 2] = float("nan")
    ratios = torch.where(torch.isnan(found), torch.inf, 0.0)
    options = {"workload": "w", "output": "out", "call": 0, "error_ratio": 1.0}
    assert damage.describe(found, wanted, ratios, ratios > 1, **options).pattern == "nan"
    assert damage.describe(found, wanted, ratios, torch.isnan(found) & False, **options).pattern == "all"
    found[0, 0], ratios[0, 0] = 9.0, 9.0
    assert damage.describe(found, wanted, ratios, ratios > 1, **options).pattern == "scattered"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_counts_and_places_are_those_of_the_mask(rows, columns, data):
    wrong = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns)))
    placed = damage.locate(BLANK, wrong.reshape(rows, 1, columns))
    wrong_RC = wrong.reshape(rows, columns)
    assert (placed.wrong_elements, placed.total_elements) == (int(wrong.sum()), rows * columns)
    assert (placed.wrong_rows, placed.total_rows) == (int(wrong_RC.any(1).sum()), rows)
    assert (placed.wrong_columns, placed.total_columns) == (int(wrong_RC.any(0).sum()), columns)
    assert all(bool(wrong_RC[row].any()) for row in placed.rows) and list(placed.rows) == sorted(placed.rows)
