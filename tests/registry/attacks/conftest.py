"""A registry and a host for each attack, copied from one that is made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.registry.attacks.attacker import Attacker, Victim, codes
from tests.registry.world import World


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A registry with two promotions and the cache of a host that followed both; and the timestamp between them."""
    world = World(tmp_path_factory.mktemp("template"))
    puller = world.puller()
    world.publish("rms_norm", b"code 1")
    assert puller.poll() is not None
    old = world.path("tuf/timestamp.json").read_bytes()
    world.publish("softmax", b"code 2")
    assert puller.poll() is not None
    return world.folder, old


@pytest.fixture
def victim(template: tuple[Path, bytes], tmp_path: Path) -> Victim:
    folder, old = template
    shutil.copytree(folder, tmp_path / "world", symlinks=True)
    world = World(tmp_path / "world")
    puller = world.puller()
    assert codes(puller.last_good()) == [b"code 1", b"code 2"]
    return Victim(world, puller, old)


@pytest.fixture
def steal(victim: Victim) -> Callable[..., Attacker]:
    """`steal(*roles)`: an attacker with the online keys of these roles."""
    return lambda *roles: Attacker(victim.world, *roles)
