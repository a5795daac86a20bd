"""Tables for a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cli.table import compact_table


def test_numbers_to_the_right_words_to_the_left() -> None:
    rows = [("rms_norm", 9.128, "1 to 64"), ("skinny_linear", None, "1 to 8")]
    assert compact_table(rows, ("operator", "ratio", "tokens")).splitlines() == [
        "operator       ratio  tokens",
        "-------------  -----  -------",
        "rms_norm        9.13  1 to 64",
        "skinny_linear      -  1 to 8",
    ]


def test_no_rows_leave_the_headers() -> None:
    assert compact_table([], ("a", "bc")) == "a  bc\n-  --"


WORDS = st.text(st.characters(codec="ascii", exclude_categories=("C",))).map("a".__add__)


@given(st.lists(st.tuples(WORDS, st.integers()), max_size=5))
def test_every_cell_stands_in_its_column(rows: list[tuple[str, int]]) -> None:
    lines = compact_table(rows, ("name", "count")).splitlines()
    width = max([4, *(len(name) for name, _ in rows)])
    assert len(lines) == len(rows) + 2
    for line, (name, count) in zip(lines[2:], rows, strict=True):
        assert line[:width].rstrip() == name.rstrip()
        assert line[width:].strip() == str(count)
