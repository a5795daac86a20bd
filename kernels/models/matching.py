"""Which operator a piece of a recording is: the one that gives the same numbers for the same inputs.

Inputs may come in another order, with another order of dimensions, or with several dimensions where the operator has
one. Whatever fits the operator's axes is tried; two answers are the same if they differ by a few roundings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.models.formulas import Formula

ROUNDINGS = 8.0
"""By so many units in the last place of the largest element of a row."""


@dataclass(frozen=True)
class Match:
    """A piece that is an operator."""

    name: str
    extents: Mapping[str, int]
    """Of the formula's axes."""


def match(
    formula: Formula, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Sequence[float]
) -> Match | None:
    """Whether the formula gives these outputs, or more, for these inputs.

    Args:
        constants: numbers that occur in the piece; a scalar of the operator is one of them.
    """
    if len(inputs) != len(formula.inputs) or not 0 < len(outputs) <= len(formula.outputs):
        return None
    for order in itertools.permutations(inputs):
        for extents, arranged in _arranged(formula.inputs, order, {}):
            for scalars in itertools.product(constants, repeat=formula.scalars):
                found = _computed(formula, arranged, scalars)
                if found is not None and all(any(_same(out, answer) for answer in found) for out in outputs):
                    named = [axis for dims in formula.outputs for axis in dims]
                    shapes = [extent for answer in found for extent in answer.shape]
                    return Match(formula.name, {**extents, **dict(zip(named, shapes, strict=True))})
    return None


def _computed(formula: Formula, inputs: Sequence[Tensor], scalars: Sequence[float]) -> tuple[Tensor, ...] | None:
    """None where the formula does not take inputs of such shapes."""
    try:
        with torch.no_grad():
            return formula.compute(*inputs, *scalars)
    except RuntimeError:
        return None


def _arranged(
    dims: Sequence[tuple[str, ...]], tensors: Sequence[Tensor], extents: Mapping[str, int]
) -> Iterator[tuple[Mapping[str, int], list[Tensor]]]:
    """All ways to read the tensors as having these dimensions, one extent per axis."""
    if not dims:
        yield extents, []
        return
    for tensor in arrangements(tensors[0], len(dims[0])):
        known = dict(extents)
        if all(known.setdefault(axis, extent) == extent for axis, extent in zip(dims[0], tensor.shape, strict=True)):
            for found, rest in _arranged(dims[1:], tensors[1:], known):
                yield found, [tensor, *rest]


def arrangements(tensor: Tensor, rank: int) -> Iterator[Tensor]:
    """The tensor with so many dimensions: without those of extent 1, leading ones joined, in any order."""
    shape = [extent for extent in tensor.shape if extent != 1]
    plain = tensor.reshape(shape)
    if len(shape) > rank > 0:
        kept = shape[len(shape) - rank + 1 :]
        yield plain.reshape([math.prod(shape[: len(shape) - rank + 1]), *kept])
    elif len(shape) == rank:
        for order in itertools.permutations(range(rank)):
            yield plain.permute(order)
    elif len(shape) < rank <= tensor.dim():
        yield tensor.reshape([1] * (rank - len(shape)) + shape)


def _same(wanted: Tensor, found: Tensor) -> bool:
    """Whether they are the same up to roundings and the order of dimensions."""
    if wanted.numel() != found.numel() or wanted.is_complex() != found.is_complex():
        return False
    coarsest = max(torch.finfo(wanted.dtype).eps, torch.finfo(found.dtype).eps)
    for arranged in arrangements(wanted, found.dim()):
        if arranged.shape == found.shape:
            largest = max(float(arranged.abs().max()), 1e-30)
            off = (arranged.double() - found.double()).abs().nan_to_num(math.inf).max()
            if float(off) <= ROUNDINGS * coarsest * largest:
                return True
    return False
