"""Real hosts, each on a thread, follow by cohort and report; the watch undoes a bad kernel and releases a good one."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from flows.steps import plain
from flows.watch import Watched, watch_steps
from gristmill import records
from gristmill.cohort import AUTO, in_cohort
from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.host import Host
from gristmill.pull import Puller
from gristmill.reporter import Reporter
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.status_report import report
from registry.canary import Outcome, WatchPolicy
from registry.share import set_share
from tasks.settings import Settings
from tests.gristmill.conftest import ABI_DIR, RMS_NORM
from tests.registry.world import CANARY, World, make_artifact

TABLE = "rms_norm.float32"
SHARE = 500
PATIENCE_S = 120.0
POLICY = WatchPolicy(soak_s=0.0, min_calls=30, min_timed_calls=5, min_operator_ratio=0.0)
"""The times of operators are real, and this machine may be busy: they are reported, and decide nothing."""


pytestmark = pytest.mark.usefixtures("no_power_cuts")


class Engine:
    """A process of one host: a model of one operator, and all that follows a channel and reports."""

    def __init__(self, world: World, host_id: str) -> None:
        self.host_id = host_id
        folder = world.folder / host_id[:8]
        folder.mkdir()
        (folder / "host_id").write_text(host_id)
        self.dispatcher = Dispatcher(AUTO, CANARY.hardware, DispatchSettings(shadow_every=4), environ={})
        site = self.dispatcher.site("rms_norm", torch.float32, {"hidden": 8}, (1e-5,), _norm)
        sampler = Sampler(period=3)
        self.hook = Hook(Instruments(self.dispatcher, sampler), site)
        self.reporter = Reporter(self.dispatcher, sampler, AUTO)
        root = world.repository.initialise()
        puller = Puller(world.store, root, CANARY.fleet, CANARY.model, CANARY.hardware, AUTO, folder)

        def tell() -> None:
            report(world.store, puller.channel, self.reporter.status(host_id, self.host.problem))

        self.host = Host(puller, self.dispatcher, lambda event: None, 0.1, tell, report_s=0.1)
        self.host.start()

    def step(self) -> None:
        if self.host.boundary() is not None:
            self.reporter.swapped()
        with torch.no_grad():
            x_TH, weight_H = torch.ones(2, 8), torch.ones(8)
            self.hook.call(x_TH, weight_H)
        self.reporter.decoded(tokens=2, duration_ns=1000)

    @property
    def serves(self) -> tuple[str, int]:
        generation = self.dispatcher.generation
        return generation.channel, len(generation.tables)


def _norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    return (torch.rms_norm(x_TH, (8,), weight_H, eps),)


class Fleet:
    """Eight hosts of which each of two canaries has four, whatever the compiler makes of their kernels."""

    def __init__(self, world: World, kernels: list[bytes]) -> None:
        self.world = world
        self.settings = Settings(world.folder, world.store.url, CANARY.fleet, CANARY.model, CANARY.hardware, "")
        self.salts = [records.digest({TABLE: records.digest(make_artifact("rms_norm", code)[0])}) for code in kernels]
        world.repository.initialise()
        set_share(world.store, world.keyring, CANARY.fleet, SHARE)
        self.engines = [Engine(world, host_id) for host_id in self._ids()]

    def _ids(self) -> list[str]:
        chosen: dict[tuple[bool, ...], list[str]] = {}
        for number in count():
            host_id = records.sha256_hex(f"host {number}".encode())
            kind = chosen.setdefault(tuple(in_cohort(host_id, CANARY, salt, SHARE) for salt in self.salts), [])
            if len(kind) < 2:
                kind.append(host_id)
            if sum(map(len, chosen.values())) == 8:
                return sorted(host_id for kind in chosen.values() for host_id in kind)
        raise AssertionError("counting never ends")

    def cohort(self, salt: str) -> set[str]:
        return {one.host_id for one in self.engines if in_cohort(one.host_id, CANARY, salt, SHARE)}

    def serve_until(self, reached: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < ends_s, [(one.serves, one.host.problem) for one in self.engines]
            for _ in range(5):
                for engine in self.engines:
                    engine.step()

    def watch_until(self, outcome: Outcome) -> Watched:
        found: list[Watched] = []

        def reached() -> bool:
            found[:] = watch_steps(self.settings, plain, POLICY, act=True)
            assessment = found[0].looked.assessment
            assert assessment is not None
            assert assessment.outcome in (outcome, Outcome.INCONCLUSIVE), assessment
            return assessment.outcome is outcome

        self.serve_until(reached)
        return found[0]


@pytest.fixture
def kernels(tmp_path: Path) -> list[bytes]:
    """One that is right on what the smoke test draws and wrong on what the hosts are asked, and one that is right.

    Not by counting calls: hosts of one process share what is loaded, and with it the count.
    """
    if shutil.which("g++") is None:
        pytest.skip("no g++ on the PATH")
    (tmp_path / "kernel.cpp").write_text(RMS_NORM)
    made = []
    for wrong_on_ones in (1, 0):
        flags = ["-O1", "-shared", "-fPIC", f"-I{ABI_DIR}", f"-DWRONG_ON_ONES={wrong_on_ones}"]
        subprocess.run(["g++", *flags, "-o", str(tmp_path / "k.so"), str(tmp_path / "kernel.cpp")], check=True)
        made.append((tmp_path / "k.so").read_bytes())
    return made


@pytest.fixture
def fleet(tmp_path: Path, kernels: list[bytes]) -> Iterator[Fleet]:
    made = Fleet(World(tmp_path / "world"), kernels)
    yield made
    for engine in made.engines:
        engine.host.stop()


def test_a_bad_generation_is_rolled_back_and_a_good_one_released(fleet: Fleet, kernels: list[bytes]) -> None:
    bad, good = kernels
    fleet.world.publish("rms_norm", bad)
    found = fleet.watch_until(Outcome.FAILED)
    assert found.action.startswith("rolled back: ") and found.looked.assessment is not None
    assert f"mismatches ({TABLE} on " in found.looked.assessment.reason
    assert found.looked.watch is not None
    tried = {w.report.host for w in found.looked.watch.witnesses.values() if w.report.channel == "canary"}
    assert tried and tried <= fleet.cohort(fleet.salts[0]), "nobody else has ever run it"
    fleet.serve_until(lambda: all(engine.serves[1] == 0 for engine in fleet.engines))

    number = fleet.world.publish("rms_norm", good).number
    canaries = fleet.cohort(fleet.salts[1])
    assert canaries != fleet.cohort(fleet.salts[0]) and len(canaries) == 4
    found = fleet.watch_until(Outcome.SUCCEEDED)
    assert found.action.startswith("released: ")
    assert found.looked.watch is not None
    served = {w.report.host for w in found.looked.watch.witnesses.values() if w.report.generation == number}
    assert served <= canaries and len(served) >= POLICY.min_hosts
    fleet.serve_until(lambda: all(engine.serves == ("stable", 1) for engine in fleet.engines))
    hits = [engine.reporter.status(engine.host_id).work.of(TABLE).hits for engine in fleet.engines]
    for engine in fleet.engines:
        engine.step()
    after = [engine.reporter.status(engine.host_id).work.of(TABLE).hits for engine in fleet.engines]
    assert all(now > before for now, before in zip(after, hits, strict=True)), "all run it now"
