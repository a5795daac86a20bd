"""`python -m benchmarks.suite`: how long `./mill test` takes on this host, installation not counted."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.figures import ROOT, Figure, Outcome, record

LIMIT_S = 600


def main() -> int:
    began = time.monotonic()
    code = subprocess.run([str(ROOT / "mill"), "test", "-q"], check=False).returncode
    elapsed_s = time.monotonic() - began
    met = code == 0 and elapsed_s < LIMIT_S
    figure = Figure(
        "./mill test: wall time",
        2,
        f"under {LIMIT_S}",
        "s",
        "python -m benchmarks.suite",
        round(elapsed_s, 1),
        None,
        Outcome.MET if met else Outcome.MISSED,
        note="all tests passed" if code == 0 else f"pytest ended with {code}",
    )
    print(
        f"{figure.name}: target {figure.target} s, measured {figure.measured} s: {figure.verdict.value}, {figure.note}"
    )
    record(figure)
    return code


if __name__ == "__main__":
    sys.exit(main())
