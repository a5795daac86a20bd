"""`./mill operators`: what can be compiled, with axes, tensors and cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from cli.table import compact_table
from kernels import catalogue
from kernels.definition import DTYPES, Definition, TensorSpec


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    definitions = catalogue.operators()
    if arguments.json:
        print(json.dumps([_facts(definition) for definition in definitions], indent=2))
        return 0
    rows = [[d.name, _names(d.inputs), _names(d.outputs), d.summary] for d in definitions]
    print(compact_table(rows, ["operator", "inputs", "outputs", f"what it is (in {' and '.join(DTYPES)})"]))
    return 0


def _facts(definition: Definition) -> dict[str, object]:
    return {
        "name": definition.name,
        "summary": definition.summary,
        "dtypes": list(DTYPES),
        "axes": definition.axes,
        "constant_axes": list(definition.constant_axes),
        "inputs": [{"name": t.name, "dims": list(t.dims), "role": t.role.value} for t in definition.inputs],
        "outputs": [{"name": t.name, "dims": list(t.dims)} for t in definition.outputs],
        "scalars": {s.name: s.default for s in definition.scalars},
        "baselines": sorted(definition.baselines),
    }


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(spec.name for spec in specs)
