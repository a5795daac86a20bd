"""The sidecar: a real process that follows a channel, is stopped, is killed, and shares its folder with others."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tuf.ngclient import Updater

from gristmill import __version__, durable_file, sidecar_status, status_report
from gristmill.cache_reader import CacheReader
from gristmill.directory_store import DirectoryStore
from gristmill.sidecar import main
from gristmill.status_report import StatusReport, Work, read_reports
from tests.registry.attacks.attacker import codes
from tests.registry.world import CANARY, Killed, World

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120


class Folder:
    """A registry, and a cache that a sidecar fills."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.root = self.world.repository.initialise()
        (folder / "root.json").write_bytes(self.root)
        self.cache = folder / "cache"
        self.status_path = sidecar_status.status_path(self.cache, CANARY)

    def arguments(self, *more: str) -> list[str]:
        at = CANARY
        named = {"fleet": at.fleet, "model": at.model, "hardware": at.hardware, "channel": at.name}
        named |= {"store": self.world.store.url, "root-file": f"{self.world.folder}/root.json"}
        named |= {"cache-dir": f"{self.cache}"}
        return [*(f"--{name}={value}" for name, value in named.items()), *more]

    def reader(self, names: Collection[str] | None = None) -> CacheReader:
        at, tables = CANARY, (lambda: names) if names else None
        return CacheReader(self.root, at.fleet, at.model, at.hardware, at.name, self.cache, tables)

    @contextmanager
    def running(self) -> Iterator[Running]:
        command = [sys.executable, "-m", "gristmill.sidecar", *self.arguments("--poll-s=0.05")]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            yield Running(process)
        finally:
            process.kill()
            process.wait()


class Running:
    """A sidecar process and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    def until(self, event: str, **fields: object) -> dict[str, Any]:
        """The next event of this kind, after which those before are in `events`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event and fields.items() <= self.events[-1].items():
                return self.events[-1]
        raise AssertionError(f"it ended before {event}: {self.events}")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


class TestProcess:
    def test_it_follows_tells_and_ends(self, folder: Folder) -> None:
        with folder.running() as sidecar:
            assert sidecar.until("started") == {
                "event": "started",
                "version": __version__,
                "channel": str(CANARY),
                "poll_s": 0.05,
            }
            first = folder.world.publish("rms_norm", b"code 1")
            taken = sidecar.until("taken")
            assert (taken["generation"], taken["tables"], taken["objects"]) == (first.number, ["rms_norm.float32"], 1)
            assert codes(folder.reader().poll()) == [b"code 1"]

            hidden = folder.world.path("tuf").with_name("hidden")
            folder.world.path("tuf").rename(hidden)
            assert "timestamp.json" in sidecar.until("poll_failed")["reason"]
            hidden.rename(folder.world.path("tuf"))
            sidecar.until("recovered", generation=first.number)

            second = folder.world.publish("softmax", b"code 2")
            sidecar.until("taken", generation=second.number)
            sidecar.process.send_signal(signal.SIGTERM)
            sidecar.until("stopped", generation=second.number)
            assert sidecar.process.wait(PATIENCE_S) == 0
        kinds = [event["event"] for event in sidecar.events]
        assert kinds == ["started", "taken", "poll_failed", "recovered", "taken", "stopped"]
        status = sidecar_status.read(folder.status_path)
        assert status is not None
        assert (status.running, status.generation, status.problem) == (False, second.number, "")
        assert status.polls > 1

    def test_it_sends_on_what_engines_report(self, folder: Folder) -> None:
        folder.world.publish("rms_norm", b"code 1")
        with folder.running() as sidecar:
            taken = sidecar.until("taken")
            outbox = DirectoryStore(folder.cache / "outbox")
            for generation in (0, taken["generation"]):
                status_report.report(outbox, CANARY, a_report(generation))
                deadline_s = time.monotonic() + PATIENCE_S
                while [one.report for one in read_reports(folder.world.store, CANARY)] != [a_report(generation)]:
                    assert time.monotonic() < deadline_s
                    time.sleep(0.01)

    def test_killed_at_random(self, folder: Folder) -> None:
        """Whatever it was doing, the cache is whole, and the next one goes on."""
        published = {0: []}
        draw = random.Random(11)
        for turn in range(3):
            with folder.running() as sidecar:
                if turn:
                    sidecar.until("taken")
                for operator in ("rms_norm", "softmax", "silu_and_mul"):
                    world = folder.world
                    number = world.publish(operator, f"code {operator} {turn}".encode()).number
                    published[number] = codes(world.puller("another cache").poll())
                time.sleep(draw.uniform(0, 0.2))
                sidecar.process.send_signal(signal.SIGKILL)
                sidecar.process.wait()
            found = folder.reader().last_good()
            assert (codes(found) if found else []) == published[found.number if found else 0]
        assert main(folder.arguments("--once")) == 0
        assert codes(folder.reader().last_good()) == published[max(published)]


ENGINE = """
import sys, time
from pathlib import Path
from gristmill.cache_reader import CacheReader
from gristmill.directory_store import DirectoryStore
from gristmill.errors import SidecarError
from gristmill.pull import Puller

kind, folder, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
root = (folder / "root.json").read_bytes()
at = ("chat", "llama", "x86_64-test", "canary", folder / "cache")
channel = Puller(DirectoryStore(folder / "store"), root, *at) if kind == "puller" else CacheReader(root, *at)
before = 0
print("ready", flush=True)
while before < last:
    try:
        found = channel.poll()
    except SidecarError:
        found = None
    if found is not None:
        assert found.number > before, (found.number, before)
        before = found.number
        code = sorted(path.read_bytes() for path in found.objects.values())
        assert code == [b"code %d" % (turn + 1) for turn in range(found.number - int(sys.argv[4]) + 1)], code
    time.sleep(0.001)
"""


def test_engines_another_puller_and_a_sidecar_share_a_folder(folder: Folder) -> None:
    """Each sees whole generations only, in order, and the last one."""
    first = folder.world.publish("operator_1", b"code 1").number
    turns = 5
    kinds = ("reader", "reader", "puller", "puller")
    arguments = [str(folder.world.folder), str(first + turns - 1), str(first)]
    engines = [
        subprocess.Popen([sys.executable, "-c", ENGINE, kind, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for kind in kinds
    ]
    try:
        with folder.running() as sidecar:
            for engine in engines:
                assert engine.stdout is not None
                assert engine.stdout.readline() == "ready\n"
            for turn in range(2, turns + 1):
                published = folder.world.publish(f"operator_{turn}", f"code {turn}".encode())
                assert published.number == first + turn - 1
            sidecar.until("taken", generation=first + turns - 1)
            assert [engine.wait(PATIENCE_S) for engine in engines] == [0] * len(kinds)
            assert "poll_failed" not in [event["event"] for event in sidecar.events]
    finally:
        for engine in engines:
            engine.kill()
            engine.wait()
            assert engine.stdout is not None
            engine.stdout.close()


def a_report(generation: int) -> StatusReport:
    return StatusReport(
        host="a" * 64,
        worker="0",
        process="b" * 16,
        follows="canary",
        channel="canary",
        generation=generation,
        work=Work(),
        refusals=(),
        problem="",
        kill="",
        closing=False,
        swapped_utc="2026-12-02T00:00:00+00:00",
        created_utc="2026-12-02T00:00:00+00:00",
    )


class TestOnce:
    def test_an_empty_channel_then_a_full_one(self, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(folder.arguments("--once")) == 0
        assert folder.reader().last_good() is None
        folder.world.publish("rms_norm", b"code 1")
        folder.world.publish("softmax", b"code 2")
        assert main(folder.arguments("--once", "--tables=softmax.float32")) == 0
        assert codes(folder.reader(["softmax.float32"]).last_good()) == [b"code 2"]
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [event["event"] for event in events] == ["started", "stopped", "started", "taken", "stopped"]
        assert events[3]["tables"] == ["softmax.float32"]

    def test_a_cache_that_everybody_may_write_to(self, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
        folder.cache.mkdir()
        folder.cache.chmod(0o777)
        assert main(folder.arguments("--once")) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (warning,) = [event["reason"] for event in events if event["event"] == "warning"]
        assert str(folder.cache) in warning

    def test_a_store_that_is_away(self, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
        folder.world.publish("rms_norm", b"code 1")
        assert main(folder.arguments("--once")) == 0
        shutil.rmtree(folder.world.path(""))
        assert main(folder.arguments("--once")) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1
        assert "timestamp.json" in said.err
        assert codes(folder.reader().last_good()) == [b"code 1"]


class TestStatus:
    """What a probe of an orchestrator asks."""

    def probe(self, folder: Folder, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(folder.arguments("--status"))
        (line,) = capsys.readouterr().out.splitlines()
        return code, json.loads(line)

    def test_each_state(
        self, folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code, said = self.probe(folder, capsys)
        assert (code, said["well"], said["trouble"][:10]) == (1, False, "no sidecar")
        number = folder.world.publish("rms_norm", b"code 1").number
        main(folder.arguments("--once"))
        code, said = self.probe(folder, capsys)
        assert (code, said["trouble"]) == (1, "the sidecar was ended; start it again")
        assert (said["generation"], said["polls"], said["running"]) == (number, 1, False)
        with folder.running() as sidecar:
            sidecar.until("taken", generation=number)
            monkeypatch.setattr(sidecar_status, "SILENT_S", 3600.0)
            deadline_s = time.monotonic() + PATIENCE_S
            while (asked := self.probe(folder, capsys))[0] and time.monotonic() < deadline_s:
                pass
        assert asked[0] == 0
        assert (asked[1]["well"], asked[1]["generation"], asked[1]["trouble"]) == (True, number, "")
        os.utime(folder.status_path, (0, 0))
        code, said = self.probe(folder, capsys)
        assert code == 1
        assert "silent" in said["trouble"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (["--store="], "expected --store"),
        (["--poll-s=0"], "above 0"),
        (["--root-file=/nowhere/root.json"], "key ceremony"),
        (["--store=ftp://x"], "store address"),
        (["--model=a/b"], "slash"),
        (["--cache-dir=/dev/null/x"], "cache /dev/null/x"),
    ],
)
def test_bad_input_is_one_line(
    folder: Folder, capsys: pytest.CaptureFixture[str], changed: list[str], says: str
) -> None:
    assert main([*folder.arguments("--once"), *changed]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1


def test_killed_before_each_of_its_writes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that starts then finds the old generation or the new one, whole; the next sidecar takes the new one."""
    world = folder.world
    world.publish("rms_norm", b"code 1")
    main(folder.arguments("--once"))
    whole = folder.cache.with_name("whole")
    folder.cache.rename(whole)
    world.publish("softmax", b"code 2")
    lock = threading.Lock()
    for write in range(100):
        shutil.copytree(whole, folder.cache, symlinks=True)
        left = write

        def dying(real: Any) -> Any:
            def write_or_die(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                with lock:
                    if left == 0:
                        raise Killed
                    left -= 1
                return real(*arguments, **options)

            return write_or_die

        with monkeypatch.context() as patch:
            patch.setattr(durable_file, "write", dying(durable_file.write))
            patch.setattr(Updater, "_persist_file", dying(Updater._persist_file))
            try:
                main(folder.arguments("--once"))
                died = False
            except Killed:
                died = True
        found = codes(folder.reader().last_good())
        assert found == [b"code 1", b"code 2"] or (died and found == [b"code 1"])
        assert codes(world.puller().poll() or folder.reader().last_good()) == [b"code 1", b"code 2"]
        shutil.rmtree(folder.cache)
        if not died:
            break
    assert write > 8
