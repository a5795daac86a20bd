"""Definitions, workloads and solutions in the JSON schema of FlashInfer-Bench 0.1 (FlashInfer Trace).

A document is the schema's own record, kept field by field, so that reading and writing it back changes nothing. From a
document, and to one, go our records. The two differ: their definition fixes a dtype and the model's sizes, ours
leaves both to the workload; their workload is dense, ours has strides; their C++ solutions bind through TVM or
torch, ours export `gm_run`. What cannot be said on the other side is refused with the reason, never approximated.

A definition carries Python source, and importing one runs it in this process. Read a definition before you import
it, as you would a patch. Solutions are candidates: they are only stored here, and run nowhere but in the judge's
sandbox.
"""

from __future__ import annotations

import inspect
import math
import textwrap
import types
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from gristmill import records
from gristmill.domain import AxisRange, Domain
from gristmill.workload import Workload
from kernels import inputs
from kernels.candidate import Candidate, Language, Origin
from kernels.definition import Cost, Definition, Role, ScalarSpec, TensorSpec
from kernels.errors import SchemaError, WorkloadError
from kernels.flashinfer_documents import (
    AxisDocument,
    BuildDocument,
    DefinitionDocument,
    InputDocument,
    SolutionDocument,
    SourceDocument,
    TensorDocument,
    WorkloadDocument,
    parse,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

CLAIM_FILE = "gristmill.json"
"""Extra source of an exported solution: what a candidate says of itself and their schema has no field for."""
HEADER_FILE = "gristmill_kernel.h"
ENTRY_POINTS = {Language.PYTHON: "main.py::run", Language.CPP: "main.cpp::gm_run"}
WORKLOAD_NAMESPACE = uuid.UUID("8f7f2f53-6a4e-5c3b-9d0c-2b8f4a0f7f11")
"""Under which the digests of workloads become the identifiers that the schema asks for."""


@dataclass(frozen=True)
class Claim:
    """What `CLAIM_FILE` holds: the rest of a candidate."""

    operator: str
    domain: Domain
    origin: Origin
    needs_setup: bool = False
    compile_flags: tuple[str, ...] = field(default=())


def export_definition(definition: Definition, dtype: str, constants: Mapping[str, int]) -> DefinitionDocument:
    """Their definition of ours for one dtype and one model's sizes.

    Raises:
        SchemaError: if the constants are not extents of exactly the definition's constant axes.
    """
    if set(constants) != set(definition.constant_axes) or min(constants.values(), default=1) < 1:
        raise SchemaError(
            f"export of {definition.name}: sizes given for {', '.join(constants) or 'no axis'}, "
            f"expected {', '.join(definition.constant_axes)}, each at least 1"
        )
    sizes = "".join(f"_{axis}{constants[axis]}" for axis in definition.constant_axes)
    scalars = {s.name: TensorDocument(None, "float32", f"{s.default!r} by default") for s in definition.scalars}
    return DefinitionDocument(
        name=f"{definition.name}_{dtype}{sizes}",
        op_type=definition.name,
        axes={
            name: AxisDocument("const" if name in constants else "var", constants.get(name), meaning)
            for name, meaning in definition.axes.items()
        },
        inputs={t.name: TensorDocument(t.dims, dtype) for t in definition.inputs} | scalars,
        outputs={t.name: TensorDocument(t.dims, dtype) for t in definition.outputs},
        reference=reference_source(definition),
        description=definition.summary,
    )


def reference_source(definition: Definition) -> str:
    """Self-contained Python that defines `run`: our reference in float64, rounded once to the dtype of the inputs.

    Raises:
        SchemaError: if the reference's source is not at hand (it was imported: use its document).
    """
    try:
        source = textwrap.dedent(inspect.getsource(definition.reference))
    except OSError:
        raise SchemaError(f"export of {definition.name}: its reference has no source file; use its document") from None
    tensors = [t.name for t in definition.inputs]
    signature = ", ".join([*tensors, *(f"{s.name}={s.default!r}" for s in definition.scalars)])
    arguments = ", ".join([*(f"{name}.double()" for name in tensors), *(s.name for s in definition.scalars)])
    return (
        "from __future__ import annotations\n\nimport torch\nfrom torch import Tensor\n\n\n"
        f"{source}\n\ndef run({signature}):\n"
        f"    outputs = {definition.reference.__name__}({arguments})\n"
        f"    outputs = tuple(output.to({tensors[0]}.dtype) for output in outputs)\n"
        "    return outputs if len(outputs) > 1 else outputs[0]\n"
    )


def import_definition(document: DefinitionDocument, scalars: Mapping[str, float] | None = None) -> Definition:
    """Our definition of theirs, with its source compiled as reference and as baseline. Runs that source: read it first.

    The reference is as precise as the source: one that converts to float32 itself is no float64 reference. Inputs are
    normal values; the cost model counts bytes only, which keeps a floor true. Scalars take their defaults from
    `scalars` or from the signature of `run`.

    Raises:
        SchemaError: if the document says what ours cannot: mixed or other dtypes, scalars before tensors or
            without a default, an axis that is not defined, source that does not compile or has no `run`.
    """
    _check_definition(document)
    run = _compiled_run(document)
    tensors = {name: t for name, t in document.inputs.items() if t.shape is not None}
    defaults = {**_signature_defaults(run), **(scalars or {})}
    names = [name for name, t in document.inputs.items() if t.shape is None]
    missing = [name for name in names if name not in defaults]
    if missing:
        raise SchemaError(f"definition {document.name}: scalar {missing[0]!r} has no default; pass it in `scalars`")
    specs = tuple(TensorSpec(name, t.shape or (), _role(document, t)) for name, t in tensors.items())
    outputs = tuple(TensorSpec(name, t.shape or ()) for name, t in document.outputs.items())
    reference = _tuple_returning(run, document)
    variable = [name for name in document.axes if name not in document.constants]
    return Definition(
        name=document.name,
        summary=document.description or document.name,
        axes={name: axis.description or "" for name, axis in document.axes.items()},
        inputs=specs,
        outputs=outputs,
        scalars=tuple(ScalarSpec(name, float(defaults[name])) for name in names),
        constant_axes=tuple(document.constants),
        reference=reference,
        baselines={"eager": reference},
        error_scale=_magnitude_scale(reference),
        make_inputs=_normal_inputs(specs),
        regimes=("traffic", "large_offset", "small", "wide"),
        cost=_bytes_only(specs, outputs),
        edge_axes=tuple({**document.constants, **dict.fromkeys(variable, extent)} for extent in (1, 3, 17)),
    )


def _check_definition(document: DefinitionDocument) -> None:
    _ = document.dtype
    for name, axis in document.axes.items():
        if axis.type not in ("const", "var") or (axis.type == "const") != (axis.value is not None) or axis.value == 0:
            raise SchemaError(f"definition {document.name}, axis {name}: expected var, or const with a value above 0")
    for name, tensor in (*document.inputs.items(), *document.outputs.items()):
        undefined = [axis for axis in tensor.shape or () if axis not in document.axes]
        if undefined:
            raise SchemaError(f"definition {document.name}, {name}: axis {undefined[0]!r} is not defined")
    scalar = [tensor.shape is None for tensor in document.inputs.values()]
    if scalar != sorted(scalar):
        raise SchemaError(f"definition {document.name}: a scalar stands before a tensor; Gristmill passes scalars last")
    if any(tensor.shape is None for tensor in document.outputs.values()):
        raise SchemaError(f"definition {document.name}: an output is a scalar; Gristmill fills tensors only")


def _role(document: DefinitionDocument, tensor: TensorDocument) -> Role:
    """A tensor whose every axis the model fixes is taken for a weight."""
    return Role.WEIGHT if all(axis in document.constants for axis in tensor.shape or ()) else Role.ACTIVATION


def _compiled_run(document: DefinitionDocument) -> Callable[..., Any]:
    module = types.ModuleType(f"flashinfer_definition_{document.name}")
    try:
        exec(compile(document.reference, f"<reference of {document.name}>", "exec"), module.__dict__)
    except Exception as error:  # foreign source may raise anything
        raise SchemaError(f"definition {document.name}: its reference does not load ({error})") from None
    run: Callable[..., Any] | None = getattr(module, "run", None)
    if not callable(run):
        raise SchemaError(f"definition {document.name}: its reference defines no function `run`")
    return run


def _signature_defaults(run: Callable[..., Any]) -> dict[str, float]:
    parameters = inspect.signature(run).parameters.values()
    return {p.name: float(p.default) for p in parameters if isinstance(p.default, int | float)}


def _tuple_returning(run: Callable[..., Any], document: DefinitionDocument) -> Callable[..., tuple[Tensor, ...]]:
    names = tuple(document.outputs)

    def reference(*arguments: Any) -> tuple[Tensor, ...]:
        result = run(*arguments)
        if isinstance(result, dict):
            return tuple(result[name] for name in names)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    return reference


def _magnitude_scale(reference: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """The answer, but not less than its root mean square along the last dimension: the source's conditioning is
    unknown.
    """

    def error_scale(*arguments: Any) -> tuple[Tensor, ...]:
        from kernels import distributions

        outputs = [output.double() for output in reference(*arguments)]
        typical = [output.square().mean(-1, keepdim=True).sqrt() for output in outputs]
        return tuple(
            distributions.positive(output.abs().maximum(size)) for output, size in zip(outputs, typical, strict=True)
        )

    return error_scale


def _normal_inputs(specs: tuple[TensorSpec, ...]) -> Callable[..., tuple[Tensor, ...]]:
    def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
        from kernels import distributions

        made = []
        for spec in specs:
            draw = distributions.normal if spec.role is Role.WEIGHT else distributions.ACTIVATIONS[regime]
            made.append(draw(generator, *(axes[axis] for axis in spec.dims)))
        return distributions.rounded(dtype, *made)

    return make_inputs


def _bytes_only(
    specs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> Callable[[Mapping[str, int], int], Cost]:
    def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
        def size(tensors: tuple[TensorSpec, ...]) -> int:
            return sum(math.prod(axes[axis] for axis in t.dims) for t in tensors) * item_bytes

        return Cost(flops=0, bytes_read=size(specs), bytes_written=size(outputs))

    return cost


def export_workload(definition: Definition, workload: Workload) -> WorkloadDocument:
    """Their workload of ours; the same one always gets the same identifier.

    Raises:
        SchemaError: if an input is strided, which their workloads cannot say.
    """
    inputs.check_workload(definition, workload)
    strided = [spec.name for spec, t in zip(definition.inputs, workload.inputs, strict=True) if not t.contiguous]
    if strided:
        raise SchemaError(
            f"export of {workload.label}: {strided[0]} is strided; FlashInfer-Bench knows dense ones only"
        )
    sources = {spec.name: InputDocument("random") for spec in definition.inputs}
    return WorkloadDocument(
        axes={name: extent for name, extent in workload.axes.items() if name not in definition.constant_axes},
        inputs=sources | {s.name: InputDocument("scalar", value=s.default) for s in definition.scalars},
        uuid=str(uuid.uuid5(WORKLOAD_NAMESPACE, workload.digest)),
    )


def import_workload(
    definition: Definition, dtype: str, constants: Mapping[str, int], document: WorkloadDocument
) -> Workload:
    """Our workload of theirs: dense, one call, no time. `constants` are the sizes that their definition fixes.

    Raises:
        SchemaError: if it names other axes or inputs, wants recorded tensors, or another scalar than the definition's.
    """
    expected = {**{t.name: None for t in definition.inputs}, **{s.name: s.default for s in definition.scalars}}
    place = f"workload {document.uuid}"
    if set(document.inputs) != set(expected):
        raise SchemaError(f"{place}: inputs {', '.join(document.inputs)}, expected {', '.join(expected)}")
    for name, source in document.inputs.items():
        if source.type != ("random" if expected[name] is None else "scalar"):
            raise SchemaError(f"{place}, {name}: source {source.type!r} cannot be represented; Gristmill draws tensors")
        if source.value != expected[name]:
            raise SchemaError(
                f"{place}, {name}: value {source.value}, but the operator is defined for {expected[name]}"
            )
    try:
        made = inputs.workload(definition, dtype, **{**document.axes, **constants})
    except WorkloadError as error:
        raise SchemaError(f"{place}: {error}") from None
    return Workload(made.operator, made.dtype, made.axes, made.inputs, calls=1)


def export_solution(candidate: Candidate, definition: DefinitionDocument) -> SolutionDocument:
    """Their solution of a candidate. It carries what their schema has no field for, and the header that C++ includes.

    Their own builder cannot bind the exported C++, which exports `gm_run` and no TVM or torch binding; the judge can.

    Raises:
        SchemaError: if the candidate is for another dtype or for other sizes than the definition, or has an empty file.
    """
    sizes = [r for r in candidate.domain.ranges if r.name in definition.constants]
    unfit = [r.name for r in sizes if not r.admits(definition.constants[r.name])]
    if candidate.domain.dtype != definition.dtype or unfit:
        fault = f"size of {unfit[0]}" if unfit else f"dtype {candidate.domain.dtype}"
        raise SchemaError(f"export of candidate {candidate.digest[:12]}: its {fault} is not that of {definition.name}")
    claim = Claim(
        candidate.operator, candidate.domain, candidate.origin, candidate.needs_setup, candidate.compile_flags
    )
    files = {**candidate.files, CLAIM_FILE: records.canonical_json(claim).decode()}
    if candidate.language is Language.CPP:
        files.setdefault(HEADER_FILE, _header())
    empty = [path for path, text in files.items() if not text]
    if empty:
        raise SchemaError(f"export of candidate {candidate.digest[:12]}: file {empty[0]} is empty; leave it out")
    return SolutionDocument(
        name=f"{candidate.operator}_{candidate.digest[:12]}",
        definition=definition.name,
        author=candidate.origin.agent or "gristmill",
        spec=BuildDocument(candidate.language.value, ("cpu",), ENTRY_POINTS[candidate.language]),
        sources=tuple(SourceDocument(path, text) for path, text in files.items()),
    )


def import_solution(document: SolutionDocument, definition: DefinitionDocument) -> Candidate:
    """Our candidate of their solution. One of theirs claims the definition's sizes, at any extent of the other axes.

    Raises:
        SchemaError: if it is for another definition, in another language than Python or C++, returns its outputs,
            or starts elsewhere than at `main.py::run` or `main.cpp::gm_run`.
        CandidateError: if its files are not what a candidate may hold.
    """
    place = f"solution {document.name}"
    if document.definition != definition.name:
        raise SchemaError(f"{place}: solves {document.definition!r}, not {definition.name!r}")
    if document.spec.language not in [language.value for language in ENTRY_POINTS]:
        raise SchemaError(f"{place}: language {document.spec.language!r}; the judge takes python and cpp")
    language = Language(document.spec.language)
    if document.spec.entry_point != ENTRY_POINTS[language]:
        raise SchemaError(
            f"{place}: starts at {document.spec.entry_point!r} (binding {document.spec.binding or 'none'}); "
            f"the judge calls {ENTRY_POINTS[language]}"
        )
    if not document.spec.destination_passing_style:
        raise SchemaError(f"{place}: returns its outputs; rewrite it to fill outputs passed as last arguments")
    files = {source.path: source.content for source in document.sources}
    stated = files.pop(CLAIM_FILE, None)
    if files.get(HEADER_FILE) == _header():
        del files[HEADER_FILE]
    claim = parse(Claim, stated, f"{place}, {CLAIM_FILE}") if stated else _claim(document, definition)
    return Candidate(
        claim.operator, language, files, claim.domain, claim.origin, claim.needs_setup, claim.compile_flags
    )


def _claim(document: SolutionDocument, definition: DefinitionDocument) -> Claim:
    sizes = tuple(AxisRange(name, extent, extent) for name, extent in definition.constants.items())
    domain = Domain(definition.name, definition.dtype, sizes)
    return Claim(definition.name, domain, Origin(agent=f"flashinfer-bench:{document.author}"))


def _header() -> str:
    return resources.files("gristmill").joinpath("abi", HEADER_FILE).read_text()
