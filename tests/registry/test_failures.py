"""What failed in canary is remembered, until somebody brings it back knowing that, or stable serves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import trust
from registry import failures
from registry.failures import failed_kernels, told, why_failed
from registry.publication import move
from registry.rollback import roll_back
from tests.registry.world import CANARY, STABLE, World, make_artifact

WHY = "generation 3 failed in canary: 3 mismatches"


def why(world: World, operator: str, code: bytes) -> str | None:
    """As another manifest of the same kernel finds it."""
    return why_failed(
        make_artifact(operator, code, "1.7")[0].table, failed_kernels(world.store, world.repository, STABLE)
    )


def fail(world: World, reason: str = "3 mismatches") -> None:
    roll_back(world.store, world.keyring, CANARY, reason=told(reason))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Canary served softmax, then tried rms_norm beside it, which failed."""
    world = World(tmp_path)
    world.publish("softmax", b"code 1")
    world.publish("rms_norm", b"code 2")
    fail(world)
    return world


def test_the_kernels_that_were_tried_and_no_others(world: World) -> None:
    assert why(world, "rms_norm", b"code 2") == WHY
    assert why(world, "rms_norm", b"code 3") is None
    assert why(world, "softmax", b"code 1") is None


def test_what_is_published_afterwards_does_not_hide_it(world: World) -> None:
    world.publish("silu_and_mul", b"code 3")
    world.publish("rms_norm", b"code 4")
    assert why(world, "rms_norm", b"code 2") == WHY
    assert why(world, "rms_norm", b"code 4") is None


def test_a_rollback_by_a_person_says_nothing_about_the_kernel(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish("softmax", b"code 1")
    world.publish("rms_norm", b"code 2")
    roll_back(world.store, world.keyring, CANARY)
    assert why(world, "rms_norm", b"code 2") is None


def test_whoever_brings_it_back_knows(world: World) -> None:
    roll_back(world.store, world.keyring, CANARY, to=3)
    assert why(world, "rms_norm", b"code 2") is None
    fail(world, "slower")
    assert why(world, "rms_norm", b"code 2") == "generation 5 failed in canary: slower"


def test_what_stable_serves_has_not_failed(tmp_path: Path) -> None:
    """A canary that had to be taken back to no kernels at all takes innocent ones along."""
    world = World(tmp_path)
    world.publish("softmax", b"code 1")
    move(world.store, world.keyring, CANARY)
    world.publish("rms_norm", b"code 2")
    roll_back(world.store, world.keyring, CANARY, to=0, reason=told("3 mismatches"))
    assert why(world, "softmax", b"code 1") is None
    assert why(world, "rms_norm", b"code 2") == WHY


def test_a_manifest_that_was_collected_is_forgotten(world: World) -> None:
    digest = next(iter(world.repository.history(CANARY))).index.tables["softmax.float32"]
    tried = list(world.repository.history(CANARY))[1].index.tables["rms_norm.float32"]
    assert digest != tried
    world.store.delete(trust.blob_key(tried))
    assert why(world, "rms_norm", b"code 2") is None


def test_so_far_back_and_no_further(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish("silu_and_mul", b"code 3")
    monkeypatch.setattr(failures, "LOOKED_BACK", 3)
    assert why(world, "rms_norm", b"code 2") == WHY
    monkeypatch.setattr(failures, "LOOKED_BACK", 2)
    assert why(world, "rms_norm", b"code 2") is None


def test_an_empty_channel_has_seen_no_failure(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not world.repository.exists()
    world.repository.initialise()
    assert world.repository.exists() and failed_kernels(world.store, world.repository, CANARY) == {}
