"""Comments that are taken out of what a model wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import comments
from kernels.candidate import Language


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a // b\nc", "a  \nc"),
        ("a /* b\n */ c", "a   c"),
        ("a // /* b\nc */ d", "a  \nc */ d"),
        ("a /* b // c */ d", "a   d"),
        ('"/*" a // b\nc', '"/*" a  \nc'),
        ("/*/ a", "/*/ a"),
    ],
)
def test_comments_of_cpp(text: str, plain: str) -> None:
    assert comments.without(text, Language.CPP) == plain


def test_comments_of_python() -> None:
    assert comments.without("a # b\nc", Language.PYTHON) == "a  \nc"


@given(st.text(alphabet='/*\n"a'))
def test_none_is_left_that_ends(text: str) -> None:
    plain = comments.without(text, Language.CPP)
    assert "//" not in plain.replace("/*", "")
    assert len(plain) <= len(text) + text.count("/")


def test_marks_without_end_are_looked_for_once() -> None:
    """A second pass from each of them would take hours."""
    text = "/* " * 1_000_000
    assert comments.without(text, Language.CPP) == text
