"""The source of a drafted definition: a module like those of `kernels.operators`, for a person to review.

Shapes, names and costs follow from two recordings of the same piece at different sizes. What one recording alone would
have to guess (is this 64 the head's width, or half of 128?) is told by how it changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.drafts import expressions
from kernels.drafts.expressions import Operand
from kernels.drafts.extents import Axes, Pair, suffix
from kernels.errors import DraftError
from kernels.models.recording import Operation, Recording, Value
from kernels.models.regions import VIEWS, Cuts, Piece

SIZED = {"view": 1, "_unsafe_view": 1, "reshape": 1, "expand": 1, "split": 1, "split_with_sizes": 1}
"""Operations with extents among their arguments, and the position of these; a slice has them at 2 and 3."""
ACTIVATIONS = "xyzuvw"
NARROW = ("1", "3", "1", "2", "5", "4", "3", "2")
WIDE = ("1", "7", "17", "33", "64", "63", "127", "257")
VARYING = ("1", "3", "1", "2", "17", "4", "7", "5")
REGIMES = ("traffic", "large_offset", "small", "wide")


@dataclass(frozen=True)
class Seen:
    """A piece in a recording of one size."""

    cuts: Cuts
    piece: Piece

    @property
    def recording(self) -> Recording:
        return self.cuts.recording

    @property
    def operations(self) -> list[Operation]:
        return [self.recording.operations[number] for number in self.cuts.closure(self.piece)]


@dataclass(frozen=True)
class Input:
    """A tensor that the draft takes."""

    number: int
    """Of its value in the first recording."""
    base: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[Pair, ...]
    """As recorded, with dimensions of extent 1."""
    weight: bool
    mean: float
    spread: float


class DraftSource:
    """One draft. Extents must differ between the recordings wherever they are to be told apart.

    Raises:
        DraftError: the recordings differ in more than sizes, or do what drafts are not written of.
    """

    def __init__(self, name: str, first: Seen, second: Seen, known: Mapping[Pair, str]) -> None:
        if [op.function for op in first.operations] != [op.function for op in second.operations]:
            raise DraftError(f"draft of {name}: the two recordings do not do the same; record both with the same model")
        self.name = name
        self._first, self._second = first, second
        self._axes = Axes(known)
        self._letters: dict[str, str] = {}
        self._constants: dict[int, str] = {}
        self.inputs = list(self._inputs())
        self.outputs = [self._output(number, pair) for number, pair in enumerate(self._pairs(Cuts.outputs))]

    def _pairs(self, of: Any) -> list[tuple[Value, Value]]:
        mine, other = of(self._first.cuts, self._first.piece), of(self._second.cuts, self._second.piece)
        return list(zip(mine, other, strict=True))

    def _tensors(self, pair: tuple[Value, Value]) -> tuple[Tensor, Tensor]:
        return self._first.recording.tensor(pair[0]), self._second.recording.tensor(pair[1])

    def _inputs(self) -> Iterator[Input]:
        activations, weights = iter(ACTIVATIONS), 0
        for pair in self._pairs(Cuts.inputs):
            tensor, other = (tensor.detach() for tensor in self._tensors(pair))
            if not tensor.is_floating_point():
                raise DraftError(
                    f"draft of {self.name}: it reads {tensor.dtype} values; only real numbers can be drawn"
                )
            if tensor.dim() == 0:
                if not torch.equal(tensor, other):
                    raise DraftError(f"draft of {self.name}: a constant of it follows from the sizes; make it an input")
                self._constants[pair[0].number] = repr(float(tensor))
                continue
            is_weight = self._first.cuts.of_weights(pair[0])
            weights += is_weight
            base = f"weight_{weights}" if weights > 1 and is_weight else "weight" if is_weight else next(activations)
            dims = self._axes.dims((tensor.shape, other.shape)) or (self._axes.name((1, 1)),)
            named = f"{base}_{suffix(dims, self._letters)}"
            shape = tuple(zip(tensor.shape, other.shape, strict=True))
            exact = tensor.double()
            spread = float(exact.std()) if tensor.numel() > 1 else 0.0
            yield Input(pair[0].number, base, named, dims, shape, is_weight, float(exact.mean()), spread)

    def _output(self, number: int, pair: tuple[Value, Value]) -> tuple[Value, str, tuple[str, ...]]:
        tensor, other = self._tensors(pair)
        dims = self._axes.dims((tensor.shape, other.shape))
        base = "out" if number == 0 else f"out_{number + 1}"
        return pair[0], f"{base}_{suffix(dims, self._letters)}", dims

    def text(self, *, row_axis: bool = True) -> str:
        """The whole module."""
        body = [self._reference(), self._eager(), self._error_scale()]  # these find the axes that are halved
        return (
            "\n\n\n".join([self._head(), *body, self._make_inputs(), self._cost(), self._definition(row_axis)]) + "\n"
        )

    def _head(self) -> str:
        legend = ", ".join(f"{letter} {name.replace('_', ' ')}" for name, letter in self._letters.items())
        lines = [
            f'"""Draft of `{self.name}`: what {self._first.piece.kind} computed in a recorded forward pass.',
            "",
            "Written by `./mill model`, and used by nothing before a person has reviewed it. Shape suffixes:",
            f'{legend}.\n"""',
            "",
            "from __future__ import annotations",
            "",
            "from collections.abc import Mapping",
            "",
            "import torch",
            "from torch import Generator, Tensor",
            "from torch.nn import functional",
            "",
            "from kernels import distributions",
            "from kernels.definition import Cost, Definition, Role, TensorSpec",
        ]
        body = self._body(casts=None, scales=True) + self._body(casts="x", scales=False)
        unused = {"import torch": "torch.", "from torch.nn import functional": "functional."}
        text = "\n".join(body)
        return "\n".join(line for line in lines if line not in unused or unused[line] in text)

    def _reference(self) -> str:
        return self._function("reference", self._body(casts=None, scales=False))

    def _eager(self) -> str:
        lines = ['    """As recorded, with its conversions between types."""']
        return self._function("eager", lines + self._body(casts=f"{self.inputs[0].name}.dtype", scales=False))

    def _error_scale(self) -> str:
        lines = ['    """Running error analysis of the recorded operations, without factors."""']
        return self._function("error_scale", lines + self._body(casts=None, scales=True))

    def _function(self, name: str, lines: Sequence[str]) -> str:
        arguments = ", ".join(f"{given.name}: Tensor" for given in self.inputs)
        return "\n".join([f"def {name}({arguments}) -> tuple[Tensor, ...]:", *lines])

    def _body(self, *, casts: str | None, scales: bool) -> list[str]:
        """The operations, one a line, and what each is off by."""
        lines: list[str] = []
        known: dict[int, Operand] = {number: Operand(text) for number, text in self._constants.items()}
        for given in self.inputs:
            known[given.number] = Operand(self._unfolded(given, lines), rank=len(given.shape))
        counter = 0
        for mine, other in zip(self._first.operations, self._second.operations, strict=True):
            call = self._call(mine, other, known)
            text = expressions.value(call, casts=casts)
            for place, result in enumerate(mine.results):
                piece = f"({text})[{place}]" if len(mine.results) > 1 else text
                if not piece.isidentifier():
                    counter += 1
                    lines.append(f"    v{counter} = {piece}")
                    piece = f"v{counter}"
                off = self._off(call, piece, place, len(mine.results), scales)
                if off is not None and not off.isidentifier():
                    lines.append(f"    d{counter} = {off}")
                    off = f"d{counter}"
                known[result.number] = Operand(piece, off, self._first.recording.tensor(result).dim())
        answers = [self._folded(known[value.number], dims, scales) for value, _, dims in self.outputs]
        shapes = [line for name in self._axes.names.values() for line in self._extent_line(name, [*lines, *answers])]
        return [*shapes, *lines, f"    return ({', '.join(answers)},)"]

    @staticmethod
    def _off(call: expressions.Call, result: str, place: int, results: int, scales: bool) -> str | None:
        off = expressions.off(call, result) if scales else None
        return f"({off})[{place}]" if off is not None and results > 1 else off

    def _unfolded(self, given: Input, lines: list[str]) -> str:
        """The input with the dimensions of extent 1 that it was recorded with."""
        if len(given.dims) == len(given.shape):
            return given.name
        sizes = ", ".join("1" if pair == (1, 1) else self._axes.name(pair) for pair in given.shape)
        lines.append(f"    {given.base} = {given.name}.reshape({sizes})")
        return given.base

    def _folded(self, answer: Operand, dims: Sequence[str], scales: bool) -> str:
        text = answer.text if not scales else answer.off or f"{answer.text}.abs()"
        if len(dims) != answer.rank:
            text = f"{text}.reshape({', '.join(dims)})"
        return f"distributions.positive({text})" if scales else text

    def _extent_line(self, axis: str, lines: Sequence[str]) -> Iterator[str]:
        """Where the code needs an extent: which tensor has it."""
        if any(axis in _words(line) for line in lines):
            given = next((given for given in self.inputs if axis in given.dims), None)
            if given is None:
                raise DraftError(f"draft of {self.name}: no input has the axis {axis}")
            yield f"    {axis} = {given.name}.shape[{given.dims.index(axis)}]"

    def _call(self, mine: Operation, other: Operation, known: Mapping[int, Operand]) -> expressions.Call:
        operands = [self._operand(argument, known) for argument in _flat(mine.arguments)]
        literals = [
            self._literal(mine.name, place, *pair)
            for place, pair in enumerate(zip(mine.arguments, other.arguments, strict=True))
        ]
        return expressions.Call(mine.name, [o for o in operands if o is not None], literals, dict(mine.keywords))

    def _operand(self, argument: Any, known: Mapping[int, Operand]) -> Operand | None:
        if isinstance(argument, Value):
            return known[argument.number]
        return Operand(repr(argument)) if isinstance(argument, int | float) else None

    def _literal(self, name: str, place: int, mine: Any, other: Any) -> Any:
        """Extents as expressions, everything else as it is."""
        sized = place == SIZED.get(name, -1) or (name == "slice" and place in (2, 3))
        if not sized:
            return mine
        if isinstance(mine, list | tuple):
            return [self._extent(pair) for pair in zip(mine, other, strict=True)]
        return self._extent((mine, other))

    def _extent(self, pair: tuple[Any, Any]) -> Any:
        ordinary = all(isinstance(size, int) and 1 < size < expressions.END for size in pair)
        return self._axes.expression((int(pair[0]), int(pair[1]))) if ordinary else pair[0]

    def _make_inputs(self) -> str:
        lines = [
            "def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str)"
            " -> tuple[Tensor, ...]:",
            '    """Weights about as far spread as those that were recorded."""',
            "    draw = distributions.ACTIVATIONS[regime]",
        ]
        for given in self.inputs:
            shape = ", ".join(f'axes["{name}"]' for name in given.dims)
            if not given.weight:
                lines.append(f"    {given.name} = draw(generator, {shape})")
            elif len(given.dims) > 1:
                fan = given.dims[0]
                lines.append(f'    {given.name} = distributions.normal(generator, {shape}) / axes["{fan}"] ** 0.5')
            else:
                spread = given.spread if given.spread > 0 else 0.25
                lines.append(
                    f"    {given.name} = {given.mean:.2f} + {spread:.2f} * distributions.normal(generator, {shape})"
                )
        names = ", ".join(given.name for given in self.inputs)
        return "\n".join([*lines, f"    return distributions.rounded(dtype, {names})"])

    def _cost(self) -> str:
        terms: dict[str, int] = {}
        for mine, other in zip(self._first.operations, self._second.operations, strict=True):
            if mine.name in VIEWS or mine.name in ("_to_copy", "cat", "neg"):
                continue
            product = self._product(mine.results[0], other.results[0])
            factor = 1
            if mine.name in expressions.PRODUCTS:
                inner = [t.shape[-1] for t in self._tensors((mine.operands[-2], other.operands[-2]))]
                product, factor = f"{product} * {self._axes.name((inner[0], inner[1]))}", 2
            terms[product] = terms.get(product, 0) + factor
        read = " + ".join(" * ".join(given.dims) for given in self.inputs)
        written = " + ".join(" * ".join(dims) for _, _, dims in self.outputs)
        flops = " + ".join(f"{count} * {product}" for product, count in terms.items())
        names = [name for name in self._axes.names.values() if name in _words(f"{read} {written} {flops}")]
        return "\n".join(
            [
                "def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:",
                '    """One operation per element of every result; each input once in, each output once out."""',
                *(f'    {name} = axes["{name}"]' for name in names),
                f"    read, written = {read}, {written}",
                f"    return Cost({flops or '0'}, (read) * item_bytes, (written) * item_bytes)",
            ]
        )

    def _product(self, mine: Value, other: Value) -> str:
        shapes = [tensor.shape for tensor in self._tensors((mine, other))]
        pairs = [pair for pair in zip(*shapes, strict=True) if pair != (1, 1)]
        return " * ".join(self._axes.expression((a, b)) for a, b in pairs) or "1"

    def _definition(self, row_axis: bool) -> str:
        names, varying = list(self._axes.names.values()), self._axes.varying()
        constant = [name for name in names if name not in varying]
        rows = varying[0] if varying and row_axis and all(varying[0] in dims for _, _, dims in self.outputs) else ""
        halved = self._axes.halved([self._reference()])
        lines = [
            "DEFINITION = Definition(",
            f'    name="{self.name}",',
            f'    summary="Draft: what {self._first.piece.kind} computes",',
            f"    axes={{{', '.join(f'{name!r}: {self._meaning(name)!r}' for name in names)}}},",
            f"    inputs=({''.join(self._spec(given) + ', ' for given in self.inputs)}),",
            f"    outputs=({''.join(f'TensorSpec({name!r}, {dims!r}), ' for _, name, dims in self.outputs)}),",
            "    scalars=(),",
            f"    row_axis={rows!r},",
            f"    constant_axes={tuple(constant)!r},",
            "    reference=reference,",
            '    baselines={"eager": eager},',
            "    error_scale=error_scale,",
            f"    elementwise={self._is_elementwise()},",
            "    make_inputs=make_inputs,",
            f"    regimes={REGIMES!r},",
            "    cost=cost,",
            "    edge_axes=(",
            *(f"        {edge!r}," for edge in self._edges(names, varying, halved)),
            "    ),",
            f"    axis_steps={dict.fromkeys(halved, 2)!r},",
            ")",
        ]
        return "\n".join(lines)

    @staticmethod
    def _meaning(axis: str) -> str:
        return f"{axis.replace('_', ' ')}, as recorded"

    @staticmethod
    def _spec(given: Input) -> str:
        role = ", Role.WEIGHT" if given.weight else ""
        return f"TensorSpec({given.name!r}, {given.dims!r}{role})"

    def _is_elementwise(self) -> bool:
        alike = len({given.dims for given in self.inputs} | {dims for _, _, dims in self.outputs}) == 1
        return alike and all(op.name in expressions.ELEMENTWISE for op in self._first.operations)

    @staticmethod
    def _edges(names: Sequence[str], varying: Sequence[str], halved: Sequence[str]) -> Iterator[dict[str, int]]:
        """The widest axis comes last of those that the model fixes; the others stay small."""
        fixed = [name for name in names if name not in varying]
        for place in range(len(WIDE)):
            edge = {}
            for name in names:
                sizes = VARYING if name in varying else WIDE if name == fixed[-1] else NARROW
                extent = int(sizes[place])
                edge[name] = 2 * math.ceil(extent / 2) if name in halved else extent
            yield edge


def _flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """Tensors and numbers, those in lists of tensors among them."""
    for argument in arguments:
        if isinstance(argument, list | tuple) and any(isinstance(item, Value) for item in argument):
            yield from argument
        else:
            yield argument


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())
