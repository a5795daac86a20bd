"""A fused operator's program says everything that its parts compute, in an order in which nothing waits in vain."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.errors import PatternError
from agents.pattern_source import Target
from agents.sources import catalogue
from agents.sources.fused_program import FORMULAS, program_of
from gristmill.domain import AxisRange
from gristmill.hardware import local_cpu
from kernels import catalogue as operators
from kernels import fusion_plan
from kernels.errors import UnknownOperatorError
from kernels.fusion_plan import Stage

parts = st.sampled_from(sorted(FORMULAS))
plans = (
    st.lists(
        st.builds(Stage, st.lists(parts, min_size=1, max_size=3).map(tuple), st.booleans()), min_size=1, max_size=4
    )
    .map(lambda stages: (*stages[:-1], Stage(stages[-1].operators)))
    .filter(lambda stages: sum(len(stage.operators) for stage in stages) > 1)
)


@settings(deadline=None, max_examples=60)
@given(plans)
def test_whatever_composes_of_these_parts_has_a_program(stages: tuple[Stage, ...]) -> None:
    name = fusion_plan.render(stages)
    try:
        definition = operators.operator(name)
    except UnknownOperatorError:
        with pytest.raises(UnknownOperatorError):
            program_of(name)
        return
    program = program_of(name)
    assert program is not None
    text = program.main()
    for output in definition.outputs:
        product = rf"product_of\(\w+, \w+, [^,]+, {output.name}[,)]"
        written = re.findall(rf"some.store\({output.name}\[row\] \+ i|{product}", text)
        assert len(written) == 1, f"{output.name} is written once, by a row or by a product"
    for spec in definition.inputs:
        assert f"[{definition.inputs.index(spec)}]" in text
    values = re.findall(r"const auto (value_\w+) = (.*);", text)
    for place, (_, formula) in enumerate(values):
        used = re.findall(r"value_\w+", formula)
        assert set(used) <= {known for known, _ in values[:place]}, "asked for before it is there"
    assert text.count("{") == text.count("}") and text.count("(") == text.count(")")
    assert ("KEEP" in text) == program.keeps
    (source,) = catalogue.sources_for(name, "float32")
    target = Target(local_cpu(), 2, "float32", AxisRange(source.varying_axis, 1, 4))
    for values_of in source.defaults(target):
        assert source.candidate(target, values_of, "test").files["main.cpp"] == text


def test_what_has_no_formula_has_no_source() -> None:
    """Heads are apart in a rotary embedding; a language model may write it all the same."""
    assert program_of("rotary_embedding-rotary_embedding") is None
    with pytest.raises(PatternError, match="no pattern writes rotary_embedding-rotary_embedding"):
        catalogue.sources_for("rotary_embedding-rotary_embedding", "float32")


def test_a_kept_value_lies_where_it_is_wanted() -> None:
    """In its own output if it has one, else in that of what is made of it."""
    kept = program_of("residual_add++rms_norm")
    hidden = program_of("residual_add+rms_norm")
    assert kept is not None and hidden is not None
    assert "), residual_out_TH[row])" in kept.main() and "if (!KEEP) some.store(residual_out_TH" in kept.main()
    assert "), out_TH[row])" in hidden.main() and "if (!KEEP)" not in hidden.main()


@pytest.mark.parametrize(
    "name", ["residual_add++rms_norm-softmax", "residual_add+softmax", "residual_add+rms_norm+softmax"]
)
def test_nothing_is_rounded_that_a_softmax_comes_from(name: str) -> None:
    program = program_of(name)
    assert program is not None and not program.keeps


def test_tokens_are_interleaved_once_for_all_that_multiplies_them() -> None:
    program = program_of("skinny_linear-skinny_linear+silu_and_mul+skinny_linear")
    assert program is not None
    assert program.main().count("interleave(") == 2
    assert program.main().count("#pragma omp barrier") == 2
