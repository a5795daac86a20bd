"""The operators of a recorded forward pass: what each anchor and each piece between them is, with its shapes.

A piece is the operator that computes the same (`matching`), several pieces in a row before one alone. What nothing
matches keeps the name of the module that asked for it, and can be drafted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.definition import Cost
from kernels.models import matching, vocabulary
from kernels.models.formulas import Formula, formulas
from kernels.models.recording import Operation, Recording, Value
from kernels.models.regions import ATTENTION, VIEWS, Cuts, Piece
from kernels.models.step import OperatorCall

MOST_PIECES = 4
"""That one operator is made of."""


@dataclass(frozen=True)
class TracedCall:
    """One call in a recording."""

    call: OperatorCall
    cost: Cost
    module: str
    piece: Piece | None
    """What it was recorded as, where a draft can be made of that."""
    known: bool
    """Whether its name says what it computes; otherwise it is the module's."""


class Recognition:
    """The calls of one recording. Equal pieces are tried once."""

    def __init__(self, recording: Recording) -> None:
        self.cuts = Cuts(recording)
        self._recording = recording
        self._formulas = formulas()
        self._known: dict[str, matching.Match | None] = {}
        self._unknown: dict[str, list[tuple[Any, ...]]] = {}
        self._chosen = 1
        """Experts per token, as the last routing had it."""

    def calls(self) -> list[TracedCall]:
        """In the order in which they start."""
        found = [*self._anchors(), *self._between()]
        return [traced for _, traced in sorted(found, key=lambda one: one[0])]

    def _anchors(self) -> Iterator[tuple[int, TracedCall]]:
        for number, operation in enumerate(self._recording.operations):
            call = self._anchor(operation)
            if call is not None:
                alone = Piece((number,), operation.module, operation.kind)
                piece = alone if operation.name == "addmm" else None
                yield number, TracedCall(call, vocabulary.cost(call), operation.module, piece, True)

    def _anchor(self, operation: Operation) -> OperatorCall | None:
        shapes = [tuple(self._tensor(value).shape) for value in operation.operands]
        name = operation.name
        if name == "embedding":
            (vocabulary_size, hidden), tokens = shapes[0], math.prod(shapes[1])
            return self._call(operation, "embedding", tokens, vocabulary_size, hidden)
        if name in ("mm", "addmm"):
            (tokens, in_features), (_, out_features) = shapes[-2:]
            return self._call(
                operation, "skinny_linear" if name == "mm" else "linear_bias", tokens, in_features, out_features
            )
        if name == "_grouped_mm":
            (rows, in_features), (experts, _, out_features) = shapes[:2]
            readers = [self._recording.operations[n] for n in self.cuts.readers.get(operation.results[0].number, [])]
            biased = any(map(self.cuts.adds_expert_bias, readers))
            linear = "grouped_linear_bias" if biased else "grouped_linear"
            return self._call(operation, linear, rows, experts, self._chosen, in_features, out_features)
        if name == "topk":
            return self._routing(operation)
        if name.startswith(ATTENTION):
            return self._attention(operation, "attention", operation.operands[:3], operation.operands[3:])
        return self._plain_attention(operation) if name == "bmm" else None

    def _call(self, operation: Operation, name: str, *extents: int) -> OperatorCall:
        dtype = _dtype(self._tensor(operation.results[0]))
        return OperatorCall(name, dict(zip(vocabulary.axes_of(name), extents, strict=True)), dtype, 1)

    def _routing(self, operation: Operation) -> OperatorCall | None:
        """By what the router does around its last choice."""
        own = [op for op in self._recording.operations if op.module == operation.module and op.kind == operation.kind]
        choices = [op for op in own if op.name == "topk"]
        if operation is not choices[-1]:
            return None
        (tokens, experts), chosen = self._tensor(operation.operands[0]).shape, int(operation.arguments[1])
        self._chosen = chosen
        names = [op.name for op in own]
        softmax = names.index("_softmax") if "_softmax" in names else len(names)
        if "sigmoid" in names:
            kind = "sigmoid_group_topk"
        elif softmax > names.index("topk"):
            kind = "topk_softmax"
        elif len(choices) > 1:
            kind = "softmax_group_topk"
        else:
            kind = "softmax_topk" if {"div", "div_"} & set(names) else "softmax_topk_as_is"
        logits = next(op for op in own if op.name in ("mm", "addmm"))
        return self._call(logits, kind, tokens, experts, chosen)

    def _plain_attention(self, operation: Operation) -> OperatorCall | None:
        """Attention as two products with a softmax between; the call is told at the first."""
        softmax = self._reader(operation, "_softmax")
        last = None if softmax is None else self._reader(softmax, "bmm")
        if last is None:
            return None
        own = [op.name for op in self._recording.operations if op.module == operation.module]
        kind = "sink_attention" if "cat" in own[own.index("bmm") :] else "attention"
        kind = "softcap_attention" if "tanh" in own else kind
        added = [v for op in self._recording.operations if op.module == operation.module for v in op.operands]
        return self._attention(last, kind, (*operation.operands, last.operands[1]), added)

    def _reader(self, operation: Operation, name: str) -> Operation | None:
        """The operation of that name that reads it, at some distance, before any product."""
        waiting, seen = list(operation.results), set[int]()
        while waiting:
            for number in self.cuts.readers.get(waiting.pop().number, []):
                reader = self._recording.operations[number]
                if reader.name == name:
                    return reader
                if number not in seen and reader.name not in ("bmm", "mm", "addmm"):
                    seen.add(number)
                    waiting += reader.results
        return None

    def _attention(
        self, operation: Operation, kind: str, query_key_value: Sequence[Value], masks: Sequence[Value]
    ) -> OperatorCall:
        """Keys may come transposed. Among `masks` there may be one, which says how far a token sees."""
        query, _, value = query_key_value
        query_shape, value_shape = self._tensor(query).shape, self._tensor(value).shape
        heads, tokens, head_dim = query_shape[-3:]
        context, value_dim = value_shape[-2:]
        key_heads = self._before_repeating(value, value_shape[-3])
        window = self._window(masks, (1, tokens, context)) or context
        return self._call(operation, f"{kind}_prefill", tokens, context, window, heads, key_heads, head_dim, value_dim)

    def _window(self, masks: Sequence[Value], shape: tuple[int, ...]) -> int | None:
        """The most positions that a mask of that shape lets a token see, all heads alike."""
        for value in masks:
            mask = self._tensor(value)
            if mask.dim() == 4 and mask.shape[1:] == shape:
                seen = mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min / 2
                return int(seen.sum(-1).max())
        return None

    def _before_repeating(self, value: Value, heads: int) -> int:
        """Heads before each was repeated for its group of queries."""
        number = self.cuts.producer.get(value.number)
        while number is not None and self._recording.operations[number].name in VIEWS:
            operation = self._recording.operations[number]
            before, after = self._tensor(operation.operands[0]).shape, self._tensor(operation.results[0]).shape
            if operation.name == "expand" and len(before) == 5 and before != after:
                return int(before[1])
            number = self.cuts.producer.get(operation.operands[0].number)
        return heads

    def _between(self) -> Iterator[tuple[int, TracedCall]]:
        operations = self._recording.operations
        routers = {op.module for op in operations if op.name == "topk"}
        experts = {op.module for op in operations if op.name == "_grouped_mm"}
        attending = {op.module for op in operations if op.name == "bmm"}
        for region in self.cuts.regions():
            for piece, found in self._recognised(region.pieces):
                if not piece.operations:
                    continue
                names = [operations[number].name for number in piece.operations]
                if piece.module in routers or (piece.module in attending and "_softmax" in names):
                    continue
                traced = self._expert_sum(piece) if found is None and piece.module in experts else None
                if found is None and piece.module in experts and traced is None:
                    continue
                yield piece.operations[0], traced or self._traced(piece, found)

    def _recognised(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, matching.Match | None]]:
        """The longest run of pieces that is an operator, and likewise what is left on both sides."""
        for length in range(min(len(pieces), MOST_PIECES), 0, -1):
            for first in range(len(pieces) - length + 1):
                piece, found = self._with_match(self.cuts.joined(pieces[first : first + length]))
                if found is not None or len(pieces) == 1:
                    yield from self._recognised(pieces[:first])
                    yield piece, found
                    yield from self._recognised(pieces[first + length :])
                    return
        for piece in pieces:
            yield piece, None

    def _with_match(self, piece: Piece) -> tuple[Piece, matching.Match | None]:
        """The piece, or what it is without the concatenations at its end."""
        found, shorter = self._match(piece), self.cuts.unassembled(piece)
        if found is None and shorter.operations not in ((), piece.operations):
            return shorter, self._match(shorter)
        return piece, found

    def _match(self, piece: Piece) -> matching.Match | None:
        key = self.signature(piece)
        if key not in self._known:
            inputs, outputs = self.cuts.inputs(piece), self.cuts.outputs(piece)
            usable = not {value.number for value in (*inputs, *outputs)} & self._recording.overwritten
            self._known[key] = self._matched(piece, inputs, outputs) if usable else None
        return self._known[key]

    def _matched(self, piece: Piece, inputs: Sequence[Value], outputs: Sequence[Value]) -> matching.Match | None:
        constants = self.constants(piece)
        given, wanted = [self._tensor(value) for value in inputs], [self._tensor(value) for value in outputs]
        tried = (matching.match(formula, given, wanted, constants) for formula in self._fitting(piece))
        return next((found for found in tried if found is not None), None)

    def _fitting(self, piece: Piece) -> Iterator[Formula]:
        inputs = [self._tensor(value) for value in self.cuts.inputs(piece)]
        numbers = "complex" if any(tensor.is_complex() for tensor in inputs) else "real"
        for formula in self._formulas:
            if len(formula.inputs) == len(inputs) and formula.numbers == numbers:
                yield formula

    def constants(self, piece: Piece) -> list[float]:
        """Numbers with a point that occur in it."""
        operations = [self._recording.operations[number] for number in self.cuts.closure(piece)]
        return list(dict.fromkeys(a for op in operations for a in op.arguments if isinstance(a, float)))

    def signature(self, piece: Piece) -> str:
        """The same for pieces that do the same with tensors of the same shapes."""
        places: dict[int, int] = {}
        parts: list[str] = []
        for number in self.cuts.closure(piece):
            operation = self._recording.operations[number]
            for value in operation.operands:
                places.setdefault(value.number, len(places))
                parts.append(f"{places[value.number]}:{tuple(self._tensor(value).shape)}")
            literals = [a for a in operation.arguments if not isinstance(a, Value | list)]
            parts.append(f"{operation.function} {literals}")
            for value in operation.results:
                places.setdefault(value.number, len(places))
        outputs = [places[value.number] for value in self.cuts.outputs(piece)]
        return f"{outputs} {parts}"

    def _expert_sum(self, piece: Piece) -> TracedCall | None:
        """The sum over what a token's experts gave; the product with their weights belongs to it."""
        for number in piece.operations:
            operation = self._recording.operations[number]
            shape = self._tensor(operation.operands[0]).shape if operation.operands else ()
            if operation.name == "sum" and len(shape) == 3:
                own = [op for op in self._recording.operations if op.module == piece.module]
                product = next(op for op in own if op.name == "_grouped_mm")
                call = self._call(product, "expert_sum", *shape)
                return TracedCall(call, vocabulary.cost(call), piece.module, None, True)
        return None

    def _traced(self, piece: Piece, found: matching.Match | None) -> TracedCall:
        outputs = [self._tensor(value) for value in self.cuts.outputs(piece)]
        dtype = _dtype(outputs[0])
        if found is None:
            largest = max(outputs, key=lambda tensor: tensor.numel())
            columns = largest.shape[-1] if largest.dim() else 1
            call = OperatorCall(
                self._own_name(piece), {"rows": largest.numel() // columns, "columns": columns}, dtype, 1
            )
            return TracedCall(call, self._cost(piece), piece.module, piece, False)
        axes = {"key_heads": 1, **found.extents}
        call = OperatorCall(found.name, {axis: axes[axis] for axis in vocabulary.axes_of(found.name)}, dtype, 1)
        return TracedCall(call, vocabulary.cost(call), piece.module, piece, True)

    def _own_name(self, piece: Piece) -> str:
        """The module's; another one for each thing that it does, and none that says what it is not."""
        name = snake(piece.kind)
        if name in vocabulary.DEFINED or name in vocabulary.OUTLINES:
            name = f"other_{name}"
        done = tuple(self._recording.operations[number].function for number in piece.operations)
        kinds = self._unknown.setdefault(name, [])
        if done not in kinds:
            kinds.append(done)
        number = kinds.index(done) + 1
        return name if number == 1 else f"{name}_{number}"

    def _cost(self, piece: Piece) -> Cost:
        """Inputs and outputs once, and an operation per element of every result."""
        inputs = [self._tensor(value) for value in self.cuts.inputs(piece)]
        outputs = [self._tensor(value) for value in self.cuts.outputs(piece)]
        results = [self._tensor(v) for n in piece.operations for v in self._recording.operations[n].results]
        return Cost(
            flops=sum(tensor.numel() for tensor in results),
            bytes_read=sum(tensor.numel() * tensor.element_size() for tensor in inputs),
            bytes_written=sum(tensor.numel() * tensor.element_size() for tensor in outputs),
        )

    def _tensor(self, value: Value) -> Tensor:
        return self._recording.tensor(value)


def snake(name: str) -> str:
    """`Gemma3RMSNorm` as `gemma3_rms_norm`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "_", words).lower() or "operator"


def _dtype(tensor: Tensor) -> str:
    return str(torch.empty(0, dtype=tensor.dtype).dtype).removeprefix("torch.")
