"""Where a call wrote, from the poison that it left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import footprint
from harness.arena import OutputArena
from harness.layout import Sets, lay_out
from harness.shared_file import SharedFile
from kernels import catalogue
from kernels.inputs import workload


@pytest.fixture(params=["float32", "bfloat16"])
def poisoned(request, native):
    """The file, place and tensor of an output of six sets of 3 x 40, all poisoned."""
    made = workload(catalogue.operator("rms_norm"), request.param, tokens=3, hidden=40)
    layout = lay_out(catalogue.operator("rms_norm"), made, bounds=Sets(most=6))
    file = SharedFile("test", writable_by_runner=True)
    outputs = OutputArena(native, file, layout)
    outputs.poison(np.arange(layout.sets, dtype=np.uint32))
    yield file, layout.outputs[0], outputs.tensors[0]
    file.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.booleans(), min_size=120, max_size=120), st.floats(-9, 9, width=16))
def test_elements_are_unwritten_until_anything_is_written_there(poisoned, written, value):
    mask = torch.tensor(written).reshape(3, 40)
    out_TH = poisoned[2][1].clone()
    out_TH[mask] = value
    assert (footprint.unwritten(out_TH) == ~mask).all()


def test_nan_is_a_value_like_any_other(poisoned):
    out_TH = poisoned[2][1]
    out_TH[0] = float("nan")
    assert footprint.unwritten(out_TH).any(1).tolist() == [False, True, True]


def test_writes_around_a_set_are_told_by_how_far_they_reach(poisoned):
    file, place, tensor = poisoned
    tensor[2] = 1.0
    assert footprint.spill_bytes(place, tensor, 2) == (0, 0)
    start = place.start + 2 * place.pitch
    size_bytes = 3 * 40 * place.item_bytes
    room_bytes = place.base + place.room - place.start - size_bytes
    behind_bytes = 2 * place.item_bytes if room_bytes >= 2 * place.item_bytes else 0
    file.bytes[start - 3 * place.item_bytes] = 0
    if behind_bytes:
        file.bytes[start + size_bytes + place.item_bytes] = 0
    assert footprint.spill_bytes(place, tensor, 2) == (3 * place.item_bytes, behind_bytes)
    assert footprint.spill_bytes(place, tensor, 1) == footprint.spill_bytes(place, tensor, 3) == (0, 0)
