"""`./mill approve`: of what was looked at and of nothing else; what has failed only if a person says so."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flows import approve as approve_flow
from gristmill import trust
from gristmill.hardware import local_cpu
from gristmill.status_report import report
from gristmill.trust import Channel
from registry.attestation import is_attested
from registry.publication import publish
from tests.cli import in_process
from tests.cli.in_process import Run
from tests.registry import world as registry_world
from tests.registry.canary_world import PROMOTED_S, fleet, utc
from tests.registry.world import World, make_artifact, take

RMS, SOFTMAX = "rms_norm.float32", "softmax.float32"


class Approving(World):
    """Canary serves two tables that nobody has approved."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.canary = registry_world.CANARY
        self.offer("softmax", b"code 1")
        self.number = self.offer("rms_norm", b"code 2")

    def offer(self, operator: str, code: bytes) -> int:
        artifact, files = make_artifact(operator, code)
        return publish(self.store, self.keyring, self.canary, [artifact], files, take).number

    def manifest(self, table: str) -> str:
        current = self.repository.current(self.canary)
        assert current is not None
        return current.index.tables[table]

    def sign(self, table: str) -> None:
        """A person's approval."""
        registry_world.sign(self.store, self.keyring, table, self.manifest(table), "person")

    def approved(self, table: str) -> bool:
        return is_attested(self.store, self.repository.policy(), trust.APPROVER, self.manifest(table))

    def approver(self, table: str) -> str:
        """What the approver's attestation says of who decided."""
        envelope = json.loads(self.path(trust.attestation_key(self.manifest(table), trust.APPROVER)).read_bytes())
        by = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["policy"]["uri"]
        assert isinstance(by, str)
        return by

    def stable(self) -> set[str]:
        current = self.repository.current(replace(self.canary, name="stable"))
        return set(current.index.tables) if current else set()

    def mismatches(self, count: int) -> None:
        """Hosts report, as many mismatches each."""
        for host in fleet(mismatches=count):
            told = replace(host.report(PROMOTED_S + 60), generation=self.number if host.canary else 1)
            swapped_s = time.time() - (0 if host.canary else 5000)
            report(self.store, self.canary, replace(told, swapped_utc=utc(swapped_s), created_utc=utc(time.time())))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Approving:
    monkeypatch.setattr(registry_world, "CANARY", Channel("canary", "chat", "llama", local_cpu().key))
    return Approving(tmp_path)


@pytest.fixture
def mill(world: Approving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr("tasks.mlflow_mirror.keep_mirror", lambda settings: None)
    return in_process.mill(
        monkeypatch,
        capsys,
        MILL_HOME=str(world.folder),
        MILL_STORE=world.store.url,
        MILL_FLEET="chat",
        MILL_MODEL="llama",
        MILL_APPROVAL="person",
    )


def refused(mill: Run, *arguments: str) -> str:
    code, out, err = mill(*arguments)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1, err
    return err


class TestLookedAt:
    @pytest.mark.parametrize("named", ["canary:{0}", "canary", "canary~0", "{1}"])
    def test_what_is_current_is_approved_under_each_of_its_names(self, mill: Run, world: Approving, named: str) -> None:
        state = json.loads(mill("registry", "show", "--json")[1])["state"]
        code, out, _ = mill("approve", named.format(world.number, state[:12]))
        assert code == 0 and f"generation {world.number} of canary is what was approved" in out
        assert world.approved(RMS) and world.approved(SOFTMAX) and world.stable() == set()

    @pytest.mark.parametrize("more", [[], ["--release"], ["--table", RMS], ["--json"]])
    def test_what_came_meanwhile_is_not(self, mill: Run, world: Approving, more: list[str]) -> None:
        looked_at = world.number
        now = world.offer("rms_norm", b"code 3")
        told = refused(mill, "approve", f"canary:{looked_at}", *more)
        assert f"canary:{looked_at} is no longer current, canary:{now} is" in told
        assert not world.approved(RMS) and not world.approved(SOFTMAX) and world.stable() == set()

    def test_what_comes_between_approval_and_release_is_not_released(
        self, mill: Run, world: Approving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = approve_flow.release_steps

        def release(*arguments: object, **more: object) -> object:
            world.publish("silu_and_mul", b"code 3")
            return real(*arguments, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(approve_flow, "release_steps", release)
        assert "taken the place" in refused(mill, "approve", "canary", "--release")
        assert world.stable() == set()

    def test_one_table_of_it(self, mill: Run, world: Approving) -> None:
        assert mill("approve", f"canary:{world.number}", "--table", RMS)[0] == 0
        assert world.approved(RMS) and not world.approved(SOFTMAX)
        assert mill("approve", SOFTMAX)[0] == 0 and world.approved(SOFTMAX)
        code, out, _ = mill("approve", f"canary:{world.number}", "--release", "--json")
        facts = json.loads(out)
        assert code == 0 and (facts["channel"], facts["generation"]) == ("canary", world.number)
        assert facts["stable"] and world.stable() == {RMS, SOFTMAX}

    @pytest.mark.parametrize(
        "arguments",
        [
            ["canary:99"],
            ["stable:1"],
            ["canary~7"],
            ["nightly"],
            [""],
            ["f" * 12],
            ["canary:x"],
            ["silu.float32"],
            ["canary", "--table", "rms_norm"],
            [RMS, "--table", SOFTMAX],
            [],
        ],
    )
    def test_no_state_or_table(self, mill: Run, world: Approving, arguments: list[str]) -> None:
        refused(mill, "approve", *arguments)
        assert not world.approved(RMS) and not world.approved(SOFTMAX)

    def test_a_channel_that_serves_nothing(self, mill: Run) -> None:
        assert mill("approve", "stable")[:2] == (0, "stable serves nothing, so there is nothing to approve\n")


class TestFailed:
    """The watch has found mismatches, and nothing was done about it yet."""

    @pytest.fixture(autouse=True)
    def fail(self, mill: Run, world: Approving, monkeypatch: pytest.MonkeyPatch) -> None:
        world.mismatches(3)
        with monkeypatch.context() as patched:
            patched.setattr("flows.watch._act", lambda *_: "")  # killed between decision and action
            assert "failed: 12 mismatches" in mill("canary", "--act")[1]

    @pytest.mark.parametrize("named", ["canary:{0}", "canary", RMS])
    def test_is_not_approved(self, mill: Run, world: Approving, named: str) -> None:
        told = refused(mill, "approve", named.format(world.number), "--release")
        assert "12 mismatches" in told and f"./mill approve canary:{world.number} --despite-failure" in told
        assert not world.approved(RMS) and world.stable() == set()

    def test_nor_released_if_it_was_approved_before(self, mill: Run, world: Approving) -> None:
        for table in (RMS, SOFTMAX):
            world.sign(table)
        assert "12 mismatches" in refused(mill, "promote", "--release")
        assert world.stable() == set()

    @pytest.mark.parametrize("before", [False, True])
    def test_a_person_may_know_better_and_the_signature_says_so(
        self, mill: Run, world: Approving, before: bool
    ) -> None:
        if before:
            world.sign(RMS)
        code, out, _ = mill("approve", f"canary:{world.number}", "--despite-failure", "--release")
        assert code == 0 and "although it failed in canary" in out and world.stable() == {RMS, SOFTMAX}
        assert world.approver(RMS).startswith("person, although it failed in canary: 12 mismatches")
        assert world.approved(RMS)

    def test_what_has_not_failed_says_nothing_of_the_kind(self, mill: Run, world: Approving) -> None:
        number = world.offer("softmax", b"code 9")
        assert mill("approve", f"canary:{number}", "--table", SOFTMAX, "--despite-failure")[0] == 0
        assert world.approver(SOFTMAX) == "person"
