"""The corpora: small programs, each with a header that says what it does and which verdicts it may get.

A header is the comment lines at the top of a file, one `key: value` each:

    // trick: keeps its answers by the address of the input
    // family: replay
    // operator: rms_norm
    // status: cheated

Optional keys: `dtype`, `axes` (workloads, `tokens=1 hidden=512; tokens=6 hidden=512 x_TH:1024,1`, the latter with
strides of an input), `held_out` (likewise, checked but not timed), `layout` and `ranges` (`tokens=1..64
hidden=64..4096/64`) of the domain, `flags`, and yes or no for `setup`, `edges` and `gpu`; `deadline` in seconds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.domain import AxisRange, Domain, Layout
from gristmill.errors import GristmillError
from gristmill.workload import Workload
from kernels import catalogue
from kernels.candidate import Candidate, Language, Origin
from kernels.definition import DTYPES
from kernels.inputs import check_workload, workload
from kernels.verdict import Status, Verdict

if TYPE_CHECKING:
    from harness.judge import Judge

HONEST_FAMILY = "style"
EVIL_FAMILIES = ("timing", "replay", "semantics", "tampering", "not_a_kernel")
REQUIRED = ("trick", "family", "operator")
OPTIONAL = (
    "status",
    "dtype",
    "axes",
    "held_out",
    "layout",
    "ranges",
    "flags",
    "setup",
    "edges",
    "deadline",
    "gpu",
)
RIGHT = (Status.FASTER, Status.SLOWER)
COMMENT = {".cpp": "//", ".py": "#"}
LANGUAGE = {".cpp": Language.CPP, ".py": Language.PYTHON}
DEFAULT_AXES = {
    "rms_norm": "tokens=1 hidden=512; tokens=6 hidden=512",
    "fused_add_rms_norm": "tokens=1 hidden=512; tokens=6 hidden=512",
    "silu_and_mul": "tokens=1 intermediate=512; tokens=6 intermediate=512",
    "rotary_embedding": "; ".join(f"tokens={tokens} query_heads=4 key_heads=2 head_dim=64" for tokens in (1, 6)),
    "softmax": "rows=1 columns=512; rows=6 columns=512",
    "skinny_linear": "tokens=1 in_features=128 out_features=160; tokens=4 in_features=128 out_features=160",
}
RANGE = re.compile(r"(\d+)\.\.(\d+)(?:/(\d+))?")


class CorpusError(GristmillError):
    """A program's header is not what a header must be."""


@dataclass(frozen=True)
class Program:
    """One program of a corpus with what its header says."""

    path: Path
    trick: str
    """What it does, in one line; for an honest program its style."""
    family: str
    operator: str
    dtype: str
    statuses: tuple[Status, ...]
    """The verdicts it may get: one, or two where chance decides which gate sees it first."""
    workloads: tuple[Workload, ...]
    held_out: tuple[Workload, ...] = ()
    layout: Layout = Layout.CONTIGUOUS
    ranges: tuple[AxisRange, ...] = ()
    flags: tuple[str, ...] = ()
    setup: bool = False
    edges: bool = False
    deadline_s: float | None = None
    """Shorter or longer than the judge's own, where a program needs it."""
    gpu: bool = False

    @property
    def name(self) -> str:
        """`replay/by_pointer.cpp`."""
        return f"{self.path.parent.name}/{self.path.name}"

    def candidate(self) -> Candidate:
        """What the judge gets: the file as it stands."""
        language = LANGUAGE[self.path.suffix]
        return Candidate(
            operator=self.operator,
            language=language,
            files={f"main{self.path.suffix}": self.path.read_text()},
            domain=Domain(self.operator, self.dtype, self.ranges, self.layout),
            origin=Origin(f"corpus:{self.family}"),
            needs_setup=self.setup,
            compile_flags=self.flags,
        )

    def shapes(self) -> list[Workload]:
        """The workloads it is checked and timed on."""
        return list(self.workloads)


def programs(folder: Path) -> list[Program]:
    """All programs below a folder, by path. Test modules are none.

    Raises:
        CorpusError: naming file and line of the first header that is wrong.
    """
    found = [path for suffix in COMMENT for path in folder.rglob(f"*{suffix}")]
    return [read(path) for path in sorted(found) if not path.name.startswith(("test_", "conftest."))]


def read(path: Path) -> Program:
    """One program.

    Raises:
        CorpusError: naming the file and the line.
    """
    return _Header(path).program()


class _Header:
    """The keys of one file with the lines they stand in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, int] = {}
        self._values: dict[str, str] = {}
        prefix = COMMENT[path.suffix]
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if not line.startswith(prefix):
                break
            self._take(number, line.removeprefix(prefix).strip())
        for key in REQUIRED:
            if key not in self._values:
                raise self._refuse(1, f"no key {key!r}; every program names {', '.join(REQUIRED)}")

    def program(self) -> Program:
        family = self._one_of("family", (*EVIL_FAMILIES, HONEST_FAMILY))
        operator = self._one_of("operator", catalogue.NAMES)
        dtype = self._one_of("dtype", DTYPES, "float32")
        return Program(
            path=self._path,
            trick=self._values["trick"],
            family=family,
            operator=operator,
            dtype=dtype,
            statuses=self._statuses(family),
            workloads=self._workloads("axes", operator, dtype, DEFAULT_AXES[operator]),
            held_out=self._workloads("held_out", operator, dtype, ""),
            layout=Layout(self._one_of("layout", tuple(Layout), Layout.CONTIGUOUS)),
            ranges=self._ranges(),
            flags=tuple(self._values.get("flags", "").split()),
            setup=self._yes("setup"),
            edges=self._yes("edges"),
            deadline_s=self._seconds("deadline"),
            gpu=self._yes("gpu"),
        )

    def _take(self, number: int, text: str) -> None:
        key, colon, value = text.partition(":")
        if not colon or not value.strip():
            raise self._refuse(number, f"found {text!r}, expected `key: value`; end the header with an empty line")
        if key not in (*REQUIRED, *OPTIONAL):
            raise self._refuse(number, f"unknown key {key!r}; known are {', '.join((*REQUIRED, *OPTIONAL))}")
        if key in self._values:
            raise self._refuse(number, f"key {key!r} stands twice, first in line {self._lines[key]}")
        self._lines[key] = number
        self._values[key] = value.strip()

    def _statuses(self, family: str) -> tuple[Status, ...]:
        if family == HONEST_FAMILY and "status" not in self._values:
            return RIGHT
        if "status" not in self._values:
            raise self._refuse(1, "no key 'status'; a program that is not honest says which verdict it must get")
        found = self._values["status"].split()
        wrong = [word for word in found if word not in set(Status)]
        if wrong:
            raise self._refuse(self._lines["status"], f"{wrong[0]!r} is no status; choose from {', '.join(Status)}")
        return tuple(Status(word) for word in found)

    def _workloads(self, key: str, operator: str, dtype: str, default: str) -> tuple[Workload, ...]:
        text = self._values.get(key, default)
        return tuple(self._workload(key, operator, dtype, part) for part in text.split(";") if part.strip())

    def _workload(self, key: str, operator: str, dtype: str, text: str) -> Workload:
        definition = catalogue.operator(operator)
        try:
            words = text.split()
            axes = {name: int(extent) for name, extent in (word.split("=") for word in words if "=" in word)}
            strides = {
                name: tuple(int(step) for step in steps.split(","))
                for name, steps in (word.split(":") for word in words if "=" not in word)
            }
            made = _strided(workload(definition, dtype, **axes), [spec.name for spec in definition.inputs], strides)
            check_workload(definition, made)
        except (ValueError, GristmillError) as error:
            raise self._refuse(self._lines.get(key, 1), f"{key}: {text.strip()!r} is no workload: {error}") from None
        return made

    def _ranges(self) -> tuple[AxisRange, ...]:
        made = []
        for word in self._values.get("ranges", "").split():
            name, _, extent = word.partition("=")
            match = RANGE.fullmatch(extent)
            if match is None or name not in catalogue.operator(self._values["operator"]).axes:
                raise self._refuse(self._lines["ranges"], f"{word!r} is no range; expected e.g. `tokens=1..64/2`")
            made.append(AxisRange(name, int(match[1]), int(match[2]), int(match[3] or 1)))
        return tuple(made)

    def _yes(self, key: str) -> bool:
        return self._one_of(key, ("yes", "no"), "no") == "yes"

    def _seconds(self, key: str) -> float | None:
        if key not in self._values:
            return None
        try:
            return float(self._values[key])
        except ValueError:
            raise self._refuse(self._lines[key], f"{self._values[key]!r} is no number of seconds") from None

    def _one_of(self, key: str, allowed: tuple[str, ...], default: str = "") -> str:
        value = self._values.get(key, default)
        if value not in allowed:
            raise self._refuse(self._lines.get(key, 1), f"{key} is {value!r}; choose from {', '.join(allowed)}")
        return value

    def _refuse(self, line: int, why: str) -> CorpusError:
        return CorpusError(f"{self._path.parent.name}/{self._path.name}:{line}: {why}")


def _strided(made: Workload, names: list[str], strides: Mapping[str, tuple[int, ...]]) -> Workload:
    unknown = set(strides) - set(names)
    if unknown:
        raise ValueError(f"no input {min(unknown)}; inputs are {', '.join(names)}")
    layouts = [
        dataclasses.replace(layout, strides=strides.get(name, layout.strides))
        for name, layout in zip(names, made.inputs, strict=True)
    ]
    return dataclasses.replace(made, inputs=tuple(layouts))


def judged(program: Program, judge: Judge) -> Verdict:
    """The verdict on a program, on its own workloads and within its own deadline."""
    policy = judge.policy
    judge.policy = dataclasses.replace(policy, deadline_s=program.deadline_s or policy.deadline_s)
    try:
        return judge.judge(program.candidate(), program.workloads, held_out=program.held_out, edges=program.edges)
    finally:
        judge.policy = policy
