"""The C++ of a fused operator, written from how its parts hang together (`kernels.fusion_wiring`).

A program is a sequence of phases. In one of rows each row goes through all of its parts while it is in registers and in
the first cache; in one of products threads share out the rows of the weights. What passes from phase to phase lies in
memory of the call: in the operator's dtype, as the engine rounds it, where it is multiplied; but what rows ask of a
product is not rounded, since silu or softmax make much of little. What a norm goes over and what is made in the same
phase is kept where an output of the phase will be, in the same row: that takes no memory of its own, and rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernels import catalogue, fusion_plan
from kernels.fusion_wiring import Place, Wiring

PRODUCT, NORM = "product", "rms_norm"


@dataclass(frozen=True)
class Formula:
    """A step of an operator: a function of `fused_rows.h`, or a product. Arguments are `i0` (its first input), `o1`
    (its second output) or `s0` (its first scalar).
    """

    result: str
    function: str
    arguments: tuple[str, ...]


FORMULAS = {
    "residual_add": (Formula("o0", "residual_add", ("i0", "i1")),),
    "rms_norm": (Formula("o0", NORM, ("i0", "i1", "s0")),),
    "fused_add_rms_norm": (Formula("o1", "residual_add", ("i0", "i1")), Formula("o0", NORM, ("o1", "i2", "s0"))),
    "silu_and_mul": (Formula("o0", "silu_and_mul", ("i0", "i1")),),
    "softmax": (Formula("o0", "softmax", ("i0",)),),
    "skinny_linear": (Formula("o0", PRODUCT, ("i0", "i1")),),
}
"""Operators that a program can have as parts."""
SUMMING = (NORM, "softmax")
"""Functions that go over a row of their first argument before they give anything of it."""


@dataclass(frozen=True)
class _Step:
    """A formula with names of the program for its arguments and its result."""

    result: str
    function: str
    arguments: tuple[str, ...]
    width: str
    """The axis along which the result's rows lie."""

    @property
    def is_product(self) -> bool:
        return self.function == PRODUCT


@dataclass(frozen=True)
class Program:
    """How a fused operator is computed."""

    wiring: Wiring

    @cached_property
    def multiplies(self) -> bool:
        """Whether there is a product in it."""
        return any(step.is_product for step in self._steps)

    @cached_property
    def keeps(self) -> bool:
        """Whether it can keep what otherwise is computed again."""
        return any(self._kept(phase) for phase in self._phases)

    def main(self) -> str:
        """The file `main.cpp`."""
        lines = [f"/* {line} */" for line in self._title()]
        if self.multiplies:
            lines += [
                "constexpr int STREAM_FROM_KIB = 0, PARALLEL_FROM = 0; /* threads and caches serve the products */"
            ]
        lines += [f'#include "fused_{"products" if self.multiplies else "rows"}.h"', ""]
        lines += ["GM_EXPORT int32_t gm_run(const gm_call *call) {"]
        lines += _indented((*self._declarations(), *self._run()))
        return "\n".join([*lines, "    return 0;", "}", ""])

    @cached_property
    def _inputs(self) -> dict[str, int]:
        """Names of the whole's inputs, and their positions."""
        return {spec.name: position for position, spec in enumerate(self.wiring.specs[0])}

    @cached_property
    def _outputs(self) -> dict[str, int]:
        return {spec.name: position for position, spec in enumerate(self.wiring.specs[1])}

    @cached_property
    def _steps(self) -> tuple[_Step, ...]:
        scalars = 0
        steps: list[_Step] = []
        for number, part in enumerate(self.wiring.parts):
            for formula in FORMULAS[part.name]:
                names = {"i": self._input_name, "o": self._output_name}
                arguments = [
                    f"call->scalars[{scalars + int(one[1:])}]"
                    if one.startswith("s")
                    else names[one[0]]((number, int(one[1:])))
                    for one in formula.arguments
                ]
                result = int(formula.result[1:])
                width = self.wiring.axis_names[number, part.outputs[result].dims[-1]]
                steps.append(_Step(self._output_name((number, result)), formula.function, tuple(arguments), width))
            scalars += len(part.scalars)
        return tuple(steps)

    def _input_name(self, place: Place) -> str:
        wiring = self.wiring
        if place in wiring.feeds:
            return self._output_name(wiring.feeds[place])
        return wiring.specs[0][wiring.inputs.index(wiring.shared.get(place, place))].name

    def _output_name(self, place: Place) -> str:
        if place in self.wiring.outputs:
            return self.wiring.specs[1][self.wiring.outputs.index(place)].name
        return f"part{place[0]}_{place[1]}"

    @cached_property
    def _phases(self) -> tuple[tuple[_Step, ...], ...]:
        """Steps that need not wait for one another, in order: all rows of one width, or products."""
        phases: list[list[_Step]] = []
        for step in self._steps:
            last = phases[-1] if phases else []
            made = {one.result for one in last}
            alike = bool(last) and step.is_product == last[0].is_product
            if alike and (not made & {*step.arguments} if step.is_product else step.width == last[0].width):
                last.append(step)
            else:
                phases.append([step])
        return tuple(map(tuple, phases))

    def _stored(self, phase: Sequence[_Step]) -> list[str]:
        """What a phase leaves in memory: outputs, and what later phases ask for."""
        place = self._phases.index(tuple(phase))
        asked = {one for later in self._phases[place + 1 :] for step in later for one in step.arguments}
        return [step.result for step in phase if step.result in self._outputs or step.result in asked]

    def _kept(self, phase: Sequence[_Step]) -> dict[str, str]:
        """What is made in a phase of rows and normalised in it, and in whose memory it is kept: its own if it has some,
        else that of another result that no value is kept in. What finds no place is computed again, and so is what
        other parts of the phase go on with: they may make much of its being rounded.
        """
        readers = {step.result: [one for one in phase if step.result in one.arguments] for step in phase}
        ends = [step for step in phase if step.function == NORM and not readers[step.result]]
        summed = [name for name, asking in readers.items() if asking and all(one in ends for one in asking)]
        stored = self._stored(phase)
        free = [name for name in stored if name not in summed]
        own = {name: name for name in summed if name in stored}
        others = [name for name in summed if name not in stored]
        return own | dict(zip(others, free, strict=False))

    def _title(self) -> Iterator[str]:
        yield self.wiring.name
        for role, specs in zip(("in ", "out"), self.wiring.specs, strict=True):
            yield f"{role}: " + ", ".join(f"{spec.name} [{', '.join(spec.dims)}]" for spec in specs)

    def _declarations(self) -> Iterator[str]:
        """Axes, tensors, and memory for what passes between phases."""
        widths = [phase[0].width for phase in self._phases if not phase[0].is_product]
        widths += [width for *_, width in self._memory()]
        for axis in dict.fromkeys((self._rows, *widths)):
            yield f"const int64_t {axis} = {self._extent(axis)};"
        yield f"if ({self._rows} < MIN_TOKENS || MAX_TOKENS < {self._rows}) return 1;"
        weights = {step.arguments[1] for step in self._steps if step.is_product}
        for kind, names in (("inputs", self._inputs), ("outputs", self._outputs)):
            for name, position in names.items():
                if name not in weights:
                    yield f"const Rows {name} = rows_of(call->{kind}[{position}]);"
        for kind, element, name, width in self._memory():
            yield f"const Buffer {name}_memory(({self._rows} * {width} + LANES) * int64_t(sizeof({element})));"
            yield f"if (!{name}_memory.data) return 1;"
            yield f"const {kind} {name} = {{({element} *){name}_memory.data, {width}}};"

    def _memory(self) -> Iterator[tuple[str, str, str, str]]:
        """What passes from phase to phase: type of its rows and of their elements, name, and axis."""
        for step in (step for phase in self._phases for step in phase if step.result in self._stored(phase)):
            if step.result not in self._outputs and (step.result in self._multiplied or not step.is_product):
                yield "Rows", "real", step.result, step.width
            if step.result in self._summed:
                yield "Sums", "float", f"{step.result}_sums", step.width

    @cached_property
    def _summed(self) -> frozenset[str]:
        """Products that rows ask for, of which the sums are kept."""
        asked = {name for step in self._steps if not step.is_product for name in step.arguments}
        return frozenset(step.result for step in self._steps if step.is_product and step.result in asked)

    def _extent(self, axis: str) -> str:
        position, spec = next(one for one in enumerate(self.wiring.specs[0]) if axis in one[1].dims)
        return f"call->inputs[{position}].shape[{spec.dims.index(axis)}]"

    @property
    def _rows(self) -> str:
        return self.wiring.varying.name

    def _run(self) -> Iterator[str]:
        if not self.multiplies:
            (phase,) = self._phases
            yield f"for_each_row({self._rows}, {phase[0].width}, [&](int64_t row, auto vector) INLINED {{"
            yield from _indented(self._row(phase))
            yield "});"
            return
        for number, phase in enumerate(self._phases):
            if not phase[0].is_product:
                yield f"const auto rows{number} = [&](int64_t row, auto vector) INLINED {{"
                yield from _indented(self._row(phase))
                yield "};"
        products = [step for step in self._steps if step.is_product]
        for step in products:
            x, weight = step.arguments
            weight = f"call->inputs[{self._inputs[weight]}]"
            to = [step.result if step.result in {*self._outputs, *self._multiplied} else "Rows{}"]
            to += [f"{step.result}_sums"] if step.result in self._summed else []
            product = f"product_of({self._rows}, {x}, {weight}, {', '.join(to)})"
            yield f"const auto {step.result}_product = {product};"
        for x, step in self._multiplied.items():
            yield f"const Buffer {x}_chunks(interleaved_bytes({step.result}_product));"
            yield f"if (!{x}_chunks.data) return 1;"
        yield f"const bool parallel = {' || '.join(f'worth_threads({step.result}_product)' for step in products)};"
        yield "#pragma omp parallel num_threads(THREADS) if (parallel)"
        yield "{"
        for number, phase in enumerate(self._phases):
            if number:
                yield "#pragma omp barrier"
            yield from _indented(self._shares(number, phase))
        yield "}"

    @cached_property
    def _multiplied(self) -> dict[str, _Step]:
        """What is multiplied by weights, and the first step that does it."""
        return {step.arguments[0]: step for step in reversed(self._steps) if step.is_product}

    def _shares(self, number: int, phase: Sequence[_Step]) -> Iterator[str]:
        """What a thread of the team does in a phase."""
        if not phase[0].is_product:
            yield f"share_rows({self._rows}, rows{number});"
            return
        for x, first in self._multiplied.items():
            if first in phase:
                yield "#pragma omp single"
                yield f"interleave({first.result}_product, (floats *){x}_chunks.data);"
        for step in phase:
            yield f"share_products({step.result}_product, {step.arguments[0]}_chunks);"

    def _row(self, phase: Sequence[_Step]) -> Iterator[str]:
        """One row through a phase."""
        kept, stored = self._kept(phase), self._stored(phase)
        made: set[str] = set()
        for step in phase:
            arguments = [self._argument(name, made) for name in step.arguments]
            size = [step.width] if step.function in SUMMING else []
            value = f"{step.function}({', '.join([*size, *arguments])})"
            if step.result in kept:
                value = f"keep<KEEP>({value}, {kept[step.result]}[row])"
            yield f"const auto {_value(step.result)} = {value};"
            made.add(step.result)
        yield f"for_row<decltype(vector)>({phase[0].width}, [&](int64_t i, auto some) INLINED {{"
        # All are read before any is written: what is kept may lie where another one goes.
        for number, name in enumerate(stored):
            yield f"    const floats out{number} = {_value(name)}(i, some);"
        for number, name in enumerate(stored):
            unless_kept = "if (!KEEP) " if kept.get(name) == name else ""
            yield f"    {unless_kept}some.store({name}[row] + i, out{number});"
        yield "});"

    def _argument(self, name: str, made: set[str]) -> str:
        if name in made:
            return _value(name)
        if name in self._inputs and len(self.wiring.specs[0][self._inputs[name]].dims) == 1:
            return f"at({name}, 0)"
        if name.startswith("call->"):
            return name
        return f"at({name}_sums, row)" if name in self._summed else f"at({name}, row)"


def program_of(operator: str) -> Program | None:
    """How to compute a fused operator; None where a part of it has no formula."""
    stages = fusion_plan.parse(operator)
    names = [name for stage in stages for name in stage.operators]
    if not all(name in FORMULAS for name in names):
        return None
    catalogue.operator(operator)
    return Program(Wiring(operator, stages, tuple(catalogue.operator(name) for name in names)))


def _value(name: str) -> str:
    return f"value_{name}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" if not line.startswith("#") else line for line in lines)
