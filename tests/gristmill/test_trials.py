"""A kernel that takes its process down, or does not come back, is not run again; one that was cut short is."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gristmill
from gristmill import trials as module
from gristmill import watchdog
from gristmill.dispatch import Dispatcher
from gristmill.errors import CacheError
from gristmill.generation import Generation
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import TableEntry
from gristmill.trials import DEATHS, FIRST_CALL, FORGOTTEN_S, SMOKE_TEST, Trials, noted

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
DIGEST, OTHER = "a" * 64, "b" * 64
HIDDEN = 32

DYING = """
import os, sys
from pathlib import Path
from gristmill.trials import Trials
trials = Trials(Path(sys.argv[1]), sys.argv[2])
trials.begin(sys.argv[3], sys.argv[4])
if sys.argv[5] == "dies":
    os.kill(os.getpid(), 9)
if sys.argv[5] == "waits":
    print("began", flush=True)
    sys.stdin.read()
"""


def process(
    folder: Path, end: str, digest: str = DIGEST, what: str = SMOKE_TEST, worker: str = ""
) -> subprocess.Popen[str]:
    """Begins a trial, and `dies`, `waits` or `ends` in good order."""
    command = [sys.executable, "-c", DYING, str(folder), worker, digest, what, end]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def die(folder: Path, **of: str) -> None:
    with process(folder, "dies", **of) as dying:
        assert dying.wait() == -signal.SIGKILL


class TestNotes:
    def test_two_deaths_in_turn_refuse_an_object_and_no_other(self, tmp_path: Path) -> None:
        trials = Trials(tmp_path)
        assert trials.objection(DIGEST) == ""
        die(tmp_path)
        assert trials.objection(DIGEST) == ""
        (warning,) = trials.take_warnings()
        assert "smoke test of object aaaaaaaaaaaa" in warning and "tried once more" in warning
        die(tmp_path, what=FIRST_CALL)
        objection = trials.objection(DIGEST)
        assert "first call of object aaaaaaaaaaaa" in objection and "the 2. time in turn" in objection
        assert f"delete {tmp_path}/aaaaaaaaaaaa*" in objection
        assert trials.objection(OTHER) == ""
        for path in tmp_path.glob("aaaaaaaaaaaa*"):
            path.unlink()
        assert Trials(tmp_path).objection(DIGEST) == ""

    def test_what_has_passed_since_is_no_death_in_turn(self, tmp_path: Path) -> None:
        trials = Trials(tmp_path)
        die(tmp_path)
        with noted(trials, DIGEST, SMOKE_TEST):
            pass
        trials.passed(DIGEST, SMOKE_TEST)
        die(tmp_path)
        assert trials.objection(DIGEST) == ""

    def test_another_worker_or_another_point_does_not_absolve(self, tmp_path: Path) -> None:
        die(tmp_path, what=FIRST_CALL, worker="0")
        Trials(tmp_path, "1").passed(DIGEST, FIRST_CALL)
        Trials(tmp_path, "0").passed(DIGEST, SMOKE_TEST)
        die(tmp_path, what=FIRST_CALL, worker="0")
        assert Trials(tmp_path).objection(DIGEST)

    def test_a_trial_of_a_living_process_is_no_death(self, tmp_path: Path) -> None:
        die(tmp_path)
        with process(tmp_path, "waits") as living:
            assert living.stdout is not None and living.stdout.readline() == "began\n"
            assert Trials(tmp_path).objection(DIGEST) == ""
            living.kill()
        assert Trials(tmp_path).objection(DIGEST)

    def test_a_process_that_ends_in_good_order_leaves_nothing(self, tmp_path: Path) -> None:
        with process(tmp_path, "ends") as ending:
            assert ending.wait() == 0
        assert list(tmp_path.iterdir()) == []

    def test_a_death_alone_is_forgotten_in_time_and_a_verdict_is_not(self, tmp_path: Path) -> None:
        die(tmp_path)
        long_ago_s = time.time() - FORGOTTEN_S - 60
        for path in tmp_path.iterdir():
            os.utime(path, (long_ago_s, long_ago_s))
        die(tmp_path)
        assert Trials(tmp_path).objection(DIGEST) == ""
        die(tmp_path)
        for path in tmp_path.iterdir():
            os.utime(path, (long_ago_s, long_ago_s))
        assert Trials(tmp_path).objection(DIGEST)

    def test_what_hangs_is_refused_while_its_process_lives_and_after(self, tmp_path: Path) -> None:
        trials = Trials(tmp_path)
        with noted(trials, DIGEST, SMOKE_TEST) as trial:
            trial.hangs()
        assert "did not come back" in trials.objection(DIGEST)
        trials.passed(OTHER, SMOKE_TEST)
        assert "did not come back" in Trials(tmp_path, "other").objection(DIGEST)

    @pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"object": 1}', b"\xff" * 5000])
    def test_a_damaged_note_speaks_against_nobody(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / f"{DIGEST}.1").write_bytes(content)
        assert Trials(tmp_path).objection(DIGEST) == ""

    def test_what_is_no_file_is_no_note(self, tmp_path: Path) -> None:
        (tmp_path / f"{DIGEST}.1").mkdir()
        os.mkfifo(tmp_path / f"{DIGEST}.2")
        (tmp_path / f"{DIGEST}.3").symlink_to("/dev/zero")
        assert Trials(tmp_path).objection(DIGEST) == ""

    def test_without_a_folder_nothing_is_noted(self) -> None:
        trials = Trials()
        with noted(trials, DIGEST, SMOKE_TEST) as trial:
            trial.hangs()
        trials.expect(DIGEST).came_back = True
        trials.settle()
        assert (trials.objection(DIGEST), trials.take_warnings()) == ("", [])

    @pytest.mark.parametrize("fault", [errno.EROFS, errno.EACCES])
    def test_where_notes_can_never_be_kept_kernels_are_tried_with_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
    ) -> None:
        monkeypatch.setattr(module, "_fill", _raising(fault))
        trials = Trials(tmp_path / "trials")
        for _ in range(2):
            with noted(trials, DIGEST, SMOKE_TEST):
                pass
        (warning,) = trials.take_warnings()
        assert "tried without a note" in warning and trials.take_warnings() == []
        assert list((tmp_path / "trials").iterdir()) == []

    def test_where_there_is_no_room_kernels_are_not_tried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_fill", _raising(errno.ENOSPC))
        with pytest.raises(CacheError, match="free some space"):
            Trials(tmp_path).begin(DIGEST, SMOKE_TEST)
        assert list(tmp_path.iterdir()) == []

    def test_notes_are_synced_before_anything_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[tuple[str, int]] = []

        def fsync(descriptor: int) -> None:
            synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), os.fstat(descriptor).st_size))

        monkeypatch.setattr(os, "fsync", fsync)
        folder = tmp_path / "trials"
        with noted(Trials(folder), DIGEST, SMOKE_TEST):
            (note,) = folder.iterdir()
            assert (str(note), note.stat().st_size) in synced
            assert [path for path, _ in synced] == [str(tmp_path), str(note), str(folder)]


class TestFirstCalls:
    def test_one_that_has_come_back_ends_at_the_boundary(self, tmp_path: Path) -> None:
        trials = Trials(tmp_path)
        trial = trials.expect(DIGEST)
        trials.settle()
        assert len(list(tmp_path.iterdir())) == 1, "its call is still in flight, in another thread"
        trial.came_back = True
        trials.settle()
        assert list(tmp_path.iterdir()) == []

    def test_one_that_has_come_back_is_not_blamed_for_the_next(self, tmp_path: Path) -> None:
        trials = Trials(tmp_path)
        trials.expect(DIGEST).came_back = True
        trials.expect(OTHER)
        assert [path.name.partition(".")[0] for path in tmp_path.iterdir()] == [OTHER]


class Engine:
    """One norm, called through the adapter's hook, and tried with notes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.dispatcher = Dispatcher("stable", "test-hardware", environ={})
        self.dispatcher.trials = Trials(folder)
        self.weight_H = torch.rand(HIDDEN) + 0.5
        site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": HIDDEN}, (1e-5,), self.own)
        site.add_weight(self.weight_H)
        self.hook = Hook(Instruments(self.dispatcher, None), site, engine=lambda x, w: self.own(x, w, 1e-5))

    @staticmethod
    def own(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
        return (torch.nn.functional.rms_norm(x_TH, (HIDDEN,), weight_H, eps),)

    @torch.no_grad()
    def norm(self, tokens: int = 4) -> None:
        self.hook.call(torch.randn(tokens, HIDDEN), self.weight_H)

    @property
    def hits(self) -> int:
        return sum(self.dispatcher.hits().values())


class TestStaging:
    def test_the_first_call_is_noted_by_whichever_thread_makes_it_and_by_no_other(
        self, tmp_path: Path, make_entry: MakeEntry, make_generation: MakeGeneration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(tmp_path)
        begun: list[str] = []
        begin = Trials.begin

        def counted(self: Trials, sha256: str, what: str) -> Any:
            begun.append(what)
            return begin(self, sha256, what)

        monkeypatch.setattr(Trials, "begin", counted)
        engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8)))
        engine.dispatcher.step_boundary()
        assert begun == [SMOKE_TEST]
        threads = [threading.Thread(target=engine.norm, args=(tokens,)) for tokens in (2, 4, 4, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        engine.norm()
        assert (begun, engine.hits) == ([SMOKE_TEST, FIRST_CALL], 5)
        assert len(list(tmp_path.iterdir())) == 1
        engine.dispatcher.step_boundary()
        assert list(tmp_path.iterdir()) == []

    def test_a_call_that_the_engine_serves_after_all_is_not_the_first(
        self, tmp_path: Path, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        engine = Engine(tmp_path)
        engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8)))
        engine.dispatcher.step_boundary()
        engine.hook.call(torch.randn(4, HIDDEN), engine.weight_H)  # with gradients
        assert (engine.hits, list(tmp_path.iterdir())) == (0, [])
        engine.norm()
        assert (engine.hits, len(list(tmp_path.iterdir()))) == (1, 1)

    def test_from_the_second_call_on_nothing_stands_between(
        self, tmp_path: Path, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        engine = Engine(tmp_path)
        engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8)))
        engine.dispatcher.step_boundary()
        engine.norm()
        (lane,) = engine.dispatcher.active[0].local.lanes.values()
        assert lane.kernel is not None
        assert lane.kernel.frame.function is lane.kernel.route.kernel.native.function

    def test_a_first_call_that_cannot_be_noted_is_the_engines(
        self, tmp_path: Path, make_entry: MakeEntry, make_generation: MakeGeneration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(tmp_path)
        engine.dispatcher.stage(make_generation(1, make_entry("rms_norm", 1, 8)))
        engine.dispatcher.step_boundary()
        monkeypatch.setattr(module, "_fill", _raising(errno.ENOSPC))
        for _ in range(3):
            engine.norm()
        (entry,) = engine.dispatcher.status()["entries"]
        assert (entry["hits"], entry["enabled"]) == (0, False) and "free some space" in entry["disabled_because"]
        monkeypatch.undo()
        assert not engine.dispatcher.stage(make_generation(2, *_again(engine.dispatcher.generation)))
        engine.dispatcher.step_boundary()
        engine.norm()
        assert engine.hits == 1, "the kernel is not at fault"

    def test_a_smoke_test_that_hangs_costs_its_kernel_and_the_others_serve(
        self, tmp_path: Path, make_entry: MakeEntry, make_generation: MakeGeneration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog, "TICK_S", 0.01)
        engine = Engine(tmp_path)
        engine.weight_H.zero_()  # what the kernel waits to change
        hanging, fine = make_entry("rms_norm", 1, 4, "WAIT"), make_entry("rms_norm", 5, 8)
        with released(engine.weight_H):
            (refusal,) = engine.dispatcher.stage(make_generation(1, hanging, fine))
            assert refusal.candidate == hanging[0].candidate and "has not come back" in refusal.reason
            engine.dispatcher.step_boundary()
            engine.norm(4)
            engine.norm(8)
            assert engine.hits == 1
            (refusal,) = engine.dispatcher.stage(make_generation(2, hanging))  # told at once
            assert "has not come back" in refusal.reason
            (refusal,) = Engine(tmp_path).dispatcher.stage(make_generation(2, hanging))
            assert "did not come back" in refusal.reason

    def test_what_has_failed_here_is_not_staged_again(
        self, tmp_path: Path, make_entry: MakeEntry, make_generation: MakeGeneration
    ) -> None:
        engine = Engine(tmp_path)
        bad = make_entry("rms_norm", 1, 8, "REFUSE_AFTER=1")
        engine.dispatcher.stage(make_generation(1, bad))
        engine.dispatcher.step_boundary()
        for _ in range(3):
            engine.norm()
        (refusal,) = engine.dispatcher.stage(make_generation(3, bad, make_entry("rms_norm", 9, 16)))
        assert "has failed in this process before: failed 3 times" in refusal.reason


def start(folder: Path, generation: Generation) -> tuple[int, dict[str, Any]]:
    """One life of an engine: how it ended, and what it told."""
    folder.mkdir(exist_ok=True)
    pickled = folder.with_suffix(".generation")
    pickled.write_bytes(pickle.dumps(generation))
    script = Path(__file__).with_name("mortal_engine.py")
    environ = {**os.environ, "PYTHONPATH": str(Path(gristmill.__file__).parents[1])}
    command = [sys.executable, str(script), str(folder), str(pickled)]
    found = subprocess.run(command, stdout=subprocess.PIPE, env=environ, check=False)
    return found.returncode, json.loads(found.stdout or b"{}")


@pytest.mark.parametrize(("survived", "what"), [(0, SMOKE_TEST), (1, FIRST_CALL)])
def test_an_engine_that_a_kernel_has_taken_down_twice_serves_without_it(
    tmp_path: Path, make_entry: MakeEntry, make_generation: MakeGeneration, survived: int, what: str
) -> None:
    fine, bad = make_entry("rms_norm", 1, 4), make_entry("rms_norm", 5, 8, f"CRASH_AFTER={survived}")
    generation = make_generation(1, fine, bad)
    for _ in range(DEATHS):
        assert start(tmp_path / "trials", generation) == (-signal.SIGSEGV, {})
    code, told = start(tmp_path / "trials", generation)
    assert code == 0
    assert told["hits"] == {fine[0].candidate: 2}
    assert list(told["refusals"]) == [bad[0].candidate]
    assert f"{what} of object {bad[0].object.sha256[:12]}" in told["refusals"][bad[0].candidate]
    assert {name.partition(".")[0] for name in told["notes"]} == {bad[0].object.sha256}
    assert told["warnings"] == []


@contextlib.contextmanager
def released(weight_H: torch.Tensor) -> Iterator[None]:
    """Lets kernels go that wait for a weight."""
    try:
        yield
    finally:
        weight_H.fill_(1.0)


def _raising(fault: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(fault, os.strerror(fault))

    return fail


def _again(generation: Generation) -> list[tuple[TableEntry, Path]]:
    return [(entry, generation.objects[entry.object.sha256]) for table in generation.tables for entry in table.entries]
