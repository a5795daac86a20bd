"""Spaces hold what they promise, for every pattern on every kind of machine."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.errors import PatternError
from agents.parameter_space import Parameter, ParameterSpace
from agents.pattern_source import SOURCES, PatternSource, Target, render_parameters
from agents.patterns import catalogue as patterns_catalogue
from agents.sources import catalogue
from gristmill.domain import AxisRange
from gristmill.hardware import Hardware
from kernels import catalogue as operators

FLAGS = [(), ("asimd",), ("avx2", "fma"), ("avx2", "fma", "avx512f", "avx512_bf16")]

patterns = st.sampled_from(catalogue.SOURCES)


@st.composite
def targets(draw: st.DrawFn, pattern: PatternSource) -> Target:
    low, high = draw(st.sampled_from(pattern.specialists))
    hardware = Hardware("key", "test", draw(st.integers(1, 200)), draw(st.sampled_from(FLAGS)))
    dtype = draw(st.sampled_from(pattern.dtypes))
    return Target(hardware, hardware.cores, dtype, AxisRange(pattern.varying_axis, low, high))


@given(st.data())
def test_defaults_and_samples_lie_in_the_space(data: st.DataObject) -> None:
    pattern = data.draw(patterns)
    target = data.draw(targets(pattern))
    space = pattern.space(target)
    defaults = pattern.defaults(target)
    assert defaults
    for values in (*defaults, space.sample(random.Random(data.draw(st.integers())))):
        space.check(values)
        candidate = pattern.candidate(target, values, "test")
        assert candidate.domain.ranges == (target.tokens,)
        assert candidate.needs_setup == pattern.needs_setup
        assert patterns_catalogue.pattern(candidate.origin.pattern).name == candidate.origin.pattern


@given(st.data())
def test_a_value_outside_is_refused(data: st.DataObject) -> None:
    pattern = data.draw(patterns)
    target = data.draw(targets(pattern))
    values = dict(pattern.defaults(target)[0])
    name = data.draw(st.sampled_from(sorted(values)))
    broken = data.draw(st.sampled_from([{**values, name: -1}, {**values, "UNKNOWN": 1}, _without(values, name)]))
    with pytest.raises(PatternError, match=r"parameter"):
        pattern.candidate(target, broken, "test")


def _without(values: dict[str, int], name: str) -> dict[str, int]:
    return {key: value for key, value in values.items() if key != name}


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), min_size=1, max_size=4), st.data())
@settings(max_examples=50)
def test_all_is_what_samples_come_from(choices: list[list[int]], data: st.DataObject) -> None:
    limit = data.draw(st.integers(sum(map(min, choices)), 40))
    parameters = [Parameter(f"p{i}", tuple(c)) for i, c in enumerate(choices)]
    space = ParameterSpace(tuple(parameters), lambda values: sum(values.values()) <= limit)
    combinations = [tuple(values.values()) for values in space.all()]
    assert set(combinations) == {c for c in itertools.product(*choices) if sum(c) <= limit}
    assert len(combinations) == len(set(combinations))
    assert tuple(space.sample(random.Random(0)).values()) in combinations


def test_a_parameter_that_does_not_matter_takes_its_first_choice() -> None:
    space = ParameterSpace(
        (Parameter("threads", (1, 2)), Parameter("grain", (8, 16), when=lambda values: values["threads"] > 1))
    )
    assert list(space.all()) == [
        {"threads": 1, "grain": 8},
        {"threads": 2, "grain": 8},
        {"threads": 2, "grain": 16},
    ]


@pytest.mark.parametrize("pattern", catalogue.SOURCES, ids=lambda p: f"{p.operator}-{p.name}")
def test_patterns_fit_their_operator(pattern: PatternSource) -> None:
    definition = operators.operator(pattern.operator)
    assert pattern.varying_axis in definition.axes
    assert pattern.varying_axis not in definition.constant_axes
    for name in (pattern.source, *pattern.headers):
        assert (SOURCES / name).is_file()
    ends = [high for _, high in pattern.specialists]
    assert [low for low, _ in pattern.specialists] == [1, *(high + 1 for high in ends[:-1])]


@pytest.mark.parametrize("name", operators.NAMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_operator_has_a_pattern(name: str, dtype: str) -> None:
    assert catalogue.sources_for(name, dtype)


def test_unknown_operators_are_refused() -> None:
    with pytest.raises(PatternError, match="no pattern writes attention in float32"):
        catalogue.sources_for("attention", "float32")


def test_parameters_become_constants() -> None:
    target = Target(Hardware("key", "test", 2, ()), 2, "bfloat16", AxisRange("tokens", 5, 8))
    text = render_parameters(target, {"LANES": 4, "ROWS": 2})
    for line in ("DTYPE = GM_BFLOAT16", "MIN_TOKENS = 5", "MAX_TOKENS = 8", "LANES = 4", "ROWS = 2"):
        assert f"constexpr int {line};" in text
