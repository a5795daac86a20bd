"""Right values in wrong places: rows, heads or columns that hold one another's answers, pairs of other elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from harness.wrong_call import WrongCall

MAX_PLACES = 256
"""Along a dimension whose places are compared with each other."""
LEAST_ELEMENTS = 2
"""Wrong ones per wrong place: a single element is easily like another."""
SHOWN_PLACES = 4


def misplacements(call: WrongCall) -> Iterator[str]:
    """What stands where something else should, if that explains the answer: likeliest first."""
    yield from _moved(call)
    yield from _pairs(call)
    yield from _exchanged_places(call)


def _moved(call: WrongCall) -> Iterator[str]:
    """Rows or columns that hold another's answer, or the answer turned over."""
    values, found = call.wanted.values[0], call.found
    if found.dim() < 2:
        return
    for dim, name in ((0, "row"), (found.dim() - 1, "column")):
        for step in (1, -1):
            if found.shape[dim] > 1 and call.explained(values.roll(step, dim)):
                yield f"each wrong {name} holds the answer of the {'one before' if step > 0 else 'next'}: off by one"
        if found.shape[dim] > 2 and call.explained(values.flip(dim)):
            yield f"{name}s are in reverse order"
    dims = call.definition.outputs[call.output].dims
    for order in itertools.islice(itertools.permutations(range(found.dim())), 1, None):
        if call.explained(values.permute(order).reshape(values.shape)):
            yield f"the output is written transposed, as {' x '.join(dims[dim] for dim in order)}"


def _pairs(call: WrongCall) -> Iterator[str]:
    """Neighbours taken for a pair where the two halves of a row form one, or the reverse."""
    if call.found.shape[-1] % 2:
        return
    axis = call.definition.outputs[call.output].dims[-1]
    having = [n for n, spec in enumerate(call.definition.inputs) if spec.dims and spec.dims[-1] == axis]
    whole = [n for n in having if call.inputs[n].shape == call.found.shape]
    for split, join, words in (
        (halved, interleaved, "neighbours (2i, 2i + 1) form a pair where element i and element i + half should"),
        (interleaved, halved, "elements i and i + half form a pair where neighbours (2i, 2i + 1) should"),
    ):
        for numbers in (whole, having):
            inputs = [split(tensor) if n in numbers else tensor for n, tensor in enumerate(call.inputs)]
            if numbers and call.explained(join(call.answer(inputs))):
                yield f"matches the answer with other pairs of {axis}: {words}"


def halved(tensor: Tensor) -> Tensor:
    """The even places of the last dimension, then the odd ones."""
    return torch.cat((tensor[..., ::2], tensor[..., 1::2]), -1)


def interleaved(tensor: Tensor) -> Tensor:
    """The two halves of the last dimension, in turns."""
    return torch.stack(tensor.chunk(2, -1), -1).flatten(-2)


def _exchanged_places(call: WrongCall) -> Iterator[str]:
    """Places along one dimension that hold each other's answers, in whatever order."""
    values, found = call.wanted.values[0], call.found.to(torch.float64)
    for dim, axis in enumerate(call.definition.outputs[call.output].dims):
        extent = found.shape[dim]
        if not 1 < extent <= MAX_PLACES:
            continue
        held = _likest(found.movedim(dim, 0).flatten(1), values.movedim(dim, 0).flatten(1))
        wrong = call.wrong.movedim(dim, 0).flatten(1).any(1).nonzero().flatten()
        if int(call.wrong.sum()) < LEAST_ELEMENTS * wrong.numel():
            continue
        if bool((held != torch.arange(extent)).any()) and call.explained(values.index_select(dim, held)):
            yield f"{axis} are in another order: {_orders(wrong.tolist(), held.tolist())}"


def _likest(found_PE: Tensor, values_PE: Tensor) -> Tensor:
    """Per place that was found, the place whose answer is nearest."""
    found_PE, values_PE = (tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in (found_PE, values_PE))
    return torch.cdist(found_PE, values_PE, p=1.0).argmin(1)


def _orders(wrong: Sequence[int], held: Sequence[int]) -> str:
    shown = [f"{place} holds the answer of {held[place]}" for place in wrong[:SHOWN_PLACES]]
    return ", ".join([*shown, *(["..."] if len(wrong) > SHOWN_PLACES else [])])
