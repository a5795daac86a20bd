"""Elements come out as `json.loads` would have them, however the text is cut, and damage is one line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import TraceError
from kernels.imports import json_stream
from kernels.imports.json_stream import elements

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
cuts = st.lists(st.integers(0, 400), max_size=12)


def cut(text: str, at: list[int]) -> Iterator[str]:
    places = [0, *sorted(min(place, len(text)) for place in at), len(text)]
    return iter([text[a:b] for a, b in itertools.pairwise(places)])


@given(st.lists(values, max_size=5), st.dictionaries(st.text(max_size=4), values, max_size=3), cuts, st.booleans())
def test_elements_of_a_document_however_it_is_cut(
    wanted: list[Any], beside: dict[str, Any], at: list[int], indented: bool
) -> None:
    beside.pop("events", None)
    document = {**beside, "events": wanted, "after": 7}
    text = json.dumps(document, indent=2 if indented else None, ensure_ascii=False)
    told: dict[str, Any] = {}
    assert list(elements(cut(text, at), "t", "events", told.__setitem__)) == wanted
    assert told == {key: value for key, value in document.items() if not isinstance(value, list | dict)}


@given(st.lists(st.lists(values, max_size=3), max_size=4), cuts)
def test_documents_that_follow_one_another(documents: list[list[Any]], at: list[int]) -> None:
    text = "\n".join(json.dumps(one if number % 2 else {"events": one}) for number, one in enumerate(documents))
    assert list(elements(cut(text, at), "t", "events")) == [value for one in documents for value in one]


@given(st.text(max_size=60), cuts)
def test_garbage_is_one_line_or_json(text: str, at: list[int]) -> None:
    try:
        list(elements(cut(text, at), "t", "events"))
    except TraceError as error:
        assert str(error).startswith("trace t: character ")
        assert "\n" not in str(error)


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_a_spoiled_character_is_one_line_or_other_json(place: int, character: str) -> None:
    text = json.dumps({"a": [1, {"b": 2.5}], "events": [{"x": [1, 2, 3]}, "y", 7.25], "c": None})
    place %= len(text)
    try:
        list(elements(iter([text[:place] + character + text[place + 1 :]]), "t", "events"))
    except TraceError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"events": [1, 2', "expected ','"),
        ('{"events": [1 2]}', "expected ','"),
        ('{"events": {}}', "an array under 'events'"),
        ('{"events": [NaN]}', "NaN"),
        ('{"events" [1]}', "expected ':'"),
        ("{events: [1]}", "expected a key"),
        ("7", "an object or an array"),
        ('{"events": ["unterminated]}', "expected JSON"),
        ('{"events": [' + "9" * 5000 + "]}", "expected JSON"),
        ("[" + "[" * 100_000, "expected JSON"),
    ],
)
def test_damage_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        list(elements(iter([text]), "t", "events"))
    assert said in str(caught.value)


def test_memory_is_bounded_by_the_largest_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_VALUE_CHARACTERS", 100)
    endless = itertools.chain(['["'], itertools.repeat("x" * 90))
    with pytest.raises(TraceError, match="at most 100 characters"):
        next(elements(endless, "t", "events"))
