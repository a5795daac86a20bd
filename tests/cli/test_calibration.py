"""`./mill judge --calibrate`: which arguments go together, what is printed, and what an interrupt leaves behind."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli import calibration, interrupt
from cli import judge as command
from cli.errors import JudgeArgumentsError
from cli.judge import configure
from gristmill.hardware import local_cpu
from harness import calibration as calibrating
from harness import judge as judging
from harness.calibration import Calibration, WorkloadNoise
from tests.tasks.world import PEAKS

NOISE = WorkloadNoise(
    label="rms_norm float32 tokens=1 hidden=64",
    call_ns=1100.0,
    trials=30,
    variation=0.061,
    dependence=1.3,
    spikes=0.02,
    drift=0.01,
    pair_s=0.003,
    offset=-0.004,
    told={"1": 0.06, "5": 0.031, "20": 0.028},
)
FOUND = Calibration(local_cpu().key, local_cpu().cores, "2026-12-02T00:00:00+00:00", True, 60, 1, 0.025, (NOISE,))


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(given)


@pytest.mark.parametrize(
    ("given", "complains"),
    [
        ((), "needs a file"),
        (("x.cpp",), "--operator"),
        (("--operator", "rms_norm"), "needs a file"),
        (("x.cpp", "--operator", "rms_norm", "--trials", "9"), "--calibrate"),
        (("x.cpp", "--calibrate"), "no file"),
        (("--operator", "rms_norm", "--calibrate"), "no operator"),
        (("--seed", "0", "--calibrate"), "no seed"),
    ],
)
def test_what_does_not_go_together_is_one_line(given: tuple[str, ...], complains: str) -> None:
    with pytest.raises(JudgeArgumentsError, match=complains) as refused:
        calibration.asked_for(arguments(*given))
    assert refused.value.exit_code == 2 and "\n" not in str(refused.value)


def test_a_file_or_the_host() -> None:
    assert calibration.asked_for(arguments("--calibrate", "--trials", "6", "--json"))
    assert not calibration.asked_for(arguments("x.cpp", "--operator", "rms_norm"))


def test_a_person_reads_noise_offset_and_what_can_be_told() -> None:
    text = calibration.describe(FOUND)
    assert "6.1%" in text and "-0.4%" in text and "3.1%" in text
    assert "1 of 60 (at most 8.9%" in text and "granted" in text
    assert "CAP_SYS_NICE" in calibration.describe(replace(FOUND, real_time=False))


class _NoJudge:
    """Stands where a judge would start processes; what it would find is not asked here."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> _NoJudge:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILL_HOME", str(tmp_path))
    monkeypatch.setattr(judging, "Judge", _NoJudge)
    monkeypatch.setattr(calibrating, "measure_peaks", lambda path: PEAKS)
    return tmp_path


def test_what_was_found_is_printed_and_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def calibrate(judge: object, trials: int, least_gain: float, report: object) -> Calibration:
        asked.append(trials)
        return FOUND

    monkeypatch.setattr(calibrating, "calibrate", calibrate)
    assert command.run(arguments("--calibrate", "--trials", "7", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["called_faster"] == 1
    assert asked == [7]
    assert (home / "judge" / "calibration.json").exists()


def test_an_interrupt_leaves_nothing_behind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that got lost is raised again at the next report."""

    def calibrate(judge: object, trials: int, least_gain: float, report: object) -> Calibration:
        interrupt._pending.set()
        report("half")  # type: ignore[operator]
        return FOUND

    monkeypatch.setattr(calibrating, "calibrate", calibrate)
    try:
        with pytest.raises(KeyboardInterrupt):
            command.run(arguments("--calibrate"))
    finally:
        interrupt.acknowledge()
    assert not (home / "judge").exists()
