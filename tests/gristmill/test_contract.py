"""The wheel's contracts say what the pipeline's definitions say."""

from __future__ import annotations

import pytest

from gristmill.contract import CONTRACTS
from kernels import catalogue
from kernels.definition import Role


def test_same_operators() -> None:
    assert set(CONTRACTS) == set(catalogue.NAMES)


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_contract_matches_definition(name: str) -> None:
    contract, definition = CONTRACTS[name], catalogue.operator(name)
    assert contract.constant_axes == definition.constant_axes
    assert {contract.variable_axis, *contract.constant_axes} == set(definition.axes)
    assert [(t.name, t.dims, t.weight) for t in contract.inputs] == [
        (t.name, t.dims, t.role is Role.WEIGHT) for t in definition.inputs
    ]
    assert [(t.name, t.dims) for t in contract.outputs] == [(t.name, t.dims) for t in definition.outputs]
    assert contract.scalars == tuple(scalar.name for scalar in definition.scalars)
