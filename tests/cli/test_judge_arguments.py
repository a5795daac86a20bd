"""What `./mill judge` makes of its arguments."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.judge import axis_range
from gristmill.domain import AxisRange

extents = st.integers(0, 10**6)


@given(extents, extents, st.integers(1, 64))
def test_a_range_is_read_as_it_is_written(low: int, width: int, step: int) -> None:
    high = low + width
    assert axis_range(f"hidden={low}..{high}/{step}") == AxisRange("hidden", low, high, step)
    assert axis_range(f"hidden={low}..{high}") == AxisRange("hidden", low, high)


@given(st.text(max_size=30))
def test_anything_else_is_refused(text: str) -> None:
    try:
        found = axis_range(text)
    except argparse.ArgumentTypeError:
        return
    assert text.startswith(f"{found.name}=")


@pytest.mark.parametrize("text", ["hidden=9..3", "hidden=1..8/0", "hidden", "=1..2", "hidden=-1..2"])
def test_ranges_that_hold_nothing_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        axis_range(text)
