"""Shared buffers: places, guards, poison, changes, the chain of calls, and who may write what."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.workload import ITEM_BYTES, TensorLayout, Workload
from harness import comparer
from harness import layout as layout_module
from harness import native as native_module
from harness.arena import InputArena, OutputArena, answer_cell
from harness.comparer import ErrorFacts, Expected
from harness.draws import Draws
from harness.layout import Sets, lay_out, slides
from harness.native import AnswerTensor
from harness.shared_file import CAPACITY_BYTES, PAGE, SharedFile
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


def numbers(*values):
    return np.array(values, np.uint32)


def follow(outputs, seed, pool, calls, *, linked):
    """The chain of a run over those outputs, whatever they hold."""
    return outputs.survey(seed, pool, calls, linked=linked)[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 700), st.sampled_from(["float32", "bfloat16"]), st.integers(0, 6))
def test_places_do_not_meet_and_end_at_a_guard(tokens, hidden, dtype, way):
    definition, made = rms_norm(tokens, hidden, dtype)
    slid = ((), *slides(definition, dtype).values())[way]
    layout = lay_out(definition, made, bounds=Sets(most=5, slid=slid))
    assert layout.slid is bool(slid)
    expected = dict(zip((*layout.inputs, *layout.outputs), slid or (0, 0, 0), strict=True))
    for places in (layout.inputs, layout.outputs):
        taken: list[tuple[int, int]] = []
        for place in places:
            elements = 1 + sum((e - 1) * s for e, s in zip(place.layout.shape, place.layout.strides, strict=True))
            for number in range(layout.sets):
                guard = place.base + number * place.pitch + place.room
                start = place.start + number * place.pitch
                end = start + elements * ITEM_BYTES[dtype]
                assert start % layout_module.ALIGNMENT == expected[place] and guard % PAGE == 0
                assert 0 <= guard - end < layout_module.ALIGNMENT
                taken += [(start, end), (guard, guard + PAGE)]
        taken.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(taken))


def test_sets_rotate_over_enough_memory_but_not_too_many():
    definition, small = rms_norm(1, 8)
    assert lay_out(definition, small).sets == layout_module.MAX_SETS
    definition, large = rms_norm(4096, 4096)
    assert lay_out(definition, large).sets == 2
    definition, middle = rms_norm(64, 4096)
    sets = lay_out(definition, middle).sets
    assert 2 < sets < layout_module.MAX_SETS
    assert sets * 2 * 64 * 4096 * 4 <= 1.1 * layout_module.SMALL_ROTATED_BYTES
    assert sets < lay_out(definition, middle, Sets(least=sets + 3)).sets == sets + 3
    most = lay_out(definition, large, Sets(least=1000)).sets
    assert most * 2 * 4096 * 4096 * 4 <= max(layout_module.ROTATED_BYTES, 2 * 2 * 4096 * 4096 * 4)
    assert lay_out(definition, small, Sets(most=7, least=32)).sets == 7


def test_far_strides_take_address_space_only():
    definition, dense = rms_norm(3, 8)
    far = TensorLayout((3, 8), (1 << 30, 1), "float32")
    made = Workload("rms_norm", "float32", dense.axes, (far, dense.inputs[1]))
    layout = lay_out(definition, made, bounds=Sets(most=2))
    assert layout.sparse and layout.input_bytes > 8 << 30
    assert not lay_out(definition, dense).sparse


class TestOutputs:
    @pytest.fixture(params=["float32", "bfloat16"])
    def outputs(self, request, native, file):
        definition, made = rms_norm(dtype=request.param)
        self.layout = lay_out(definition, made, bounds=Sets(most=6))
        return OutputArena(native, file, self.layout)

    def test_poison_is_nan_and_seen_until_it_is_overwritten(self, outputs):
        outputs.poison(numbers(0, 2))
        (out_STH,) = outputs.tensors
        assert torch.isnan(out_STH[[0, 2]]).all() and (out_STH[[1, 3]] == 0).all()
        out_STH[0] = 1.0
        out_STH[2, :, :7] = 1.0
        ((left, spilled),) = outputs.inspect(numbers(2, 0))
        assert left.tolist() == [99, 0] and not spilled.any()

    @pytest.mark.parametrize("offset", [-4, -64, 480])
    def test_writes_around_an_output_are_seen(self, outputs, file, offset):
        outputs.poison(np.arange(6, dtype=np.uint32))
        place = self.layout.outputs[0]
        if offset > 0:
            offset = 3 * 40 * ITEM_BYTES[place.layout.dtype]
            if place.start + offset >= place.base + place.room:
                pytest.skip("ends with its page")
        file.bytes[place.start + 2 * place.pitch + offset] = 0
        ((_, spilled),) = outputs.inspect(np.arange(6, dtype=np.uint32))
        assert spilled.tolist() == [False, False, True, False, False, False]

    @pytest.mark.parametrize("linked", [False, True])
    def test_the_chain_calls_each_set_of_the_pool_once(self, outputs, linked):
        outputs.tensors[0].copy_(torch.randn(6, 3, 40))
        pool = numbers(5, 0, 3, 2)
        walk = follow(outputs, 7, pool, 3, linked=linked)
        assert sorted([*walk.called, *walk.decoys]) == [0, 2, 3, 5] and len(walk.called) == 3
        assert pool.tolist() == [5, 0, 3, 2]
        again = follow(outputs, 7, pool, 3, linked=linked)
        assert (again.called == walk.called).all() and (again.states == walk.states).all()

    @pytest.mark.parametrize("linked", [False, True])
    def test_what_is_called_next_depends_on_what_was_written(self, outputs, linked):
        pool = np.arange(6, dtype=np.uint32)
        orders = set()
        for value in range(16):
            outputs.tensors[0].fill_(1.0)
            first = follow(outputs, 7, pool, 6, linked=linked).called[0]
            outputs.tensors[0][int(first), 0, 0] = 2.0 + value
            changed = follow(outputs, 7, pool, 6, linked=linked).called
            assert changed[0] == first
            orders.add(tuple(changed.tolist()))
        assert len(orders) > 8

    def test_what_a_linked_call_is_given_depends_on_every_element_before(self, outputs):
        pool = np.arange(6, dtype=np.uint32)
        outputs.tensors[0].fill_(1.0)
        walk = follow(outputs, 7, pool, 6, linked=True)
        states = {int(walk.states[1])}
        first_TH = outputs.tensors[0][int(walk.called[0])]
        for index in np.ndindex(*first_TH.shape):
            first_TH[index] = 2.0
            again = follow(outputs, 7, pool, 6, linked=True)
            assert again.states[0] == walk.states[0]
            states.add(int(again.states[1]))
            first_TH[index] = 1.0
        assert len(states) == 1 + first_TH.numel()

    def test_the_order_depends_on_the_seed(self, outputs):
        pool = np.arange(6, dtype=np.uint32)
        assert len({tuple(follow(outputs, seed, pool, 6, linked=False).called.tolist()) for seed in range(16)}) > 8


class TestInputs:
    STRIDED = (
        TensorLayout((4, 32), (32, 1), "float32"),
        TensorLayout((4, 32), (100, 1), "float32"),
        TensorLayout((4, 32), (1, 4), "float32"),
        TensorLayout((4, 32), (64, 2), "float32"),
        TensorLayout((4, 32), (0, 1), "float32"),
    )

    @pytest.fixture(params=STRIDED, ids=lambda layout: str(layout.strides))
    def inputs(self, request, native, file):
        definition, dense = rms_norm(4, 32)
        weight = TensorLayout((32,), (0,), "float32")
        made = Workload("rms_norm", "float32", dense.axes, (request.param, weight))
        self.draws = Draws(definition, made, "traffic", seed=3)
        return InputArena(native, file, lay_out(definition, made, bounds=Sets(most=5)), offset=3 * PAGE)

    def test_cases_keep_the_layout(self, inputs):
        cell = inputs.cell(0, self.draws.bases[0])
        inputs.fill(cell, numbers(4, 1), np.array([1, 2], np.int64))
        x_STH, base_BTH = inputs.tensors[0], self.draws.bases[0]
        assert x_STH.stride()[1:] == inputs.layout.inputs[0].layout.strides
        assert torch.equal(x_STH[4], base_BTH[1]) and torch.equal(x_STH[1], base_BTH[2])
        assert torch.isnan(x_STH[[0, 2, 3]]).all()

    def test_renewed_values_are_all_new_and_near_a_base_draw_s(self, inputs):
        cell = inputs.cell(0, self.draws.bases[0])
        state, seen = ctypes.c_uint64(5), []
        for _ in range(3):
            inputs.renew(cell, numbers(3, 0), state)
            seen.append(inputs.tensors[0][[0, 3]].clone())
        assert torch.isnan(inputs.tensors[0][[1, 2, 4]]).all()
        assert not any((a == b).any() for a, b in itertools.combinations(seen, 2))
        base_BTH = self.draws.bases[0]
        for values_STH in seen:
            ratios_SBTH = values_STH[:, None] / base_BTH
            near = ((ratios_SBTH >= 0.4999) & (ratios_SBTH <= 1.5001)).all(-1)  # each row comes from one base draw
            assert near.any(1).all()

    def test_every_row_changes_at_a_few_places_and_nothing_else_does(self, inputs):
        cell = inputs.cell(0, self.draws.bases[0])
        everything, same = np.arange(5, dtype=np.uint32), np.zeros(5, np.int64)
        inputs.fill(cell, everything, same)
        before = inputs.tensors[0].clone()
        inputs.change(cell, numbers(3, 0), 2, 1 << 40, ctypes.c_uint64(9))
        changed = inputs.tensors[0] != before
        assert not changed[[1, 2, 4]].any()
        per_row = changed[[0, 3]].sum(-1)
        assert (per_row >= 1).all() and (per_row <= 2).all()
        after, base_BTH = inputs.tensors[0], self.draws.bases[0]
        for number, token, column in changed.nonzero().tolist():
            assert after[number, token, column] in base_BTH[:, token, column]

    def test_an_expanded_dimension_has_one_value(self, inputs):
        cell = inputs.cell(1, self.draws.bases[1])
        inputs.fill(cell, numbers(2), np.ones(1, np.int64))
        assert len(inputs.tensors[1][2].unique()) == 1
        inputs.renew(cell, numbers(2), ctypes.c_uint64(4))
        assert len(inputs.tensors[1][2].unique()) == 1
        inputs.change(cell, numbers(2), 2, 1 << 40, ctypes.c_uint64(9))
        assert len(inputs.tensors[1][2].unique()) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_linked_calls_were_given_can_be_made_again(native, file, dtype):
    definition, dense = rms_norm(4, 32, dtype)
    strided = TensorLayout((4, 32), (50, 1), dtype)
    made = Workload("rms_norm", dtype, dense.axes, (strided, dense.inputs[1]))
    draws = Draws(definition, made, "traffic", seed=3)
    inputs = InputArena(native, file, lay_out(definition, made, bounds=Sets(most=5)), offset=0)
    inputs.fill(inputs.cell(0, draws.bases[0]), np.arange(5, dtype=np.uint32), np.arange(5, dtype=np.int64))
    states = np.array([11, 12, 11], np.uint64)
    remade = inputs.made(numbers(1, 1, 3), states)
    assert list(remade) == [0] and remade[0].stride()[1:] == (50, 1)
    ratios = remade[0].to(torch.float64) / inputs.tensors[0][[1, 1, 3]].to(torch.float64)
    assert ((ratios > 0.49) & (ratios < 1.51)).all() and ratios.std() > 0.2
    assert not torch.equal(ratios[0], ratios[1])
    torch.testing.assert_close(ratios[0], ratios[2], rtol=0.02, atol=0)  # the same numbers, rounded to the dtype
    assert torch.equal(remade[0], inputs.made(numbers(1, 1, 3), states)[0])
    places = np.array([[0, 3], [1, 2], [2, 3]])
    for in_memory in (places, np.asfortranarray(places)):
        some = inputs.made_rows(numbers(1, 1, 3), states, in_memory)
        assert torch.equal(some[0], remade[0][torch.arange(3)[:, None], torch.from_numpy(places)])
    assert inputs.link_ns() > 0


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


def test_a_scrubbed_file_holds_nothing(file):
    for place in (0, 5 * PAGE, 40 * PAGE, CAPACITY_BYTES - PAGE):
        file.bytes[place] = 7
    file.scrub(8 * PAGE)
    assert not any(file.bytes[place] for place in (0, 5 * PAGE, 40 * PAGE, CAPACITY_BYTES - PAGE))
    assert os.fstat(file.reader).st_blocks * 512 <= 16 * PAGE


VALUES = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 6), st.integers(1, 300), st.data(), st.sampled_from(["float32", "bfloat16"]))
def test_the_quick_comparison_says_yes_where_the_comparer_does(native, file, rows, columns, data, dtype):
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    exact = torch.randn((1, rows, columns), generator=generator, dtype=torch.float64)
    scale = exact.abs().clamp(min=1e-30) * data.draw(st.floats(1.0, 10.0))
    expected = Expected(exact, scale, kind)
    facts = ErrorFacts(*(data.draw(st.floats(0.0, 2.0)) for _ in range(4)))
    found = exact.to(kind)
    part = data.draw(st.sampled_from([(0, 0), (0, slice(None)), (slice(None), 0), (slice(None), slice(None))]))
    found[0][part] *= 1 + data.draw(st.sampled_from([0.0, 1e-7, 4e-7, 1e-6, 4e-6, 1e-3, 1e-2, 1.0]))
    if data.draw(st.booleans()):
        found[0, -1, -1] = data.draw(st.sampled_from([float("nan"), float("inf"), 0.0]))
    mismatch = comparer.compare(found, expected, facts, workload="w", output="o")
    close = mismatch is not None and float(mismatch.error_ratio) < 1 + 1e-6  # sums in another order
    outputs = OutputArena(native, file, lay_out(*rms_norm()))
    rule = comparer.Rule.of(facts, kind, comparer.FACTOR)
    assert outputs.accepts_copies(found, expected, rule) == (mismatch is None) or close


def test_sets_are_accepted_by_the_answers_of_their_own_draws(native, file):
    definition, made = rms_norm()
    outputs = OutputArena(native, file, lay_out(definition, made, bounds=Sets(most=4)))
    draws = [Draws(definition, made, regime, seed=3) for regime in definition.regimes[:2]]
    answers = [draw.answers[0] for draw in draws]
    rules = [comparer.Rule.of(draw.facts[0], torch.float32, comparer.FACTOR) for draw in draws]
    groups = (AnswerTensor * 2)(*map(answer_cell, answers, rules))
    which, cases = np.array([0, 1, 1]), np.array([1, 0, 2])
    for number, (group, case) in enumerate(zip(which, cases, strict=True)):
        outputs.tensors[0][number] = answers[group].values[case]
    assert outputs.accepts(groups, which, numbers(0, 1, 2), cases)
    assert not outputs.accepts(groups, which[::-1].copy(), numbers(0, 1, 2), cases)
    assert not outputs.accepts(groups, which, numbers(0, 2, 1), cases)
    outputs.tensors[0][2, -1, -1] *= 1.0001
    assert not outputs.accepts(groups, which, numbers(0, 1, 2), cases)


@pytest.mark.parametrize("wrong", [None, (1, 1.0), (0, float("nan")), (2, float("-inf")), (2, float("nan")), (2, 3e38)])
def test_nan_and_infinities_must_stand_where_they_should(native, file, wrong):
    exact = torch.tensor([[[1.0, float("nan"), float("inf"), float("-inf")]]], dtype=torch.float64)
    facts = ErrorFacts(1e30, 1e30, 1e30)
    expected = Expected(exact, torch.ones_like(exact), torch.float32)
    found = exact.to(torch.float32)
    if wrong is not None:
        found[0, 0, wrong[0]] = wrong[1]
    outputs, rule = OutputArena(native, file, lay_out(*rms_norm())), comparer.Rule.of(facts, torch.float32, 4.0)
    assert outputs.accepts_copies(found, expected, rule) == (wrong is None)


def test_a_seed_gives_the_same_values_again():
    definition, made = rms_norm(2, 64)
    one, two = Draws(definition, made, "wide", seed=3), Draws(definition, made, "wide", seed=3)
    assert one.facts == two.facts
    assert one.facts != Draws(definition, made, "wide", seed=4).facts


def test_kept_answers_are_those_of_the_reference():
    definition, made = rms_norm(2, 64)
    draws = Draws(definition, made, "traffic", seed=3)
    assert draws.answers is not None
    for number in range(draws.count):
        (alone,) = draws.expected(draws.case([number]))
        torch.testing.assert_close(draws.answers[0].values[number], alone.values[0], rtol=1e-12, atol=1e-15)


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


def test_rows_can_be_computed_by_themselves():
    for definition in catalogue.operators():
        made = workload(definition, "float32", **dict.fromkeys(definition.axes, 6))
        draws = Draws(definition, made, "traffic", seed=1)
        inputs = draws.case([0, 1])
        whole = draws.expected(inputs)
        places = torch.tensor([1, 4])
        part = [
            tensor.index_select(1 + spec.dims.index(definition.row_axis), places)
            if definition.row_axis in spec.dims
            else tensor
            for tensor, spec in zip(inputs, definition.inputs, strict=True)
        ]
        for spec, all_rows, some in zip(definition.outputs, whole, draws.expected(part), strict=True):
            wanted = all_rows.values.index_select(1 + spec.dims.index(definition.row_axis), places)
            torch.testing.assert_close(some.values, wanted, rtol=1e-12, atol=1e-15)


def test_runners_have_room_for_all_that_is_linked():
    source = (native_module.SOURCES / "runner.c").read_text()
    (shift,) = re.findall(r"#define LINK_BYTES \(1u << (\d+)\)", source)
    assert 1 << int(shift) >= 4 * layout_module.LINKED_BYTES
