"""`./mill canary`: what it shows of a fleet, what it does with `--act`, and what it refuses in one line."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.status_report import Refused, report
from registry.publication import move
from tests.cli import in_process
from tests.cli.in_process import Run
from tests.registry.canary_world import PROMOTED_S, fleet, utc
from tests.registry.world import CANARY, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Stable serves softmax; canary tries rms_norm, of which one of four hosts reports mismatches."""
    world = World(tmp_path)
    world.publish("softmax", b"code 1")
    move(world.store, world.keyring, CANARY)
    number = world.publish("rms_norm", b"code 2").number
    hosts = fleet()
    hosts[0] = replace(hosts[0], mismatches=3)
    for host in hosts:
        told = replace(host.report(PROMOTED_S + 60), generation=number if host.canary else 1)
        swapped_s = time.time() - (0 if host.canary else 5000)
        report(world.store, CANARY, replace(told, swapped_utc=utc(swapped_s), created_utc=utc(time.time())))
    return world


@pytest.fixture
def mill(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_process.mill(
        monkeypatch,
        capsys,
        ["canary"],
        MILL_HOME=str(world.folder),
        MILL_STORE=world.store.url,
        MILL_FLEET=CANARY.fleet,
        MILL_MODEL=CANARY.model,
    )


def test_shows_the_fleet_and_what_it_says(mill: Run, world: World) -> None:
    code, out, err = mill()
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["x86_64-test", "canary", "3", "canary", "canary", "4", "0", "20000", "0", "3"] in rows
    assert ["x86_64-test", "stable", "1", "rest", "stable", "6", "0", "0", "0", "0"] in rows
    assert "failed: 3 mismatches (rms_norm.float32 on " in out.splitlines()[-1]
    assert "rms_norm.float32" in world.repository.current(CANARY).index.tables  # type: ignore[union-attr]


def test_acts_when_it_is_told_to(mill: Run, world: World) -> None:
    code, out, _ = mill("--act")
    assert code == 0 and "; rolled back: canary/chat/llama on x86_64-test is at 4" in out
    assert set(world.repository.current(CANARY).index.tables) == {"softmax.float32"}  # type: ignore[union-attr]
    assert "tries nothing that stable does not serve; last change: rollback to 2: canary failed: 3 mis" in mill()[1]


def test_says_the_same_as_json(mill: Run) -> None:
    code, out, err = mill("--json", "--set", "max_mismatches=9", "--set", "soak_s=0")
    assert (code, err) == (0, "")
    (facts,) = json.loads(out)
    assert (facts["outcome"], facts["generation"], facts["tried"]) == ("inconclusive", 3, ["rms_norm.float32"])
    assert facts["action"] == "" and facts["missing"] and facts["next"] == ""
    assert len(facts["processes"]) == 10 and sum(one["mismatches"] for one in facts["processes"]) == 3


@pytest.mark.parametrize(("given", "permille"), [("5", 50), ("0.1%", 1), ("100", 1000), ("0", 0)])
def test_signs_the_share(mill: Run, world: World, given: str, permille: int) -> None:
    code, out, _ = mill("--share", given)
    assert code == 0 and f"on {permille / 10:g} % of auto hosts" in out
    assert world.repository.orders(CANARY).share_permille == permille


def test_a_share_without_the_offline_key_is_refused(mill: Run, world: World) -> None:
    (world.folder / "keys" / "targets.pem").unlink()
    code, out, err = mill("--share", "50")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and "targets" in err
    assert mill("--act")[0] == 0, "the watch itself does without it"


def test_what_hosts_write_is_shown_and_not_obeyed(mill: Run, world: World) -> None:
    """Reports are unsigned: a host must not move the cursor of whoever looks, nor of whoever reads the log later."""
    evil = "\x1b[2J\x1b[31mall is well\r\n\u202eno"
    host = replace(fleet()[0], changes={"problem": evil, "kill": evil}).report(PROMOTED_S + 60)
    refusal = Refused(3, "rms_norm", "c" * 64, evil)
    host = replace(host, generation=2, channel="canary", refusals=(refusal,), swapped_utc=utc(time.time()))
    report(world.store, CANARY, replace(host, created_utc=utc(time.time())))
    for arguments in ((), ("--act", "--set", "max_mismatches=99")):
        code, out, _ = mill(*arguments)
        assert code == 0 and "all is well" in out
        assert all(line.isprintable() for line in out.splitlines())
    reason = world.repository.current(CANARY).index.reason  # type: ignore[union-attr]
    assert "all is well" in reason and reason.isprintable()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--share", "101"), "expected a percentage from 0 to 100"),
        (("--share", "0.05"), "to a tenth at most"),
        (("--share", "many"), "expected a number"),
        (("--set", "soak_s"), "expected NAME=NUMBER"),
        (("--set", "soak=1"), "'soak' is not known, expected one of min_hosts"),
        (("--set", "min_hosts=0"), "expected a whole number from 1"),
        (("stable",), "unrecognized arguments: stable"),
    ],
)
def test_bad_input_is_one_line(mill: Run, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = mill(*arguments)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1
