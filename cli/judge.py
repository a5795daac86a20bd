"""`./mill judge FILE --operator NAME`: what the judge says of one source file, with the evidence."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli import calibration, verdict_report
from cli.amount import whole
from cli.errors import CandidateFileError, JudgeArgumentsError
from cli.progress import ProgressLine
from gristmill import records
from gristmill.domain import AxisRange, Domain, Layout
from gristmill.errors import DomainError, MalformedRecordError
from gristmill.workload import Workload
from kernels import catalogue
from kernels.candidate import Candidate, Language, Origin
from kernels.definition import DTYPES, Definition
from kernels.verdict import Verdict
from tasks.settings import from_environment

LANGUAGES = {".cpp": Language.CPP, ".cc": Language.CPP, ".cxx": Language.CPP, ".py": Language.PYTHON}
COMMON_EXTENTS = (1, 4, 64)
COMMON_MODEL_AXES = {
    "hidden": 1024,
    "intermediate": 2816,
    "query_heads": 16,
    "key_heads": 4,
    "head_dim": 64,
    "columns": 4096,
    "in_features": 1024,
    "out_features": 2816,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, nargs="?", help="C++ (gristmill_kernel.h) or Python: run(*inputs, *scalars, *outputs)"
    )
    parser.add_argument("--operator", help="what it claims to implement; see ./mill operators")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the operator's main tensors")
    parser.add_argument(
        "--workloads", type=Path, help="JSON list of workloads, or a traffic profile; common ones if absent"
    )
    parser.add_argument("--baseline", default="eager", help="what to time against: eager, torch or compile")
    parser.add_argument(
        "--policy",
        choices=("screening", "search", "promotion", "proof"),
        default="search",
        help="how thorough; proof tells a gain of 5 %% from none",
    )
    parser.add_argument("--setup", action="store_true", help="the candidate exports a setup phase that packs weights")
    parser.add_argument(
        "--layout", choices=[str(layout) for layout in Layout], default="inner_contiguous", help="it reads"
    )
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        type=axis_range,
        metavar="AXIS=LOW..HIGH[/STEP]",
        help="where it may be called, e.g. hidden=16..8192/16 (repeatable); anywhere if absent",
    )
    parser.add_argument("--seed", type=whole, help="draw the inputs from this seed, to repeat a judgement")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    calibration.configure(parser)


def run(arguments: argparse.Namespace) -> int:
    if calibration.asked_for(arguments):
        return calibration.run(arguments)
    catalogue.check_name(arguments.operator)
    text = read_source(arguments.file)
    definition = catalogue.operator(arguments.operator)
    candidate = form_candidate(arguments, definition, text)
    workloads = read_workloads(arguments.workloads, definition, arguments.dtype)
    from harness import policy
    from harness.judge import Judge
    from harness.replication import judge_repeatedly
    from kernels.roofline import cached_peaks

    settings = from_environment()
    chosen = getattr(policy, arguments.policy)()
    baseline = arguments.baseline
    with Judge(settings.judge_dir, chosen, cached_peaks(settings.peaks_path)) as judge:
        if arguments.policy == "proof" and arguments.seed is None:
            with ProgressLine(sys.stderr) as progress:
                verdict = judge_repeatedly(
                    judge, candidate, workloads, chosen.min_gain, baseline=baseline, report=progress.show
                )
        else:
            verdict = judge.judge(candidate, workloads, seed=arguments.seed, baseline=baseline)
    print(json.dumps(as_json(verdict)) if arguments.json else verdict_report.render(verdict))
    return 0


def read_source(path: Path) -> str:
    """The file's text, before anything slow is imported.

    Raises:
        CandidateFileError: it cannot be read, or is of no known language.
    """
    if path.suffix not in LANGUAGES:
        raise CandidateFileError(f"{path}: a candidate is a file ending in {', '.join(LANGUAGES)}")
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CandidateFileError(f"{path}: cannot be read ({error}); expected source text in UTF-8") from None


def form_candidate(arguments: argparse.Namespace, definition: Definition, text: str) -> Candidate:
    """The text as a candidate.

    Raises:
        JudgeArgumentsError: the ranges do not fit the operator.
    """
    _check_ranges(arguments.range, definition)
    language = LANGUAGES[arguments.file.suffix]
    main = "main.cpp" if language is Language.CPP else "main.py"
    domain = Domain(definition.name, arguments.dtype, tuple(arguments.range), Layout(arguments.layout))
    return Candidate(definition.name, language, {main: text}, domain, Origin("person"), arguments.setup)


def _check_ranges(ranges: Sequence[AxisRange], definition: Definition) -> None:
    names = [one.name for one in ranges]
    for name in names:
        if name not in definition.axes:
            axes = ", ".join(definition.axes)
            raise JudgeArgumentsError(f"judge --range: {definition.name} has no axis {name!r}; it has {axes}")
        if names.count(name) > 1:
            raise JudgeArgumentsError(f"judge --range: two ranges of {name}; give one")


def axis_range(text: str) -> AxisRange:
    """`hidden=16..8192/16` as a range of a domain."""
    found = re.fullmatch(r"(\w+)=(\d{1,9})\.\.(\d{1,9})(?:/(\d{1,9}))?", text, flags=re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected AXIS=LOW..HIGH or AXIS=LOW..HIGH/STEP")
    name, low, high, step = found.groups(default="1")
    try:
        return AxisRange(name, int(low), int(high), int(step))
    except DomainError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_workloads(path: Path | None, definition: Definition, dtype: str) -> tuple[Workload, ...]:
    """The workloads of a file that are of this operator and dtype, or common ones.

    Raises:
        CandidateFileError: the file holds none.
        MalformedRecordError, WorkloadError: it holds something else.
    """
    from kernels.inputs import check_workload, workload

    if path is None:
        sizes = {axis: COMMON_MODEL_AXES[axis] for axis in definition.constant_axes}
        variable = next(axis for axis in definition.axes if axis not in definition.constant_axes)
        return tuple(workload(definition, dtype, **{variable: extent}, **sizes) for extent in COMMON_EXTENTS)
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CandidateFileError(f"{path}: cannot be read as JSON ({error}); expected a list of workloads") from None
    rows = content.get("workloads") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise MalformedRecordError(f"{path}: expected a list of workloads, or an object with that field")
    found = [records.decode(Workload, row, f"{path}[{index}]") for index, row in enumerate(rows)]
    chosen = tuple(w for w in found if (w.operator, w.dtype) == (definition.name, dtype))
    if not chosen:
        raise CandidateFileError(f"{path}: none of its {len(found)} workloads is of {definition.name} {dtype}")
    for one in chosen:
        check_workload(definition, one)
    return chosen


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as one object. `ratio` is over all workloads; `ratios` has each with its 95 % interval."""
    ratios = [
        {"workload": t.workload.label, "ratio": t.ratio, "low": t.ratio_low, "high": t.ratio_high}
        for t in verdict.timings
    ]
    return {**records.encode(verdict), "ratios": ratios}
