"""`./mill registry`: what it prints reads like git, and says the same as JSON."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from gristmill.directory_store import DirectoryStore
from gristmill.hardware import local_cpu
from gristmill.trust import Channel
from registry.garbage import DAY_S
from registry.publication import move, publish
from registry.rollback import roll_back
from tests.cli import in_process
from tests.cli.in_process import Run
from tests.registry import world as registry_world
from tests.registry.world import BeforeTimestamp, Killed, World, make_artifact, take


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A registry with four states in canary: two promotions, one rollback, one more promotion; stable is empty."""
    channel = Channel("canary", "chat", "llama", local_cpu().key)
    monkeypatch.setattr(registry_world, "CANARY", channel)
    world = World(tmp_path, DirectoryStore(tmp_path / "store"))
    world.publish("rms_norm", b"code 1")
    world.publish("rms_norm", b"code 2")
    roll_back(world.store, world.keyring, channel)
    world.publish("softmax", b"code 3")
    return world


@pytest.fixture
def mill(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_process.mill(
        monkeypatch,
        capsys,
        ["registry"],
        MILL_HOME=str(world.folder),
        MILL_STORE=world.store.url,
        MILL_FLEET="chat",
        MILL_MODEL="llama",
    )


def parsed(mill: Run, *arguments: str) -> object:
    code, out, err = mill(*arguments, "--json")
    assert (code, err) == (0, ""), err
    return json.loads(out)


class TestLog:
    def test_says_who_when_why_and_what(self, mill: Run, world: World) -> None:
        code, out, err = mill("log")
        assert (code, err) == (0, "")
        heads, _, *rows = out.splitlines()
        assert heads.split() == ["name", "state", "number", "when", "(UTC)", "signed", "by", "why", "tables"]
        (key,) = world.keyring.public["canary"]
        assert all(f"canary key {key.keyid[:12]}" in row for row in rows)
        assert [row.split()[0] for row in rows] == ["canary", "canary~1", "canary~2", "canary~3"]
        assert [re.split(r"  +", row)[-1] for row in rows] == [
            "+softmax.float32",
            "~rms_norm.float32",
            "~rms_norm.float32",
            "+rms_norm.float32",
        ]
        assert "rollback to 2" in rows[1]
        assert "\x1b" not in out

    def test_as_json_whole_digests(self, mill: Run) -> None:
        rows = parsed(mill, "log", "canary")
        assert isinstance(rows, list)
        assert [row["number"] for row in rows] == [5, 4, 3, 2]
        assert [row["previous"] for row in rows] == [*(row["state"] for row in rows[1:]), None]
        assert rows[1]["restores"] == 2 and rows[1]["changed"] == ["rms_norm.float32"]
        assert rows[1]["tables"] == rows[3]["tables"]
        assert all(row["key_is_trusted"] and len(row["signed_by"]) == 64 for row in rows)

    def test_some_of_it(self, mill: Run) -> None:
        assert parsed(mill, "log", "--limit", "2") == parsed(mill, "log")[:2]  # type: ignore[index]
        assert mill("log", "--limit", "2")[1].splitlines()[-1] == "the newest 2; --limit shows more"
        assert "--limit" not in mill("log", "--limit", "4")[1]

    def test_a_channel_without_states(self, mill: Run) -> None:
        assert "nothing was published yet" in mill("log", "stable")[1]
        assert parsed(mill, "log", "stable") == []
        code, _, err = mill("log", "nightly")
        assert code == 2 and len(err.splitlines()) == 1


class TestShow:
    def test_a_state_by_all_its_names(self, mill: Run) -> None:
        rows = parsed(mill, "log")
        digest = rows[2]["state"]  # type: ignore[index]
        names = ["canary~2", "canary:3", digest, digest[:12], f"{rows[0]['state']}~2"]  # type: ignore[index]
        shown = [mill("show", name) for name in names]
        assert all(one == shown[0] for one in shown) and shown[0][0] == 0
        assert shown[0][1].startswith(f"state {digest}\nchannel canary/chat/llama on ")
        assert "another kernel" in shown[0][1] and "2.0x" in shown[0][1] and "judge" in shown[0][1]

    def test_as_json(self, mill: Run) -> None:
        facts = parsed(mill, "show")
        assert isinstance(facts, dict)
        assert facts["number"] == 5 and facts["came"] == ["softmax.float32"]
        assert facts["attested_by"] == {name: ["judge", "approver"] for name in ("rms_norm.float32", "softmax.float32")}
        assert [row["range"] for row in facts["ranges"]] == ["tokens 1 to 8"] * 2
        assert [(one["table"], one["change"], one["old"]) for one in facts["changes"]] == [
            ("softmax.float32", "came", None)
        ]

    def test_the_first_state_came_from_nothing(self, mill: Run) -> None:
        code, out, _ = mill("show", "canary:2")
        assert code == 0 and "before: nothing" in out and "came" in out

    @pytest.mark.parametrize("name", ["canary~9", "stable", "dead", "canary:99", "x"])
    def test_no_state(self, mill: Run, name: str) -> None:
        code, out, err = mill("show", name)
        assert code == 2 and out == "" and err.startswith("mill: state ") and len(err.splitlines()) == 1


class TestDiff:
    def test_which_kernels_changed(self, mill: Run) -> None:
        code, out, _ = mill("diff", "canary~3", "canary")
        assert code == 0 and [line.split()[:2] for line in out.splitlines()[2:]] == [["softmax.float32", "came"]]
        back = parsed(mill, "diff", "canary", "canary~2")
        assert isinstance(back, dict)
        assert [(one["table"], one["change"]) for one in back["changes"]] == [
            ("rms_norm.float32", "another kernel"),
            ("softmax.float32", "went"),
        ]

    def test_nothing(self, mill: Run) -> None:
        code, out, _ = mill("diff", "canary~1", "canary:2")
        assert code == 0 and out.endswith("serve the same\n")

    def test_across_channels(self, mill: Run, world: World) -> None:
        """What stable would get."""
        channel = Channel("canary", "chat", "llama", local_cpu().key)
        move(world.store, world.keyring, channel)
        artifact, files = make_artifact("silu", b"4")
        publish(world.store, world.keyring, channel, [artifact], files, take)
        code, out, _ = mill("diff", "stable", "canary")
        assert code == 0 and [line.split()[:2] for line in out.splitlines()[2:]] == [["silu.float32", "came"]]
        facts = parsed(mill, "show")
        assert facts["attested_by"]["silu.float32"] == ["judge"]  # type: ignore[index]


class TestCollection:
    def test_says_what_goes_and_then_removes_it(self, mill: Run, world: World) -> None:
        with pytest.raises(Killed):
            world.publish("silu_and_mul", b"code 4", store=BeforeTimestamp(world.store))
        code, out, _ = mill("gc")
        assert code == 0 and out == "0 objects, 0.0 KiB, removed\n"
        for found in world.store.scan(""):
            os.utime(world.path(found.key), (found.modified_s - 2 * DAY_S,) * 2)
        code, said, _ = mill("gc", "--dry-run")
        assert code == 0 and said.endswith("would be removed\n") and "blob " in said
        whole = parsed_quietly(mill, "gc", "--dry-run")
        assert {one["key"].split("/")[0] for one in whole["removed"]} == {"blobs", "attestations", "targets", "tuf"}
        assert parsed_quietly(mill, "gc")["removed"] == whole["removed"]
        assert parsed_quietly(mill, "gc")["removed"] == []
        assert len(parsed(mill, "log")) == 4  # type: ignore[arg-type]
        for turn in range(10):
            world.publish("rms_norm", f"more {turn}".encode())
        for found in world.store.scan(""):
            os.utime(world.path(found.key), (found.modified_s - 2 * DAY_S,) * 2)
        assert parsed_quietly(mill, "gc", "--keep", "1")["removed"]
        rows = mill("log")[1].splitlines()[2:]
        assert len(rows) == 10 and rows[-1].endswith("the state before was removed")
        assert mill("show", "canary~9")[0] == 0 and "older ones were removed" in mill("show", "canary~10")[2]

    def test_reports_of_hosts_that_are_gone(self, mill: Run, world: World) -> None:
        world.store.put("reports/chat/llama/hw/host.json", b"{}")
        assert parsed_quietly(mill, "gc")["removed"] == []
        os.utime(world.path("reports/chat/llama/hw/host.json"), (0, 0))
        assert parsed_quietly(mill, "gc", "--reports", "99999", "--dry-run")["removed"] == []
        (gone,) = parsed_quietly(mill, "gc")["removed"]
        assert gone["key"] == "reports/chat/llama/hw/host.json" and "silent" in gone["why"]

    @pytest.mark.parametrize(
        "arguments", [["--keep", "-1"], ["--keep", "nan"], ["--grace", "0"], ["--grace", "0.5"], ["--reports", "0.1"]]
    )
    def test_periods_that_make_no_sense(self, mill: Run, arguments: list[str]) -> None:
        code, out, err = mill("gc", *arguments)
        assert code == 2 and out == "" and len(err.splitlines()) == 1


def parsed_quietly(mill: Run, *arguments: str) -> dict:  # type: ignore[type-arg]
    """Progress goes to the other stream."""
    code, out, _ = mill(*arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_doctor_says_what_is_not_essential(mill: Run) -> None:
    code, out, _ = mill("doctor")
    assert code == 0 and "FAILED" not in out
    (line,) = [line for line in out.splitlines() if line.startswith("versioning")]
    assert "advice" in line and "backups" in line
    rows = json.loads(mill("doctor", "--json")[1])
    assert {row["check"] for row in rows if not row["passed"]} == {row["check"] for row in rows if not row["essential"]}


def test_one_of_its_parts_must_be_named(mill: Run) -> None:
    code, _, err = mill()
    assert code == 2 and len(err.splitlines()) == 1
