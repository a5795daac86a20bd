from __future__ import annotations

import subprocess
import sys

import pytest

from gristmill import contract
from kernels import catalogue
from kernels.definition import Role
from kernels.errors import UnknownOperatorError


def test_every_name_has_its_definition() -> None:
    assert tuple(d.name for d in catalogue.operators()) == catalogue.NAMES


def test_unknown_operator_lists_the_known_ones() -> None:
    with pytest.raises(UnknownOperatorError) as caught:
        catalogue.operator("rms_nrom")
    message = str(caught.value)
    assert "'rms_nrom'" in message
    assert all(name in message for name in catalogue.NAMES)
    assert "\n" not in message


def test_no_module_of_the_catalogue_can_be_reached_by_another_name() -> None:
    for name in ("__init__", "", "rms_norm.x", "../rms_norm"):
        with pytest.raises(UnknownOperatorError):
            catalogue.operator(name)


def test_every_scalar_has_another_value_that_shows_who_does_not_read_it() -> None:
    for definition in catalogue.operators():
        varied = definition.varied()
        assert [(s.name, s.default) for s in varied.scalars] == [(s.name, s.other) for s in definition.scalars]
        assert all(s.other != s.default for s in definition.scalars)
        assert (varied is definition) is (not definition.scalars)


def test_listing_the_names_imports_no_torch() -> None:
    code = "import sys, kernels.catalogue, kernels.profile, kernels.inputs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_serving_hosts_and_pipeline_agree_on_every_call() -> None:
    """The wheel carries its own copy of the calling contract, because it stands alone."""
    assert set(contract.CONTRACTS) == set(catalogue.NAMES)
    for definition in catalogue.operators():
        served = contract.CONTRACTS[definition.name]
        assert [(t.name, t.dims, t.weight) for t in served.inputs] == [
            (t.name, t.dims, t.role is Role.WEIGHT) for t in definition.inputs
        ]
        assert [(t.name, t.dims) for t in served.outputs] == [(t.name, t.dims) for t in definition.outputs]
        assert served.scalars == tuple(s.name for s in definition.scalars)
        assert served.constant_axes == definition.constant_axes
        assert {served.variable_axis, *served.constant_axes} == set(definition.axes)
