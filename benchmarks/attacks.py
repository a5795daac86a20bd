"""The attacks on the registry and the torn caches: how many a real host withstands. Each is a test; see the folder.

python -m benchmarks.attacks
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from benchmarks.figures import ROOT, Figure, Outcome, report

ISSUE = 5
COMMAND = "python -m benchmarks.attacks"
FOLDER = ROOT / "tests" / "registry" / "attacks"
TORN_CACHE = "test_torn_cache.py"


@dataclass
class Tally:
    """A pytest plugin that counts cases and remembers the tests that did not pass, by file.

    A test is one case, unless it records how many it walks through as its property `cases`.
    """

    withstood: dict[str, int] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.location[0].rpartition("/")[2]
        if report.outcome != "passed":
            self.failed.setdefault(file, []).append(report.location[2])
        elif report.when == "call":
            cases = dict(report.user_properties).get("cases", 1)
            assert isinstance(cases, int)
            self.withstood[file] = self.withstood.get(file, 0) + cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    dry_run = parser.parse_args().dry_run
    return report(figures(run()), keep=not dry_run)


def run() -> Tally:
    """Runs every attack; a test that is skipped or breaks counts as one that was not withstood."""
    tally = Tally()
    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(FOLDER)], plugins=[tally])
    return tally


def figures(tally: Tally) -> list[Figure]:
    """The two rows."""
    attacks = sorted({*tally.withstood, *tally.failed} - {TORN_CACHE})
    return [
        _row("attacks on the registry that a host refuses", attacks, tally),
        _row("torn cache: files of a real cache x damages x steps that a host survives", [TORN_CACHE], tally),
    ]


def _row(name: str, files: Sequence[str], tally: Tally) -> Figure:
    withstood = sum(tally.withstood.get(file, 0) for file in files)
    failed = [test for file in files for test in tally.failed.get(file, ())]
    count = withstood + len(failed)
    said = ", ".join(
        f"{file.removeprefix('test_').removesuffix('.py')} {tally.withstood.get(file, 0)}" for file in files
    )
    return Figure(
        name,
        ISSUE,
        "every one",
        f"of {count}",
        COMMAND,
        float(withstood),
        verdict=Outcome.MET if count and not failed else Outcome.MISSED,
        note=said + (f"; not: {', '.join(failed)}" if failed else ""),
    )


if __name__ == "__main__":
    sys.exit(main())
