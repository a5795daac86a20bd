"""Strict JSON: everything that encodes decodes to itself; everything else is refused with its place."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.errors import MalformedRecordError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Leaf:
    name: str
    count: int
    share: float
    sure: bool


@dataclass(frozen=True)
class Tree:
    colour: Colour
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]
    facts: dict[str, float]
    maybe: Leaf | None = None
    notes: tuple[str, ...] = field(default=())


finite = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.builds(Leaf, st.text(), st.integers(), finite, st.booleans())
trees = st.builds(
    Tree,
    st.sampled_from(Colour),
    st.lists(leaves, max_size=3).map(tuple),
    st.tuples(st.integers(), st.text()),
    st.dictionaries(st.text(), finite, max_size=3),
    st.none() | leaves,
    st.lists(st.text(), max_size=3).map(tuple),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(trees)
def test_what_is_written_is_read_back(tree):
    content = records.canonical_json(tree)
    assert records.parse(Tree, content) == tree
    assert records.canonical_json(records.parse(Tree, content)) == content


@given(trees)
def test_the_digest_does_not_depend_on_the_order_of_keys(tree):
    shuffled = json.loads(records.canonical_json(tree))
    reordered = {key: shuffled[key] for key in reversed(shuffled)}
    assert records.digest(reordered) == records.digest(tree)


@given(json_values)
def test_any_json_is_either_a_tree_or_one_clear_refusal(value):
    try:
        tree = records.decode(Tree, value)
    except MalformedRecordError as error:
        assert str(error).startswith("Tree")
        assert "\n" not in str(error)
    else:
        assert records.decode(Tree, json.loads(records.canonical_json(tree))) == tree


@given(st.binary(max_size=64))
def test_any_bytes_are_either_a_leaf_or_refused(content):
    with pytest.raises(MalformedRecordError):
        records.parse(Leaf, content, "leaf.json")


GOOD = {"name": "a", "count": 1, "share": 0.5, "sure": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": "1"}, "leaf.count: found '1', expected an integer"),
        ({"count": True}, "leaf.count: found True, expected an integer"),
        ({"count": 1.0}, "leaf.count: found 1.0, expected an integer"),
        ({"sure": 1}, "leaf.sure: found 1, expected true or false"),
        ({"share": math.inf}, "leaf.share: found inf, expected a finite number"),
        ({"share": None}, "leaf.share: found None, expected a number"),
        ({"extra": 0}, "leaf: unknown field 'extra', expected name, count, share, sure"),
    ],
)
def test_refusals_name_place_finding_and_expectation(change, message):
    with pytest.raises(MalformedRecordError) as refusal:
        records.decode(Leaf, {**GOOD, **change}, "leaf")
    assert str(refusal.value) == message


def test_a_missing_field_is_named():
    with pytest.raises(MalformedRecordError, match="leaf: field 'sure' is missing"):
        records.decode(Leaf, {key: GOOD[key] for key in ("name", "count", "share")}, "leaf")


def test_the_place_leads_into_lists_and_records():
    tree = {"colour": "red", "leaves": [GOOD, {**GOOD, "name": 7}], "pair": [1, "x"], "facts": {}}
    with pytest.raises(MalformedRecordError, match=r"tree\.leaves\[1\]\.name: found 7"):
        records.decode(Tree, tree, "tree")


def test_an_unknown_choice_names_the_known_ones():
    tree = {"colour": "green", "leaves": [], "pair": [1, "x"], "facts": {}}
    with pytest.raises(MalformedRecordError, match="one of red, blue"):
        records.decode(Tree, tree, "tree")


def test_deep_nesting_is_refused_not_a_crash():
    with pytest.raises(MalformedRecordError):
        records.parse(Tree, b"[" * 100_000, "deep")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_not_written(value):
    with pytest.raises(MalformedRecordError):
        records.canonical_json(Leaf("a", 1, value, True))
