"""The parts of a run in which processes are killed, each where it cannot be killed, and that a loss would be found."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from benchmarks import fleet, kill_rounds
from benchmarks.figures import Outcome
from benchmarks.fleet import NOWHERE, Address, Answer, Promotion
from benchmarks.kill_rounds import Tally, missing_of, problems_of
from gristmill import trust
from registry.publication import publish
from tests.registry.world import CANARY, World, take

GOOD = Answer(7, served=True, right=True, at_s=0.0, problem="")


@contextlib.contextmanager
def in_a_thread(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """What a process of the benchmark does; it ends when its line does."""
    ours, theirs = multiprocessing.Pipe()

    def work() -> None:
        with contextlib.suppress(EOFError, OSError):
            target(*arguments, theirs)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return fleet.build_kernel(tmp_path_factory.mktemp("builds"))


@pytest.fixture
def at(tmp_path: Path, kernel: bytes) -> Address:
    (tmp_path / "kernel.so").write_bytes(kernel)
    return Address(f"file://{tmp_path / 'store'}", {})


def promoted(world: World, kernel: bytes, operator: str) -> Promotion:
    artifact, files = fleet.new_artifact(operator, kernel)
    done = publish(world.store, world.keyring, CANARY, [artifact], files, take)
    return Promotion(artifact.table.name, done.manifests[artifact.table.name], done.number)


def test_a_promoter_writes_down_what_was_confirmed_and_hosts_serve_it(tmp_path: Path, at: Address) -> None:
    world = fleet.open_registry(tmp_path, at)
    with in_a_thread(fleet.promote_without_rest, tmp_path, at, fleet.OPERATOR):
        deadline_s = time.monotonic() + 60
        while len(fleet.books(tmp_path)[0]) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    confirmed, place = fleet.books(tmp_path)
    assert fleet.books(tmp_path, place) == ([], place)
    assert missing_of(world, confirmed) == []
    newest = confirmed[-1].number
    with in_a_thread(fleet.serve, tmp_path, at, 0.01) as line:
        assert problems_of(fleet.ask(line, newest), "following", newest) == []
    with in_a_thread(fleet.serve, tmp_path, NOWHERE, 60.0) as line:
        assert problems_of(fleet.ask(line, newest), "offline", newest) == []
        line.close()
        assert fleet.ask(line, newest) is None


def test_what_is_lost_is_found(tmp_path: Path, at: Address, kernel: bytes) -> None:
    world = fleet.open_registry(tmp_path, at)
    first, second = promoted(world, kernel, "rms_norm"), promoted(world, kernel, "softmax")
    assert missing_of(world, [first, second]) == []
    assert len(missing_of(world, [first, replace(second, number=99)])) == 1
    assert len(missing_of(world, [replace(first, manifest=second.manifest), second])) == 1
    world.path(trust.attestation_key(first.manifest, trust.JUDGE)).unlink()
    assert ["rms_norm" in found for found in missing_of(world, [first, second])] == [True]
    world.path(trust.blob_key(second.manifest)).write_bytes(b"{}")
    assert len(missing_of(world, [first, second])) == 2
    world.path("tuf/timestamp.json").unlink()
    assert ["cannot be read" in found for found in missing_of(world, [first])] == [True]


@pytest.mark.parametrize(
    ("answer", "at_least", "wrong"),
    [
        (GOOD, 7, False),
        (None, 0, True),
        (replace(GOOD, served=False), 7, True),
        (replace(GOOD, right=False), 7, True),
        (GOOD, 8, True),
        (replace(GOOD, generation=0, served=False), 0, False),
    ],
)
def test_a_host_must_serve_by_a_kernel_and_rightly(answer: Answer | None, at_least: int, wrong: bool) -> None:
    assert bool(problems_of(answer, "following", at_least)) is wrong


def test_one_loss_misses_the_target() -> None:
    tally = Tally(rounds=500, kills={"host": 3}, confirmed=9)
    assert [row.verdict for row in kill_rounds.figures(tally)] == [Outcome.MET, Outcome.MET]
    lost, idle = kill_rounds.figures(replace(tally, lost=("number 5",), idle=("round 1", "round 2")))
    assert (lost.measured, lost.unit, lost.verdict) == (1.0, "of 9", Outcome.MISSED)
    assert (idle.measured, idle.unit, idle.verdict) == (2.0, "of 1000", Outcome.MISSED)
    assert "number 5" in lost.note
    assert "round 2" in idle.note
