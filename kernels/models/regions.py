"""Where one operator ends and the next begins in a recording.

What an engine may fuse lies between matrix products, look-ups and sorts: these are operators by themselves. The rest,
element by element or reduced along a row, hangs together in regions: operations that feed one another, with as many
products on the longest way to them, so that no product lies between them. A region is made of pieces, one per module
that took part; an operator is one piece or several in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.models.recording import Operation, Recording, Value

LAYOUTS = frozenset(
    ("view", "_unsafe_view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "t", "detach", "alias", "clone")
)
"""Operations that give all elements another shape or place."""
PARTS = frozenset(("slice", "select", "split", "split_with_sizes", "unbind", "expand"))
"""Operations that give some elements, or the same again."""
VIEWS = LAYOUTS | PARTS
MOVES = frozenset(("copy_", "new_empty", "empty_like", "new_zeros", "zeros_like", "fill_"))
"""Operations that put tensors into place."""
PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution"))
LOOKUPS = frozenset(
    ("embedding", "topk", "sort", "index", "index_put_", "index_add_", "index_add", "gather", "cumsum", "histc")
)
ATTENTION = "_scaled_dot_product"


@dataclass(frozen=True)
class Piece:
    """Operations of one region that one module asked for, or several pieces taken together."""

    operations: tuple[int, ...]
    """Their numbers in the recording, in order, with the views between them."""
    module: str
    kind: str


@dataclass(frozen=True)
class Region:
    """Pieces that feed one another, in order."""

    pieces: tuple[Piece, ...]


def is_anchor(operation: Operation) -> bool:
    """Whether it is an operator by itself."""
    name = operation.name
    return name in PRODUCTS or name in LOOKUPS or name.startswith(ATTENTION)


class Cuts:
    """A recording, taken apart.

    Args:
        whole_inputs: whether a piece that reads several parts of one tensor takes all of it.
    """

    def __init__(self, recording: Recording, *, whole_inputs: bool = True) -> None:
        self.recording = recording
        self._whole_inputs = whole_inputs
        self.producer = {v.number: n for n, op in enumerate(recording.operations) for v in op.results}
        self.readers: dict[int, list[int]] = {}
        for number, operation in enumerate(recording.operations):
            for value in operation.operands:
                self.readers.setdefault(value.number, []).append(number)
        self._levels = self._measured()
        self._closures: dict[Piece, tuple[int, ...]] = {}

    def regions(self) -> list[Region]:
        """In the order in which they start. What depends on positions and weights alone is left out: engines make such
        tables once.
        """
        groups: dict[int, list[int]] = {}
        leader = {number: number for number in range(len(self.recording.operations)) if self._computes(number)}
        for number in leader:
            for before in self._sources(number):
                if before in leader and self._levels[before] == self._levels[number]:
                    leader[_root(leader, number)] = _root(leader, before)
        self._join_by_tables(leader)
        self._join_with_only_reader(leader)
        for number in leader:
            groups.setdefault(_root(leader, number), []).append(number)
        found = [self._region(sorted(group)) for group in groups.values()]
        return sorted((r for r in found if r.pieces), key=lambda region: region.pieces[0].operations)

    def _join_by_tables(self, leader: dict[int, int]) -> None:
        """What one module does with the same table is one operator: queries and keys are rotated together."""
        first: dict[tuple[int, str], int] = {}
        for number in leader:
            module = self.recording.operations[number].module
            for value in self._outer(number):
                if self._is_table(value):
                    other = first.setdefault((value.number, module or str(self._levels[number])), number)
                    leader[_root(leader, number)] = _root(leader, other)

    def _join_with_only_reader(self, leader: dict[int, int]) -> None:
        """What only one region reads can wait for that region: no product lies between them."""
        readers: dict[int, set[int]] = {}
        tables = set[int]()
        for number in leader:
            root = _root(leader, number)
            results = self.recording.operations[number].results
            readers.setdefault(root, set()).update(n for value in results for n in self._final_readers(value))
            if not any(map(self._is_activation, results)):
                tables.add(root)
        for root, found in readers.items():
            others = {_root(leader, number) if number in leader else -1 for number in found} - {root}
            if root not in tables and len(others) == 1 and -1 not in others:
                leader[_root(leader, root)] = others.pop()

    def _is_table(self, value: Value) -> bool:
        """Whether it follows from positions, and is no weight."""
        tensor = self.recording.tensor(value)
        made = self.producer.get(value.number)
        return is_float(tensor) and made is not None and not self._is_activation(value) and not self.of_weights(value)

    def of_weights(self, value: Value) -> bool:
        """Whether it follows from weights alone."""
        if value.number in self.recording.weights:
            return True
        made = self.producer.get(value.number)
        operands = self.recording.operations[made].operands if made is not None else ()
        return bool(operands) and all(map(self.of_weights, operands))

    def joined(self, pieces: Sequence[Piece]) -> Piece:
        """Several pieces as one, under the name of the last that has most."""
        largest = max(reversed(pieces), key=lambda piece: len(piece.operations))
        numbers = sorted({number for piece in pieces for number in piece.operations})
        return Piece(tuple(numbers), largest.module, largest.kind)

    def unassembled(self, piece: Piece) -> Piece:
        """Without the concatenations at its end, which only put its results beside what comes from outside."""
        inside = set(piece.operations)

        def assembles(number: int) -> bool:
            operation = self.recording.operations[number]
            return (
                operation.name == "cat"
                and not inside & set(self._final_readers(operation.results[0]))
                and not inside.issuperset(self._sources(number))
            )

        kept = tuple(number for number in piece.operations if not assembles(number))
        return Piece(kept, piece.module, piece.kind)

    def inputs(self, piece: Piece) -> list[Value]:
        """What comes from outside, in the order of use. Views of the whole are taken as they come; of a part of it, the
        whole.
        """
        inside, found = self.closure(piece), dict[int, Value]()
        for number in inside:
            for value in self.recording.operations[number].operands:
                if self.producer.get(value.number) not in inside:
                    found.setdefault(value.number, value)
        return list(found.values())

    def outputs(self, piece: Piece) -> list[Value]:
        """What others read, or nobody."""
        own = set(self.closure(piece))
        found: list[Value] = []
        for number in piece.operations:
            for value in self.recording.operations[number].results:
                readers = self._final_readers(value)
                if not readers or not set(readers) <= own:
                    found.append(value)
        return found

    def closure(self, piece: Piece) -> tuple[int, ...]:
        """Its operations, with what takes its inputs apart, and with what it makes of weights alone."""
        if piece not in self._closures:
            inside, waiting = set(piece.operations), list(piece.operations)
            while waiting:
                for value in self.recording.operations[waiting.pop()].operands:
                    number = self.producer.get(value.number)
                    if number is not None and number not in inside and self._belongs(number, inside):
                        inside.add(number)
                        waiting.append(number)
            self._closures[piece] = tuple(sorted(inside))
        return self._closures[piece]

    def _belongs(self, number: int, inside: set[int]) -> bool:
        """Whether it takes one of several parts that the inside reads, leads to such a one, or follows from weights."""
        operation = self.recording.operations[number]
        if all(map(self.of_weights, operation.results)):
            return operation.name not in LAYOUTS
        if operation.name in PARTS:
            return self._whole_inputs and self._parts_read(operation.operands[0], inside) > 1
        before = self.producer.get(operation.operands[0].number) if operation.name in VIEWS else None
        return before is not None and (before in inside or self._belongs(before, inside))

    def _parts_read(self, value: Value, inside: set[int]) -> int:
        """How many parts of it the inside reads, itself among them."""
        count = 0
        for number in self.readers.get(value.number, []):
            operation = self.recording.operations[number]
            if operation.name in PARTS:
                count += sum(bool(inside & set(self._final_readers(result))) for result in operation.results)
            else:
                count += number in inside
        return count

    def _final_readers(self, value: Value) -> list[int]:
        """Who reads it, through views; a view that nobody reads counts as read."""
        found: list[int] = []
        for number in self.readers.get(value.number, []):
            operation = self.recording.operations[number]
            if operation.name in VIEWS:
                inner = [reader for result in operation.results for reader in self._final_readers(result)]
                found += inner or [number]
            else:
                found.append(number)
        return found

    def source(self, value: Value) -> Value:
        """What it is a view of."""
        number = self.producer.get(value.number)
        while number is not None and self.recording.operations[number].name in VIEWS:
            value = self.recording.operations[number].operands[0]
            number = self.producer.get(value.number)
        return value

    def _sources(self, number: int) -> Iterator[int]:
        """Operations whose results it reads, through views."""
        for value in self.recording.operations[number].operands:
            before = self.producer.get(self.source(value).number)
            if before is not None:
                yield before

    def adds_expert_bias(self, operation: Operation) -> bool:
        """Whether it adds to a grouped product the bias of each row's expert."""
        made = [self.producer.get(self.source(value).number) for value in operation.operands]
        names = {self.recording.operations[number].name for number in made if number is not None}
        return operation.name in ("add", "add_") and names == {"_grouped_mm", "index"}

    def _computes(self, number: int) -> bool:
        operation = self.recording.operations[number]
        results = [self.recording.tensor(value) for value in operation.results]
        return (
            bool(results)
            and operation.name not in VIEWS | MOVES
            and not is_anchor(operation)
            and not self.adds_expert_bias(operation)
            and not all(map(self.of_weights, operation.results))
            and any(map(is_float, results))
            and bool(operation.operands)
        )

    def _region(self, numbers: list[int]) -> Region:
        if not any(self._is_activation(value) for number in numbers for value in self._outer(number)):
            return Region(())
        by_module: dict[str, list[int]] = {}
        for number in numbers:
            by_module.setdefault(self.recording.operations[number].module, []).append(number)
        pieces = []
        for module, own in by_module.items():
            if any(self.recording.operations[number].name != "_to_copy" for number in own):
                pieces.append(Piece(self._with_views(own), module, self.recording.operations[own[0]].kind))
        return Region(tuple(sorted(pieces, key=lambda piece: piece.operations)))

    def _outer(self, number: int) -> Iterator[Value]:
        for value in self.recording.operations[number].operands:
            yield self.source(value)

    def _is_activation(self, value: Value) -> bool:
        """Whether it depends on what the model was given, and not on positions and weights alone."""
        tensor = self.recording.tensor(value)
        if value.number in self.recording.weights or not is_float(tensor):
            return False
        producer = self.producer.get(value.number)
        if producer is None:
            return tensor.dim() > 0
        operation = self.recording.operations[producer]
        return is_anchor(operation) or any(self._is_activation(self.source(v)) for v in operation.operands)

    def _with_views(self, numbers: list[int]) -> tuple[int, ...]:
        """And the views between them."""
        inside = set(numbers)
        for number in numbers:
            for value in self.recording.operations[number].operands:
                chain: list[int] = []
                before = self.producer.get(value.number)
                while before is not None and self.recording.operations[before].name in VIEWS:
                    chain.append(before)
                    before = self.producer.get(self.recording.operations[before].operands[0].number)
                if before in inside:
                    inside.update(chain)
        return tuple(sorted(inside))

    def _measured(self) -> list[int]:
        """Per operation, how many anchors lie on the longest way to it."""
        levels: list[int] = []
        for operation in self.recording.operations:
            before = [self.producer[v.number] for v in operation.operands if v.number in self.producer]
            found = max((levels[number] for number in before if number < len(levels)), default=0)
            levels.append(found + is_anchor(operation))
        return levels


def _root(leader: dict[int, int], number: int) -> int:
    while leader[number] != number:
        number = leader[number]
    return number


def is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
