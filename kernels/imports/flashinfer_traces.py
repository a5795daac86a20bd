"""FlashInfer-Bench's traces: which workloads were recorded for which definition, and how fast the best solution was.

A data set holds `definitions/**/*.json` and, in `workloads/` or `traces/`, lines of JSON: a workload of a definition,
and where a solution was tried on it, how that went. Every workload is one call: they do not say how often it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill import traces
from gristmill.contract import CONTRACTS
from gristmill.errors import TraceError
from kernels.definition import DTYPES
from kernels.errors import SchemaError, WorkloadError
from kernels.flashinfer_documents import DefinitionDocument, parse
from kernels.imports import trace_file
from kernels.imports.imported import Collector, dense_pattern
from kernels.imports.modelled import Device
from kernels.imports.trace_file import Tell, silent
from kernels.models.step import OperatorCall

MODELLED_EFFICIENCY = 0.5
"""Of the roofline, where no time was measured at all: so every operator could save alike."""
AXES: Mapping[frozenset[str], tuple[str, Mapping[str, str]]] = {
    frozenset({"hidden_states", "weight"}): ("rms_norm", {"batch_size": "tokens", "hidden_size": "hidden"}),
    frozenset({"hidden_states", "residual", "weight"}): (
        "fused_add_rms_norm",
        {"batch_size": "tokens", "hidden_size": "hidden"},
    ),
    frozenset({"A", "B"}): ("skinny_linear", {"M": "tokens", "K": "in_features", "N": "out_features"}),
}
"""Their operators by the names of the inputs: ours, and our axes by theirs."""
SHAPES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "skinny_linear": {"A": ("M", "K"), "B": ("N", "K")},
}
"""Of inputs whose order of axes decides."""


@dataclass
class _Recorded:
    """One workload of one definition."""

    axes: dict[str, int]
    latency_ms: float | None = None
    """Of the fastest solution that passed, as their `apply()` would choose it."""


def files_of(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Definitions and lines of workloads or traces, from files and from folders of a data set.

    Raises:
        TraceError: there is none of either.
    """
    definitions: list[Path] = []
    lines: list[Path] = []
    for path in paths:
        found = sorted(path.rglob("*.json*")) if path.is_dir() else [path]
        definitions += [one for one in found if one.suffix == ".json" and "solutions" not in one.parts]
        lines += [one for one in found if one.name.endswith((".jsonl", ".jsonl.gz"))]
    if not definitions or not lines:
        missing = "a definition (.json)" if not definitions else "workloads or traces (.jsonl)"
        raise TraceError(
            f"import of FlashInfer-Bench traces: {missing} is not among {', '.join(map(str, paths))}; name the data "
            "set's folder, or files of both kinds"
        )
    return definitions, lines


def collect(paths: Iterable[Path], device: Device, collector: Collector, at_ns: int, tell: Tell = silent) -> None:
    """All workloads, as calls at `at_ns`.

    Raises:
        TraceError: a line that is no trace of theirs, with its place.
        SchemaError: a definition that is none.
    """
    definition_files, line_files = files_of(list(paths))
    definitions = _definitions(definition_files)
    recorded: dict[tuple[str, str], _Recorded] = {}
    for path in line_files:
        for place, row in traces.json_rows(trace_file.lines(path, tell), str(path)):
            _note(place, row, recorded)
    collector.at(at_ns, at_ns + 1)
    measured = any(one.latency_ms is not None for one in recorded.values())
    for (name, _), one in recorded.items():
        definition = definitions.get(name)
        if definition is None:
            collector.facts["workloads of definitions that are not here"] += 1
            continue
        collector.facts["workloads"] += 1
        time_ns = 0 if one.latency_ms is None else round(one.latency_ms * 1e6)
        call = _call(definition, one.axes)
        if call is None:
            collector.add_uncovered(f"{definition.op_type} {name}", 1, time_ns)
            continue
        if not measured:
            time_ns = round(device.roofline_ns(call) / MODELLED_EFFICIENCY)
        collector.add(dense_pattern(call.operator, call.dtype, tuple(call.axes.items())), 1, time_ns)
        collector.facts["times that were measured"] += measured and one.latency_ms is not None


def _definitions(paths: Iterable[Path]) -> dict[str, DefinitionDocument]:
    """By name. The same file may be named twice; two definitions of one name may not."""
    found: dict[str, DefinitionDocument] = {}
    for path in paths:
        name, definition = _definition(path)
        if found.setdefault(name, definition) != definition:
            raise TraceError(f"FlashInfer-Bench {path}: another definition is named {name!r} as well; name one of them")
    return found


def _definition(path: Path) -> tuple[str, DefinitionDocument]:
    found = parse(DefinitionDocument, trace_file.document(path), str(path))
    return found.name, found


def _note(place: str, row: Mapping[str, Any], recorded: dict[tuple[str, str], _Recorded]) -> None:
    name, workload = row.get("definition"), row.get("workload")
    if not isinstance(name, str) or not isinstance(workload, dict):
        raise TraceError(f"{place}: found {str(row)[:60]!r}, expected a definition's name and a workload")
    axes, identifier = workload.get("axes"), workload.get("uuid")
    if not isinstance(identifier, str):
        raise TraceError(f"{place}, workload.uuid: found {str(identifier)[:60]!r}, expected an identifier")
    if not isinstance(axes, dict) or not all(type(extent) is int and extent >= 0 for extent in axes.values()):
        raise TraceError(f"{place}, workload.axes: found {str(axes)[:60]!r}, expected extents by name")
    one = recorded.setdefault((name, identifier), _Recorded(axes))
    latency_ms = _latency_ms(place, row.get("evaluation"))
    if latency_ms is not None and (one.latency_ms is None or latency_ms < one.latency_ms):
        one.latency_ms = latency_ms


def _latency_ms(place: str, evaluation: Any) -> float | None:
    """Of a solution that passed."""
    if evaluation is None or (isinstance(evaluation, dict) and evaluation.get("status") != "PASSED"):
        return None
    performance = evaluation.get("performance") if isinstance(evaluation, dict) else None
    found = performance.get("latency_ms") if isinstance(performance, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e9:
        raise TraceError(
            f"{place}, evaluation.performance.latency_ms: found {str(found)[:60]!r}, expected milliseconds above 0"
        )
    return float(found)


def _call(definition: DefinitionDocument, axes: Mapping[str, int]) -> OperatorCall | None:
    """Our call; None if it is of no operator of ours, or of a type that is not."""
    try:
        dtype = definition.dtype
    except SchemaError:
        return None
    extents = {**axes, **definition.constants}
    names = frozenset(name for name, tensor in definition.inputs.items() if tensor.shape is not None)
    if definition.op_type in CONTRACTS:
        operator, renamed = definition.op_type, {axis: axis for axis in extents}
    elif names in AXES:
        operator, renamed = AXES[names][0], dict(AXES[names][1])
    else:
        return None
    shapes = SHAPES.get(operator, {}) if names in AXES else {}
    if any(definition.inputs[name].shape != dims for name, dims in shapes.items()) or set(extents) != set(renamed):
        return None
    call = OperatorCall(operator, {renamed[axis]: extent for axis, extent in extents.items()}, dtype, 1)
    return call if dtype in DTYPES and _is_valid(call) else None


def _is_valid(call: OperatorCall) -> bool:
    try:
        dense_pattern(call.operator, call.dtype, tuple(call.axes.items()))
    except WorkloadError:
        return False
    return True
