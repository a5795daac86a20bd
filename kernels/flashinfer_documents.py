"""The records of FlashInfer-Bench's JSON schema (FlashInfer Trace, version 0.1), field by field, and how they are
read and written.

Reading a document and writing it back changes nothing. The conversions from and to our records are in
`flashinfer_schema`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill import records
from gristmill.errors import MalformedRecordError
from kernels.definition import DTYPES
from kernels.errors import SchemaError

D = TypeVar("D")


@dataclass(frozen=True)
class AxisDocument:
    """An axis: `const` with a value, or `var`."""

    type: str
    value: int | None = None
    description: str | None = None


@dataclass(frozen=True)
class TensorDocument:
    """A tensor by axis names; a scalar has no shape."""

    shape: tuple[str, ...] | None
    dtype: str
    description: str | None = None


@dataclass(frozen=True)
class DefinitionDocument:
    """Their Definition."""

    name: str
    op_type: str
    axes: dict[str, AxisDocument]
    inputs: dict[str, TensorDocument]
    outputs: dict[str, TensorDocument]
    reference: str
    tags: tuple[str, ...] = ()
    description: str | None = None
    constraints: tuple[str, ...] = ()

    @property
    def constants(self) -> dict[str, int]:
        """The axes whose extent the definition fixes."""
        return {name: axis.value for name, axis in self.axes.items() if axis.value is not None}

    @property
    def dtype(self) -> str:
        """Element type of all tensors.

        Raises:
            SchemaError: if they differ, or it is none of ours.
        """
        found = {t.dtype for t in (*self.inputs.values(), *self.outputs.values()) if t.shape is not None}
        if len(found) != 1 or not found <= set(DTYPES):
            raise SchemaError(
                f"definition {self.name}: tensors of {', '.join(sorted(found))}; Gristmill takes one dtype for all, "
                f"one of {', '.join(DTYPES)}"
            )
        return found.pop()


@dataclass(frozen=True)
class InputDocument:
    """Where a workload's input comes from: `random`, `scalar` with a value, or `safetensors` with a path and key."""

    type: str
    value: float | None = None
    path: str | None = None
    tensor_key: str | None = None


@dataclass(frozen=True)
class WorkloadDocument:
    """Their Workload: extents of the variable axes, and the inputs by name."""

    axes: dict[str, int]
    inputs: dict[str, InputDocument]
    uuid: str


@dataclass(frozen=True)
class BuildDocument:
    """Their BuildSpec."""

    language: str
    target_hardware: tuple[str, ...]
    entry_point: str
    dependencies: tuple[str, ...] = ()
    destination_passing_style: bool = True
    binding: str | None = None


@dataclass(frozen=True)
class SourceDocument:
    """One file."""

    path: str
    content: str


@dataclass(frozen=True)
class SolutionDocument:
    """Their Solution."""

    name: str
    definition: str
    author: str
    spec: BuildDocument
    sources: tuple[SourceDocument, ...]
    description: str | None = None


def parse(document_type: type[D], text: str | bytes, where: str = "") -> D:
    """Reads a document.

    Raises:
        SchemaError: with the place and what was expected.
    """
    try:
        return records.parse(document_type, text, where)
    except MalformedRecordError as error:
        raise SchemaError(f"FlashInfer-Bench {error}") from None


def dump(document: DefinitionDocument | WorkloadDocument | SolutionDocument) -> str:
    """The document as JSON, fields in the schema's order, those without a value left out."""
    return json.dumps(_without_nothing(records.encode(document)), indent=2, ensure_ascii=False)


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        # A scalar's missing shape says that it is a scalar, so that one stays.
        return {k: _without_nothing(v) for k, v in value.items() if v is not None or k == "shape"}
    return [_without_nothing(item) for item in value] if isinstance(value, list) else value
