"""`python -m benchmarks.import_time`: what `import gristmill` costs an engine, and what installing it brings along.

Fresh interpreters with and without the import alternate, and the differences of pairs count. What the wheel requires is
followed through the metadata of the installed packages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.figures import ROOT, Figure, Outcome, report
from benchmarks.quantiles import quantile_interval
from cli.progress import ProgressLine

COMMAND = "python -m benchmarks.import_time"
ISSUE = 5
PAIRS = 60
TARGET_MS = 100.0
STATEMENTS = {
    "gristmill": "import gristmill",
    "records and tables": "import gristmill.records, gristmill.kernel_table, gristmill.hardware, gristmill.store",
    "the puller": "import gristmill.pull, gristmill.s3_store",
}
UNWANTED = ("prefect", "mlflow", "litellm", "pandas", "torch")
"""torch is the engine's own, and not for us to install."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of interpreters, for each import")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with ProgressLine(sys.stderr) as progress:
        differences_ms: dict[str, list[float]] = {name: [] for name in STATEMENTS}
        for number in range(arguments.pairs):
            progress.show(f"{number + 1} of {arguments.pairs} pairs")
            for name, statement in STATEMENTS.items():
                differences_ms[name].append(pair_ms(statement))
    loaded = set(modules_after(STATEMENTS["gristmill"]))
    required = closure(declared(), installed())
    return report(
        [import_figure(differences_ms, loaded & set(UNWANTED)), wheel_figure(required)],
        keep=not arguments.dry_run and arguments.pairs >= PAIRS,
    )


def pair_ms(statement: str) -> float:
    """How much longer an interpreter takes with a statement than one without, run just before it."""
    without = interpreter_s("pass")
    return 1e3 * (interpreter_s(statement) - without)


def interpreter_s(statement: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
    return time.perf_counter() - began


def modules_after(statement: str) -> list[str]:
    """Top-level modules that a fresh interpreter has loaded."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()


def declared() -> list[str]:
    """What the wheel requires."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [str(line) for line in found]


def installed() -> dict[str, Sequence[str]]:
    """Installed packages to what they require."""
    return {canonicalize_name(found.name): found.requires or () for found in importlib.metadata.distributions()}


def closure(requirements: Iterable[str], packages: Mapping[str, Sequence[str]]) -> set[str]:
    """All packages that these requirements bring along on this kind of machine."""
    reached: set[tuple[str, str]] = set()
    """Packages, each without an extra or with one."""
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        requirement, asked_with = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": asked_with}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in reached:
                reached.add((name, extra))
                waiting += [(Requirement(line), extra) for line in packages.get(name, ())]
    return {name for name, _ in reached}


def import_figure(differences_ms: Mapping[str, Sequence[float]], unwanted: Iterable[str]) -> Figure:
    """The row of the import; `unwanted` is what it has loaded that it must not."""
    own = differences_ms["gristmill"]
    interval = quantile_interval(own, 0.5)
    others = ", ".join(
        f"{name} {statistics.median(found):.0f} ms" for name, found in differences_ms.items() if name != "gristmill"
    )
    median, said = statistics.median(own), "".join(f"; loads {name}" for name in sorted(unwanted))
    return Figure(
        "import gristmill: time over an empty interpreter, without torch",
        ISSUE,
        f"under {TARGET_MS:.0f}",
        "ms",
        COMMAND,
        median,
        interval,
        Outcome.MET if interval[1] < TARGET_MS and not said else Outcome.MISSED,
        note=f"median of {len(own)} pairs, mean {statistics.mean(own):.1f} ms; what hosts import later: {others}{said}",
    )


def wheel_figure(required: set[str]) -> Figure:
    """The row of what the wheel brings along."""
    found = sorted(required & set(UNWANTED))
    return Figure(
        "wheel: prefect, mlflow, litellm, pandas or torch among all that it requires",
        ISSUE,
        "none",
        f"of {len(required)} packages",
        COMMAND,
        float(len(found)),
        verdict=Outcome.MISSED if found else Outcome.MET,
        note=", ".join(found or sorted(required)),
    )


if __name__ == "__main__":
    sys.exit(main())
