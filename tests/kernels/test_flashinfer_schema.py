"""The package flashinfer-bench is the oracle: its pydantic classes read what we write, and we read what they write."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from gristmill.domain import AxisRange, Domain, Layout
from kernels import catalogue, inputs
from kernels import flashinfer_schema as schema
from kernels.candidate import Candidate, Language, Origin
from kernels.definition import DTYPES, Role
from kernels.errors import SchemaError
from kernels.flashinfer_documents import (
    DefinitionDocument,
    InputDocument,
    SolutionDocument,
    WorkloadDocument,
    dump,
    parse,
)

oracle = pytest.importorskip("flashinfer_bench.data")

CONSTANTS = {
    name: extent
    for sizes in ({"hidden": 32, "intermediate": 48, "query_heads": 4, "key_heads": 2}, {"head_dim": 8, "columns": 33})
    for name, extent in sizes.items()
} | {"in_features": 32, "out_features": 24}
CASES = [(name, dtype) for name in catalogue.NAMES for dtype in DTYPES]


def exported(name: str, dtype: str = "float32") -> DefinitionDocument:
    definition = catalogue.operator(name)
    return schema.export_definition(definition, dtype, {axis: CONSTANTS[axis] for axis in definition.constant_axes})


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_their_classes_read_our_definitions_and_write_them_back(name: str, dtype: str) -> None:
    document = exported(name, dtype)
    theirs = oracle.Definition.model_validate_json(dump(document))
    assert list(theirs.inputs)[: len(catalogue.operator(name).inputs)] == [
        t.name for t in catalogue.operator(name).inputs
    ]
    assert theirs.const_axes == document.constants
    for text in (theirs.model_dump_json(), theirs.model_dump_json(exclude_unset=True)):
        assert parse(DefinitionDocument, text) == document
        assert dump(parse(DefinitionDocument, text)) == dump(document)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_exported_reference_runs_by_itself_and_gives_our_answer(name: str, dtype: str) -> None:
    definition, document = catalogue.operator(name), exported(name, dtype)
    namespace: dict[str, Any] = {}
    exec(compile(document.reference, name, "exec"), namespace)
    workload = inputs.workload(definition, dtype, **{a: CONSTANTS.get(a, 3) for a in definition.axes})
    tensors = inputs.materialise(definition, workload, "traffic", torch.Generator().manual_seed(0))
    found = namespace["run"](*tensors)
    scalars = [s.default for s in definition.scalars]
    expected = definition.reference(*(t.double() for t in tensors), *scalars)
    found = found if isinstance(found, tuple) else (found,)
    assert all(f.dtype is getattr(torch, dtype) for f in found)
    assert all(torch.equal(f, e.to(f.dtype)) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_an_imported_definition_is_the_exported_one(name: str, dtype: str) -> None:
    ours, document = catalogue.operator(name), exported(name, dtype)
    imported = schema.import_definition(parse(DefinitionDocument, dump(document)))
    assert imported.name == document.name
    assert (imported.inputs, imported.outputs) == (ours.inputs, ours.outputs)
    assert (imported.scalars, imported.constant_axes) == (ours.scalars, ours.constant_axes)
    assert imported.axes == ours.axes
    axes = {a: CONSTANTS.get(a, 3) for a in ours.axes}
    workload = inputs.workload(ours, dtype, **axes)
    exact = [t.double() for t in inputs.materialise(ours, workload, "traffic", torch.Generator().manual_seed(0))]
    scalars = [s.default for s in ours.scalars]
    for found, expected in zip(imported.reference(*exact, *scalars), ours.reference(*exact, *scalars), strict=True):
        assert found.dtype is torch.float64
        assert torch.equal(found, expected)
    cost, bound = imported.cost(axes, 4), ours.cost(axes, 4)
    assert (cost.bytes_read, cost.bytes_written) == (bound.bytes_read, bound.bytes_written)


def test_an_imported_definition_can_be_judged() -> None:
    """It draws inputs at its edges, and its error measure tells zeros from the answer."""
    imported = schema.import_definition(exported("rms_norm"))
    for axes in imported.edge_axes:
        for regime in imported.regimes:
            workload = inputs.workload(imported, "float32", **axes)
            tensors = inputs.materialise(imported, workload, regime, torch.Generator().manual_seed(0))
            exact = [t.double() for t in tensors]
            (expected,), (scale,) = imported.reference(*exact, 1e-6), imported.error_scale(*exact, 1e-6)
            (baseline,) = imported.baselines["eager"](*tensors, 1e-6)
            assert ((baseline.double() - expected).abs() / scale).max() < 1e-6
            assert (expected.abs() / scale).max() > 0.5


FOREIGN: dict[str, Any] = {
    "name": "gemm_n64_k32",
    "op_type": "gemm",
    "description": "A matrix product.",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 64}, "K": {"type": "const", "value": 32}},
    "inputs": {
        "A": {"shape": ["M", "K"], "dtype": "bfloat16"},
        "B": {"shape": ["N", "K"], "dtype": "bfloat16", "description": "weights"},
        "alpha": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "bfloat16"}},
    "reference": "import torch\n\ndef run(A, B, alpha):\n    return {'C': alpha * torch.matmul(A, B.T)}\n",
    "tags": ["status:verified"],
    "constraints": ["M > 0"],
}


def foreign(**changes: Any) -> DefinitionDocument:
    return parse(DefinitionDocument, json.dumps(FOREIGN | changes))


def test_a_foreign_definition_survives_the_round_trip() -> None:
    theirs = oracle.Definition.model_validate(FOREIGN)
    document = parse(DefinitionDocument, theirs.model_dump_json(exclude_unset=True))
    assert oracle.Definition.model_validate_json(dump(document)) == theirs
    assert json.loads(dump(document)) == json.loads(theirs.model_dump_json(exclude_unset=True, exclude_none=False))


def test_a_foreign_definition_becomes_ours() -> None:
    imported = schema.import_definition(foreign(), scalars={"alpha": 2.0})
    assert [t.role for t in imported.inputs] == [Role.ACTIVATION, Role.WEIGHT]
    assert imported.constant_axes == ("N", "K")
    a, b = torch.randn(3, 32, dtype=torch.float64), torch.randn(64, 32, dtype=torch.float64)
    (found,) = imported.reference(a, b, 2.0)
    assert torch.equal(found, 2.0 * (a @ b.T))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, "'alpha' has no default"),
        ({"axes": FOREIGN["axes"] | {"N": {"type": "const"}}}, "axis N"),
        ({"axes": FOREIGN["axes"] | {"M": {"type": "var", "value": 3}}}, "axis M"),
        ({"axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 64}}}, "axis 'K' is not defined"),
        ({"inputs": {"alpha": FOREIGN["inputs"]["alpha"], **FOREIGN["inputs"]} | {}}, "before a tensor"),
        ({"inputs": FOREIGN["inputs"] | {"A": {"shape": ["M", "K"], "dtype": "float8_e4m3fn"}}}, "float8_e4m3fn"),
        ({"outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}}}, "float16"),
        ({"reference": "def run(:"}, "does not load"),
        ({"reference": "import no_such_module_here"}, "no_such_module_here"),
        ({"reference": "x = 1"}, "no function `run`"),
    ],
)
def test_what_ours_cannot_say_is_refused_with_the_reason(changes: dict[str, Any], fault: str) -> None:
    if "before a tensor" in fault:
        ordered = {"alpha": FOREIGN["inputs"]["alpha"], "A": FOREIGN["inputs"]["A"], "B": FOREIGN["inputs"]["B"]}
        changes = {"inputs": ordered}
    with pytest.raises(SchemaError) as caught:
        schema.import_definition(foreign(**changes))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "not JSON"), ("[]", "an object"), ('{"name": "x"}', "missing"), ('{"nane": "x"}', "'nane'")],
)
def test_a_malformed_document_names_the_place(text: str, fault: str) -> None:
    with pytest.raises(SchemaError, match=fault):
        parse(DefinitionDocument, text, "definition.json")


def test_sizes_must_be_those_of_the_model() -> None:
    for sizes in ({}, {"hidden": 0}, {"hidden": 8, "tokens": 4}):
        with pytest.raises(SchemaError, match="expected hidden"):
            schema.export_definition(catalogue.operator("rms_norm"), "float32", sizes)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_workloads_round_trip_through_their_classes(name: str, dtype: str) -> None:
    definition, document = catalogue.operator(name), exported(name, dtype)
    workload = inputs.workload(definition, dtype, **{a: CONSTANTS.get(a, 5) for a in definition.axes})
    made = schema.export_workload(definition, workload)
    theirs = oracle.Workload.model_validate_json(dump(made))
    for text in (theirs.model_dump_json(), theirs.model_dump_json(exclude_unset=True)):
        assert parse(WorkloadDocument, text) == made
    back = schema.import_workload(definition, dtype, document.constants, parse(WorkloadDocument, dump(made)))
    assert back == dataclasses.replace(workload, calls=1)
    assert schema.export_workload(definition, back) == made
    shapes = oracle.Definition.model_validate_json(dump(document)).get_input_shapes(theirs.axes)
    assert [tuple(s) for s in shapes if s is not None] == [layout.shape for layout in workload.inputs]


def test_a_strided_workload_cannot_be_exported() -> None:
    definition = catalogue.operator("rms_norm")
    workload = inputs.workload(definition, "float32", tokens=4, hidden=8)
    strided = dataclasses.replace(workload.inputs[0], strides=(16, 1))
    with pytest.raises(SchemaError, match="x_TH is strided"):
        schema.export_workload(definition, dataclasses.replace(workload, inputs=(strided, workload.inputs[1])))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"axes": {"tokens": 0}}, "axes.tokens"),
        ({"axes": {"rows": 4}}, "axes"),
        ({"inputs": {"x_TH": InputDocument("random")}}, "expected x_TH, weight_H, eps"),
        ({"x_TH": InputDocument("safetensors", path="a", tensor_key="b")}, "'safetensors'"),
        ({"eps": InputDocument("scalar", value=0.5)}, "defined for 1e-06"),
    ],
)
def test_a_workload_of_another_kind_is_refused(change: dict[str, Any], fault: str) -> None:
    definition = catalogue.operator("rms_norm")
    made = schema.export_workload(definition, inputs.workload(definition, "float32", tokens=4, hidden=8))
    fields = {name: value for name, value in change.items() if name in ("axes", "inputs")}
    given = made.inputs | {name: value for name, value in change.items() if name not in fields}
    changed = dataclasses.replace(made, **({"inputs": given} | fields))
    with pytest.raises(SchemaError) as caught:
        schema.import_workload(definition, "float32", {"hidden": 8}, changed)
    assert fault in str(caught.value)


CPP = Candidate(
    operator="rms_norm",
    language=Language.CPP,
    files={"main.cpp": '#include "gristmill_kernel.h"\n', "rows.h": "#pragma once\n"},
    domain=Domain("rms_norm", "float32", (AxisRange("hidden", 32, 32),), Layout.INNER_CONTIGUOUS),
    origin=Origin(agent="pattern:rms_norm", pattern="row_blocks", parameters={"rows": "4"}),
    needs_setup=True,
    compile_flags=("-O3",),
)
PYTHON = Candidate(
    operator="rms_norm",
    language=Language.PYTHON,
    files={"main.py": "def run(x, weight, eps, out):\n    out.copy_(x)\n"},
    domain=Domain("rms_norm", "float32"),
    origin=Origin(agent="baseline"),
)


@pytest.mark.parametrize("candidate", [CPP, PYTHON], ids=["cpp", "python"])
def test_candidates_round_trip_through_their_classes(candidate: Candidate) -> None:
    definition = exported("rms_norm")
    made = schema.export_solution(candidate, definition)
    theirs = oracle.Solution.model_validate_json(dump(made))
    for text in (theirs.model_dump_json(), theirs.model_dump_json(exclude_unset=True)):
        assert parse(SolutionDocument, text) == made
    back = schema.import_solution(parse(SolutionDocument, dump(made)), definition)
    assert back == candidate
    assert back.digest == candidate.digest
    assert schema.export_solution(back, definition) == made
    assert theirs.get_entry_source() is not None


def test_exported_cpp_is_complete() -> None:
    paths = [s.path for s in schema.export_solution(CPP, exported("rms_norm")).sources]
    assert set(paths) == {"main.cpp", "rows.h", "gristmill_kernel.h", "gristmill.json"}


def _their_solution(**changes: Any) -> SolutionDocument:
    spec = {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"}
    fields: dict[str, Any] = {
        "name": "theirs",
        "definition": exported("rms_norm").name,
        "author": "someone",
        "spec": spec | {k: v for k, v in changes.items() if k in spec or k in ("destination_passing_style", "binding")},
        "sources": [{"path": "main.py", "content": PYTHON.files["main.py"]}],
    }
    fields |= {k: v for k, v in changes.items() if k in fields}
    theirs = oracle.Solution.model_validate(fields)
    return parse(SolutionDocument, theirs.model_dump_json())


def test_a_foreign_solution_claims_the_sizes_of_its_definition() -> None:
    definition = exported("rms_norm")
    candidate = schema.import_solution(_their_solution(), definition)
    assert candidate.domain == Domain(definition.name, "float32", (AxisRange("hidden", 32, 32),))
    assert candidate.origin.agent == "flashinfer-bench:someone"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"definition": "other"}, "solves 'other'"),
        ({"language": "triton"}, "'triton'"),
        ({"language": "cuda"}, "'cuda'"),
        ({"entry_point": "main.py::forward"}, "main.py::run"),
        ({"language": "cpp", "binding": "torch"}, "binding torch"),
        ({"destination_passing_style": False}, "returns its outputs"),
        (
            {
                "sources": [
                    {"path": "main.py", "content": "x"},
                    {"path": "gristmill.json", "content": '{"operator": 3}'},
                ]
            },
            "gristmill.json.operator",
        ),
    ],
)
def test_a_solution_that_the_judge_cannot_call_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema.import_solution(_their_solution(**changes), exported("rms_norm"))
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_candidate_is_exported_for_its_own_sizes_and_dtype_only() -> None:
    other_size = schema.export_definition(catalogue.operator("rms_norm"), "float32", {"hidden": 64})
    with pytest.raises(SchemaError, match="size of hidden"):
        schema.export_solution(CPP, other_size)
    with pytest.raises(SchemaError, match="dtype float32"):
        schema.export_solution(CPP, exported("rms_norm", "bfloat16"))


def test_an_empty_file_cannot_be_exported() -> None:
    hollow = dataclasses.replace(PYTHON, files={**PYTHON.files, "__init__.py": ""})
    with pytest.raises(SchemaError, match=r"__init__\.py is empty"):
        schema.export_solution(hollow, exported("rms_norm"))
