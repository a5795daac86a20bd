"""Numbers on a command line that nothing could count with are refused, and what is sensible is taken."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from cli import amount


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((amount.positive, text) for text in ("0", "-1", "nan", "inf", "1e300", "1e-300", "", "x")),
        *((amount.not_negative, text) for text in ("-1e-9", "nan", "inf", "1e300")),
        *((amount.days, text) for text in ("0", "1e300", "36501")),
    ],
)
def test_what_is_none_is_refused(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        kind(text)


def test_the_most_that_is_taken_can_be_counted_with() -> None:
    assert datetime.now(UTC) - timedelta(days=amount.days(f"{amount.MOST_DAYS}")) > datetime(1900, 1, 1, tzinfo=UTC)
    assert round(amount.positive(f"{amount.LARGEST}") * 3600 * 10**9) < 1 << 96
    assert amount.not_negative("0") == 0 and amount.positive("0.5") == 0.5
