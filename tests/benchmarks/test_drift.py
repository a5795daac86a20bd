"""Windows of one pair share nothing, and what counts as met."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks import drift as benchmark
from benchmarks.drift import CODE, CONVERSATIONS, Served, served
from benchmarks.figures import Outcome
from kernels.models.listing import model_operators
from kernels.sketch import PROMPTS
from tests.llama_config import CONFIG

REQUESTS = 240
SECONDS = 3540


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hours in the form of the recordings: short prompts of conversations, long ones of code."""
    made = tmp_path_factory.mktemp("traces")
    rng = random.Random(1)
    began = datetime(2023, 11, 16, 18, tzinfo=UTC)
    for recording, prompt in ((CODE, 4000), (CONVERSATIONS[0], 200), (CONVERSATIONS[1], 200)):
        lines = [] if recording.kind == "mooncake" else ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        for number in range(REQUESTS):
            at_s = number * SECONDS / REQUESTS
            tokens, answer = round(prompt * rng.lognormvariate(0, 0.3)), 8
            if recording.kind == "mooncake":
                row = {"timestamp": round(at_s * 1000), "input_length": tokens, "output_length": answer, "hash_ids": []}
                lines.append(json.dumps(row))
            else:
                lines.append(f"{began + timedelta(seconds=at_s):%Y-%m-%d %H:%M:%S.%f}0,{tokens},{answer}")
        (made / recording.file).write_text("\n".join(lines) + "\n")
    return made


@pytest.fixture(scope="module")
def hours(folder: Path) -> list[Served]:
    model = model_operators(CONFIG)
    return [served(recording, folder, model) for recording in (CODE, *CONVERSATIONS)]


def requests_of(hour: Served, *, start: int = 0, blocks: int | None = None, hosts: slice = slice(None)) -> int:
    profile = hour.window(start, hour.blocks + 1 if blocks is None else blocks, hosts)
    return sum(sum(s.calls) for s in profile.sketch.streams if s.axis == PROMPTS.axis)


def test_hosts_share_the_requests_and_blocks_share_the_time(hours: list[Served]) -> None:
    for hour in hours:
        assert requests_of(hour) == REQUESTS
        half, middle = len(hour.hosts) // 2, hour.blocks // 2
        assert requests_of(hour, hosts=slice(half)) + requests_of(hour, hosts=slice(half, None)) == REQUESTS
        rest = requests_of(hour, start=middle, blocks=hour.blocks - middle + 1)
        assert requests_of(hour, blocks=middle) + rest == REQUESTS


def test_windows_apart_do_not_overlap(hours: list[Served], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    whole = Served.window

    def noted(hour: Served, start: int, blocks: int, hosts: slice = slice(None)) -> object:
        seen.append((start, start + blocks))
        return whole(hour, start, blocks, hosts)

    monkeypatch.setattr(Served, "window", noted)
    rng = random.Random(2)
    for _ in range(6):
        assert not benchmark.apart(hours[1], rng).told
        (a_start, a_end), (b_start, b_end) = seen[-2:]
        assert min(a_start, b_start) >= 0 and max(a_end, b_end) <= hours[1].blocks
        assert a_end <= b_start or b_end <= a_start
        assert a_end - a_start == b_end - b_start > 0


def test_code_is_told_from_conversation_and_halves_are_not_told_apart(hours: list[Served]) -> None:
    rng = random.Random(3)
    found = [benchmark.across(hours[0], other, rng) for other in hours[1:]]
    assert all(pair.told for pair in found)
    row = benchmark.detections_figure(found)
    assert (row.measured, row.verdict) == (100.0, Outcome.MET)
    same = [benchmark.dealt(hour, rng) for hour in hours]
    assert benchmark.alarms_figure("n", "how", same).verdict is Outcome.MET
    wrong = benchmark.alarms_figure("n", "how", [*same, *found])
    assert wrong.verdict is Outcome.MISSED and wrong.measured == 40.0
    assert benchmark.detections_figure([*found, *same]).verdict is Outcome.MISSED


def test_without_the_recordings_it_says_which_and_where_from(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert benchmark.main(["--traces", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert CODE.file in told and "--traces" in told and told.count("\n") == 1
