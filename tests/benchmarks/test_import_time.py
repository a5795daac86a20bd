"""What follows from requirements, and which imports miss the target."""

from __future__ import annotations

from benchmarks import import_time
from benchmarks.figures import Outcome

PACKAGES = {
    "a": ("b>=1", "pandas; extra == 'frames'", "c; python_version < '3'"),
    "b": ("a", "d[fast]"),
    "d": ("e; extra == 'fast'",),
}


def test_requirements_are_followed_with_their_extras_and_markers() -> None:
    assert import_time.closure(["A>=2"], PACKAGES) == {"a", "b", "d", "e"}
    assert import_time.closure(["a[frames]"], PACKAGES) == {"a", "b", "d", "e", "pandas"}


def test_the_wheel_brings_along_what_it_declares_and_nothing_unwanted() -> None:
    required = import_time.closure(import_time.declared(), import_time.installed())
    assert {"boto3", "botocore", "tuf", "securesystemslib", "cryptography"} <= required
    assert import_time.wheel_figure(required).verdict is Outcome.MET
    found = import_time.wheel_figure({*required, "pandas"})
    assert (found.measured, found.note, found.verdict) == (1.0, "pandas", Outcome.MISSED)


def test_an_interpreter_tells_what_it_has_loaded() -> None:
    assert "decimal" in import_time.modules_after("import decimal")
    assert not {*import_time.modules_after("import gristmill")} & {*import_time.UNWANTED, "boto3", "tuf"}


def test_slow_or_heavy_imports_miss() -> None:
    times = {"gristmill": [1.0, 2.0, 3.0], "the puller": [300.0, 310.0, 320.0]}
    good = import_time.import_figure(times, [])
    assert (good.measured, good.verdict) == (2.0, Outcome.MET)
    assert "the puller 310 ms" in good.note
    assert import_time.import_figure(times, ["torch"]).verdict is Outcome.MISSED
    assert import_time.import_figure({"gristmill": [99.0, 99.5, 104.0]}, []).verdict is Outcome.MISSED
