"""`--hardware`: each kind of hardware has a channel of its own; a person says which one is meant, or all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.hardware import local_cpu
from gristmill.trust import Channel
from registry.publication import publish
from tests.cli import in_process
from tests.cli.in_process import Run
from tests.registry.world import World, make_artifact, take

OTHER = "x86_64-elsewhere"
ACTS = (["rollback"], ["approve", "canary"], ["promote", "--release"])
LOOKS = (["registry", "log"], ["registry", "show"], ["registry", "diff", "canary", "canary"])


class Fleet(World):
    """A registry that kernels for several kinds of hardware were published to."""

    def channel(self, hardware: str, name: str = "canary", fleet: str = "chat") -> Channel:
        return Channel(name, fleet, "llama", hardware)

    def offer(self, hardware: str, code: bytes = b"code", fleet: str = "chat") -> int:
        artifact, files = make_artifact("rms_norm", code)
        artifact = replace(artifact, table=replace(artifact.table, hardware=hardware))
        channel = self.channel(hardware, fleet=fleet)
        return publish(self.store, self.keyring, channel, [artifact], files, take).number

    def serves(self, hardware: str, name: str = "canary") -> set[str]:
        current = self.repository.current(self.channel(hardware, name))
        return set(current.index.tables) if current else set()


@pytest.fixture
def world(tmp_path: Path) -> Fleet:
    """It is for another machine's hardware, and another fleet's is for a third one."""
    world = Fleet(tmp_path)
    world.offer(OTHER)
    world.offer("x86_64-third", fleet="batch")
    return world


@pytest.fixture
def mill(world: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr("tasks.mlflow_mirror.keep_mirror", lambda settings: None)
    return in_process.mill(
        monkeypatch,
        capsys,
        MILL_HOME=str(world.folder),
        MILL_STORE=world.store.url,
        MILL_FLEET="chat",
        MILL_MODEL="llama",
    )


@pytest.mark.parametrize("command", [*ACTS, *LOOKS])
@pytest.mark.parametrize("written", ["", "nowhere", "x86_64-third", "All", "all,all"])
def test_what_does_not_exist_is_refused_with_what_does(
    mill: Run, world: Fleet, command: list[str], written: str
) -> None:
    code, out, err = mill(*command, *(["--hardware", written] if written else []))
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert err.endswith(f"expected --hardware with one of {OTHER}, all\n")
    assert world.serves(OTHER) and not world.serves(OTHER, "stable")


@pytest.mark.parametrize("command", LOOKS)
@pytest.mark.parametrize("written", [OTHER, "all", f" {OTHER} "])
def test_a_channel_of_another_machine_is_shown(mill: Run, command: list[str], written: str) -> None:
    code, out, err = mill(*command, "--hardware", written)
    assert (code, err) == (0, "") and out
    assert json.loads(mill(*command, "--hardware", written, "--json")[1])


@pytest.mark.parametrize("written", [OTHER, "all"])
def test_and_approved_released_and_rolled_back(mill: Run, world: Fleet, written: str) -> None:
    assert mill("approve", "canary", "--hardware", written)[0] == 0
    assert mill("promote", "--release", "--hardware", written)[0] == 0
    assert world.serves(OTHER, "stable") == {"rms_norm.float32"}
    assert mill("rollback", "--channel", "stable", "--to", "0", "--hardware", written)[0] == 0
    assert world.serves(OTHER, "stable") == set() and world.serves(OTHER)


def test_this_machines_own_is_meant_by_default(mill: Run, world: Fleet) -> None:
    world.offer(local_cpu().key)
    assert mill("rollback")[0] == 0
    assert world.serves(OTHER) and not world.serves(local_cpu().key)


def test_all_are_done_although_one_fails(mill: Run, world: Fleet) -> None:
    """In an incident what can be rolled back is."""
    world.offer(local_cpu().key)
    assert mill("rollback")[0] == 0
    world.offer(OTHER, b"newer")
    code, out, err = mill("rollback", "--hardware", "all", "--json")
    found = json.loads(out)
    assert code == 2 and set(found) == {OTHER, local_cpu().key}
    assert found[OTHER]["tables"] and "already rolled back" in found[local_cpu().key]["error"]
    assert err.startswith(f"mill: {local_cpu().key}: ") and len(err.splitlines()) == 1


def test_nothing_was_published_for_any(mill: Run, world: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_FLEET", "empty")
    for written in ([], ["--hardware", "all"], ["--hardware", local_cpu().key]):
        assert "nothing was published there" in mill("rollback", *written)[2]
        assert mill("registry", "log", *written)[0] == 0
    assert local_cpu().key in mill("rollback", "--hardware", OTHER)[2]


@pytest.mark.parametrize(
    "arguments",
    [["--hardware", OTHER], ["--hardware", "all"], ["--release", "--search", "abc"], ["--release", "--again"]],
)
def test_promotion_judges_for_this_machine(mill: Run, arguments: list[str]) -> None:
    code, out, err = mill("promote", *arguments)
    assert (code, out) == (2, "") and err.startswith("mill: promote: ") and len(err.splitlines()) == 1
