"""Shared buffers: places, guards, poison, and who may write what."""

from __future__ import annotations

import itertools
import mmap
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.workload import ITEM_BYTES, TensorLayout, Workload
from harness import arena as arena_module
from harness.arena import PAGE, Arena, SharedFile, lay_out
from harness.draws import Draws, Part, activations, weights
from harness.errors import HostFaultError
from kernels import catalogue
from kernels.inputs import workload


@pytest.fixture
def file():
    made = SharedFile("test", writable_by_runner=True)
    yield made
    made.close()


def rms_norm(tokens=3, hidden=40, dtype="float32"):
    definition = catalogue.operator("rms_norm")
    return definition, workload(definition, dtype, tokens=tokens, hidden=hidden)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 700), st.sampled_from(["float32", "bfloat16"]))
def test_places_do_not_meet_and_end_at_a_guard(tokens, hidden, dtype):
    definition, made = rms_norm(tokens, hidden, dtype)
    layout = lay_out(definition, made, max_sets=5)
    for places in (layout.inputs, layout.outputs):
        taken: list[tuple[int, int]] = []
        for place in places:
            elements = 1 + sum((e - 1) * s for e, s in zip(place.layout.shape, place.layout.strides, strict=True))
            for number, guard in enumerate(place.guards(layout.sets)):
                start = place.start + number * place.pitch
                end = start + elements * ITEM_BYTES[dtype]
                assert start % arena_module.ALIGNMENT == 0 and guard % PAGE == 0
                assert 0 <= guard - end < arena_module.ALIGNMENT
                taken += [(start, end), (guard, guard + PAGE)]
        taken.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(taken))


def test_sets_rotate_over_enough_memory_but_not_too_many():
    definition, small = rms_norm(1, 8)
    assert lay_out(definition, small).sets == arena_module.MAX_SETS
    definition, large = rms_norm(4096, 4096)
    assert lay_out(definition, large).sets == 2
    definition, middle = rms_norm(64, 4096)
    sets = lay_out(definition, middle).sets
    assert 2 < sets < arena_module.MAX_SETS
    assert sets * 2 * 64 * 4096 * 4 <= 1.1 * arena_module.ROTATED_BYTES


def test_what_does_not_fit_is_a_clear_fault(monkeypatch):
    monkeypatch.setattr(arena_module, "CAPACITY_BYTES", 1 << 16)
    with pytest.raises(HostFaultError, match="judge a smaller workload"):
        lay_out(*rms_norm(64, 4096))


def test_poison_is_seen_until_it_is_overwritten(file):
    definition, made = rms_norm()
    layout = lay_out(definition, made, max_sets=4)
    outputs = Arena(file, layout.outputs, layout.sets)
    chosen = torch.tensor([0, 2])
    outputs.poison(chosen)
    (out_SH,) = outputs.tensors
    assert torch.isnan(out_SH[chosen]).all() and (out_SH[[1, 3]] == 0).all()
    assert outputs.poisoned(chosen)[0].tolist() == [120, 120]
    out_SH[0] = 1.0
    out_SH[2, :, :7] = 1.0
    assert outputs.poisoned(chosen)[0].tolist() == [0, 99]
    assert not outputs.spilled(chosen)[0].any()


@pytest.mark.parametrize("offset", [-4, -64, 480])
def test_writes_around_an_output_are_seen(file, offset):
    definition, made = rms_norm()
    layout = lay_out(definition, made, max_sets=4)
    outputs = Arena(file, layout.outputs, layout.sets)
    outputs.poison(torch.arange(4))
    place = layout.outputs[0]
    file.bytes[place.start + 2 * place.pitch + offset] = 0
    assert outputs.spilled(torch.arange(4))[0].tolist() == [False, False, True, False]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_poison_is_nan(dtype):
    bits = torch.full((1,), arena_module.POISON[ITEM_BYTES[dtype]], dtype=arena_module.BITS[ITEM_BYTES[dtype]])
    assert torch.isnan(bits.view(getattr(torch, dtype))).all()


def test_runners_cannot_write_inputs_nor_resize_anything():
    inputs, outputs = SharedFile("inputs", writable_by_runner=False), SharedFile("outputs", writable_by_runner=True)
    with pytest.raises(OSError):
        mmap.mmap(inputs.reader, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.write(inputs.reader, b"x")
    reopened = os.open(f"/proc/self/fd/{inputs.reader}", os.O_RDWR)
    with pytest.raises(OSError):
        mmap.mmap(reopened, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.write(reopened, b"x")
    os.close(reopened)
    for shared in (inputs, outputs):
        with pytest.raises(OSError):
            os.ftruncate(shared.reader, 0)
        shared.bytes[:4] = 7
        shared.close()
        shared.close()


def test_no_two_fills_are_alike_and_weights_stay_unless_asked(file):
    definition, made = rms_norm(2, 64)
    layout = lay_out(definition, made, max_sets=6)
    inputs = Arena(file, layout.inputs, layout.sets)
    source = Draws(definition, made, "traffic", seed=3)
    generator, everything = torch.Generator().manual_seed(0), torch.arange(layout.sets)
    source.fill(inputs, everything, [*activations(layout), *weights(layout)], generator)
    first_x, first_weight = Part(definition).of_inputs(inputs.tensors, everything)
    source.fill(inputs, everything, activations(layout), generator)
    second_x, second_weight = Part(definition).of_inputs(inputs.tensors, everything)
    assert torch.equal(first_weight, second_weight)
    assert all(not torch.equal(a, b) for a, b in zip(first_x, second_x, strict=True))
    assert len({tuple(x.flatten().tolist()) for x in (*first_x, *second_x)}) == 2 * layout.sets


def test_a_seed_gives_the_same_values_again():
    definition, made = rms_norm(2, 64)
    one, two = Draws(definition, made, "wide", seed=3), Draws(definition, made, "wide", seed=3)
    assert one.facts == two.facts
    assert one.facts != Draws(definition, made, "wide", seed=4).facts


def test_expanded_and_strided_inputs_keep_their_layout(file):
    definition, dense = rms_norm(4, 32)
    x = TensorLayout((4, 32), (100, 1), "float32")
    weight = TensorLayout((32,), (0,), "float32")
    made = Workload("rms_norm", "float32", dense.axes, (x, weight))
    layout = lay_out(definition, made, max_sets=3)
    inputs = Arena(file, layout.inputs, layout.sets)
    source = Draws(definition, made, "traffic", seed=3)
    source.fill(inputs, torch.arange(3), [0, 1], torch.Generator().manual_seed(0))
    x_STH, weight_SH = inputs.tensors
    assert x_STH.stride()[1:] == (100, 1) and weight_SH.stride()[1:] == (0,)
    assert (weight_SH == weight_SH[:, :1]).all() and weight_SH[0, 0] != 0
    assert len(x_STH[0].unique()) > 100


def test_batched_references_equal_single_ones():
    for definition in catalogue.operators():
        axes = dict.fromkeys(definition.axes, 6)
        made = workload(definition, "float32", **axes)
        source = Draws(definition, made, "traffic", seed=1)
        generator = torch.Generator().manual_seed(5)
        draws = [definition.make_inputs(generator, made.axes, "float32", "traffic") for _ in range(3)]
        stacked = [torch.stack(tensors) for tensors in zip(*draws, strict=True)]
        together = source.expected(stacked)
        for number in range(3):
            alone = source.expected([tensor[number : number + 1] for tensor in stacked])
            for a, b in zip(together, alone, strict=True):
                torch.testing.assert_close(a.values[number], b.values[0], rtol=1e-12, atol=1e-15)
                torch.testing.assert_close(a.scale[number], b.scale[0], rtol=1e-12, atol=1e-15)
