"""The comparer by itself; `test_comparer_mutants.py` changes it everywhere."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import comparer
from harness.comparer import ErrorFacts, Expected

FACTS = ErrorFacts(largest=1.0, mean=0.25)


def expected(values, dtype=torch.float32):
    exact = torch.tensor([values], dtype=torch.float64)
    return Expected(exact, exact.abs().clamp(min=1e-30), dtype)


def compare(module, found, wanted, facts=FACTS):
    return module.compare(torch.tensor([found], dtype=wanted.dtype), wanted, facts, workload="w", output="o")


def behaviour(module) -> list[object]:
    """What a comparer says about a row of telling cases."""
    values = [1.0, 2.0, -3.0, 0.5, 8.0, 5.0, 7.0, 6.0]
    ulp = torch.finfo(torch.float32).eps
    near = expected(values)
    cases = [
        (values, near),
        ([*values[:7], 6.0 * (1 + 6 * ulp)], near),
        ([*values[:7], 6.0 * (1 + 11 * ulp)], near),
        ([*values[:7], 6.0 * (1 - 11 * ulp)], near),
        ([value * (1 + 6.6 * ulp) for value in values], near),
        ([value * (1 + ulp) for value in values], near),
        ([float("nan"), *values[1:]], near),
        ([float("inf"), *values[1:]], expected([float("inf"), *values[1:]])),
        ([float("-inf"), *values[1:]], expected([float("inf"), *values[1:]])),
        ([float("nan"), *values[1:]], expected([float("nan"), *values[1:]])),
        ([1.0, *values[1:]], expected([float("nan"), *values[1:]])),
        ([0.0] * 8, near),
        ([1e-45, *values[1:]], expected([0.0, *values[1:]])),
    ]
    return [compare(module, found, wanted) is None for found, wanted in cases]


TRUTH = [True, True, False, False, False, True, False, True, False, True, False, False, True]


def test_the_comparer_says_the_truth():
    assert behaviour(comparer) == TRUTH


def test_a_mismatch_says_where_and_how_much():
    wanted = Expected(torch.ones(2, 3, 4, dtype=torch.float64), torch.ones(2, 3, 4, dtype=torch.float64), torch.float32)
    found = torch.ones(2, 3, 4)
    found[1, 2, 1] = 5.0
    mismatch = comparer.compare(found, wanted, FACTS, workload="w", output="out")
    assert mismatch is not None
    assert (mismatch.worst_index, mismatch.found, mismatch.expected) == ((2, 1), "5", "1")
    assert (mismatch.wrong_elements, mismatch.total_elements, mismatch.pattern) == (1, 12, "scattered")
    assert float(mismatch.error_ratio) > 1


FLOATS = st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20)


@settings(max_examples=50, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=20), st.floats(0.0, 8.0))
def test_what_is_exact_is_always_accepted(values, largest):
    wanted = expected(values)
    assert compare(comparer, values, wanted, ErrorFacts(largest, largest / 4)) is None


@settings(max_examples=50, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=20), st.integers(0, 19), st.sampled_from([float("nan"), float("inf")]))
def test_nonfinite_where_finite_is_expected_is_never_accepted(values, position, bad):
    found = list(values)
    found[position % len(values)] = bad
    assert compare(comparer, found, expected(values), ErrorFacts(1e30, 1e30)) is not None


@settings(max_examples=50, deadline=None)
@given(st.lists(FLOATS, min_size=2, max_size=20), st.floats(0.1, 4.0))
def test_a_stricter_yardstick_accepts_no_more(values, largest):
    wanted = expected(values)
    found = (torch.tensor(values, dtype=torch.float64) * (1 + 3e-7)).tolist()
    loose = compare(comparer, found, wanted, ErrorFacts(largest, largest)) is None
    strict = compare(comparer, found, wanted, ErrorFacts(largest / 2, largest / 2)) is None
    assert loose or not strict
