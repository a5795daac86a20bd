"""The watch: it releases what is good, rolls back what is not, waits otherwise; killed anywhere, it goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flows import watch as watch_flow
from flows.promote import release_steps
from flows.steps import Step, plain
from flows.watch import Watched, watch_steps
from gristmill import cohort, records, trust
from gristmill.domain import AxisRange, Domain
from gristmill.kernel_table import Artifact
from gristmill.status_report import report, report_key
from registry import entry
from registry.approval import PERSON, approve
from registry.canary import Outcome, WatchPolicy
from registry.failures import failed_kernels, why_failed
from registry.metadata_reader import TIMESTAMP_KEY
from registry.publication import move, publish
from registry.revocation import revoke
from registry.rollback import roll_back
from registry.share import set_share
from tasks import canary, object_store, promotion, watch_report
from tasks.errors import WatchError
from tasks.object_store import OpenStore
from tasks.settings import Settings
from tests.registry.canary_world import PROMOTED_S, FakeHost, fleet, utc
from tests.registry.world import CANARY, STABLE, DelegatingStore, DyingStore, Killed, World, make_artifact, ref, take

POLICY = WatchPolicy(soak_s=0.0)
BEYOND = AxisRange("tokens", 9, 16)


class Trial:
    """A registry whose stable serves one kernel and whose canary tries another, and a fleet that reports."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.settings = Settings(folder, self.world.store.url, CANARY.fleet, CANARY.model, CANARY.hardware, "")
        self.world.publish("softmax", b"code 1")
        move(self.world.store, self.world.keyring, CANARY)
        self.tried = self.world.publish("rms_norm", b"code 2")
        self.swapped = {True: utc(time.time()), False: utc(time.time() - 5000)}

    def report(self, hosts: list[FakeHost], after_s: float) -> None:
        for host in hosts:
            told = host.report(PROMOTED_S + after_s)
            number = self.tried.number if host.canary else 1
            told = replace(told, generation=number, swapped_utc=self.swapped[host.canary], created_utc=utc(time.time()))
            report(self.world.store, CANARY, told)

    def reports(self, hosts: list[FakeHost]) -> Watched:
        """Two rounds of reports, with a look after each."""
        self.report(hosts, 60)
        self.look(act=False, remember=True)
        self.report(hosts, 1800)
        return self.look()

    def look(self, step: Step = plain, *, act: bool = True, remember: bool = False) -> Watched:
        if remember:
            canary.look_at(self.world.store, self.world.keyring, CANARY, POLICY, remember=True)
        (found,) = watch_steps(self.settings, step, POLICY, act=act)
        return found

    def serves(self, channel: trust.Channel) -> set[str]:
        entry = self.world.repository.current(channel)
        return set(entry.index.tables) if entry else set()


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def dying(before: str) -> Step:
    """Kills the watch before one of its steps."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            if function.__name__ == before:
                raise KeyboardInterrupt
            return function(*arguments, **keywords)

        run.__name__ = function.__name__
        return run

    return wrap


def built_anew(artifact: Artifact, files: dict[str, bytes]) -> tuple[Artifact, dict[str, bytes]]:
    """The same candidate, from another compiler."""
    code = b"other code"
    entry = replace(artifact.table.entries[0], object=ref("kernel.so", code))
    return replace(artifact, table=replace(artifact.table, entries=(entry,))), files | {records.sha256_hex(code): code}


def outcome(found: Watched) -> Outcome:
    assert found.looked.assessment is not None
    return found.looked.assessment.outcome


class TestActing:
    def test_a_good_canary_is_released_once(self, trial: Trial) -> None:
        found = trial.reports(fleet())
        assert outcome(found) is Outcome.SUCCEEDED, found.looked.assessment
        assert trial.serves(STABLE) == {"softmax.float32", "rms_norm.float32"}
        number = trial.world.repository.current(STABLE).index.number  # type: ignore[union-attr]
        assert found.action == f"released: {STABLE} is at {number}"
        again = trial.look()
        assert again.looked.watch is None and again.action == ""
        assert trial.world.repository.current(STABLE).index.number == number  # type: ignore[union-attr]

    def test_a_bad_one_is_rolled_back_once_and_the_log_says_why(self, trial: Trial) -> None:
        hosts = fleet()
        hosts[1] = replace(hosts[1], mismatches=2)
        trial.report(hosts, 60)
        found = trial.look()
        assert outcome(found) is Outcome.FAILED and found.action.startswith("rolled back: canary/")
        assert trial.serves(CANARY) == trial.serves(STABLE) == {"softmax.float32"}
        log = list(trial.world.repository.history(CANARY))
        assert log[0].index.reason.startswith("rollback to 2: canary failed: 2 mismatches (rms_norm.float32 on ")
        failed = failed_kernels(trial.world.store, trial.world.repository, CANARY)
        assert why_failed(make_artifact("rms_norm", b"code 2")[0].table, failed), "nobody brings it back unknowingly"
        assert why_failed(make_artifact("softmax", b"code 1")[0].table, failed) is None
        assert trial.look().action == "" and len(list(trial.world.repository.history(CANARY))) == len(log)
        assert "tries nothing" in watch_flow.line(trial.look()) and "2 mismatches" in watch_flow.line(trial.look())

    def test_what_cannot_be_told_is_left_alone(self, trial: Trial) -> None:
        found = trial.reports(fleet(canary=2))
        assert outcome(found) is Outcome.INCONCLUSIVE and found.action == ""
        assert "rms_norm.float32" in trial.serves(CANARY) - trial.serves(STABLE)

    def test_looking_alone_changes_nothing(self, trial: Trial) -> None:
        trial.report(fleet(mismatches=1), 60)
        before = {path: path.read_bytes() for path in trial.world.path("").rglob("*") if path.is_file()}
        assert outcome(trial.look(act=False)) is Outcome.FAILED
        assert {path: path.read_bytes() for path in trial.world.path("").rglob("*") if path.is_file()} == before

    def test_success_waits_for_the_approver(self, trial: Trial) -> None:
        trial.settings = replace(trial.settings, approval=PERSON)
        artifact, files = make_artifact("rms_norm", b"code nobody approved")
        trial.tried = publish(trial.world.store, trial.world.keyring, CANARY, [artifact], files, take)
        trial.swapped[True] = utc(time.time())
        found = trial.reports(fleet())
        assert outcome(found) is Outcome.SUCCEEDED, found.looked.assessment
        assert found.action.startswith("waits for a person: ") and "./mill approve" in found.action
        assert trial.serves(STABLE) == {"softmax.float32"}
        approve(trial.world.store, trial.world.keyring, CANARY)
        assert trial.look().action.startswith("released: ")
        assert trial.serves(STABLE) == {"softmax.float32", "rms_norm.float32"}

    def test_no_registry_no_canary(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        World(tmp_path)
        settings = Settings(tmp_path, f"file://{tmp_path}/store", "chat", "llama", "hw", "")
        assert watch_steps(settings, plain, POLICY, act=True) == []
        assert watch_flow.summary([]) == "Nothing was published to canary yet."

    def test_other_fleets_are_left_alone(self, trial: Trial) -> None:
        trial.report(fleet(mismatches=1), 60)
        other = replace(trial.settings, fleet="other")
        assert watch_steps(other, plain, POLICY, act=True) == []
        other_hardware = replace(trial.settings, hardware="of this worker")
        assert watch_steps(other_hardware, plain, POLICY, act=True)[0].action.startswith("rolled back")


class TestInterrupted:
    @pytest.mark.parametrize("before", ["keyring_of", "canary_channels", "look_at", "roll_back"])
    def test_a_bad_canary_is_rolled_back_by_the_next(self, trial: Trial, before: str) -> None:
        """Even if by then all hosts look well: what was decided is written down before it is done."""
        trial.report(fleet(mismatches=1), 60)
        with pytest.raises(KeyboardInterrupt):
            trial.look(dying(before))
        assert "rms_norm.float32" in trial.serves(CANARY)
        if before == "roll_back":
            healed = [replace(host, changes={"process": "p2"}) for host in fleet()]
            trial.report(healed, 1800)
        assert trial.look().action.startswith("rolled back")
        assert trial.serves(CANARY) == {"softmax.float32"}

    @pytest.mark.parametrize("before", ["look_at", "approve_gains", "move"])
    def test_a_good_one_is_released_by_the_next(self, trial: Trial, before: str) -> None:
        trial.report(fleet(), 60)
        trial.look()
        trial.report(fleet(), 1800)
        with pytest.raises(KeyboardInterrupt):
            trial.look(dying(before))
        assert trial.serves(STABLE) == {"softmax.float32"}
        assert trial.look().action.startswith("released")

    @pytest.mark.parametrize("mismatches", [1, 0])
    def test_killed_before_each_write_it_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mismatches: int
    ) -> None:
        """Hosts see what was or what is to be, and the next watch does what is left; nothing is done twice."""
        for write in count():
            trial = Trial(tmp_path / f"{write}")
            trial.report(fleet(), 60)
            trial.look()
            trial.report(fleet(mismatches=mismatches), 1800)
            before = trial.serves(CANARY), trial.serves(STABLE)
            store = DyingStore(trial.world.store, write)
            with monkeypatch.context() as patched, contextlib.suppress(Killed):
                opened = contextlib.nullcontext(OpenStore(store, store.url, {}))
                patched.setattr(object_store, "opened", lambda settings, opened=opened: opened)
                trial.look()
                assert store.left >= 0
            whole = {"softmax.float32"} if mismatches else {"softmax.float32", "rms_norm.float32"}
            assert (trial.serves(CANARY), trial.serves(STABLE)) in (before, (whole, whole))
            trial.look()
            assert trial.serves(CANARY) == trial.serves(STABLE) == whole
            for channel, expected in ((CANARY, 3 if mismatches else 2), (STABLE, 1 if mismatches else 2)):
                assert len(list(trial.world.repository.history(channel))) == expected
            if store.left > 0:
                assert write > 5, "it has written more than that"
                return

    def test_what_others_publish_between_judgement_and_action_is_not_undone(self, trial: Trial) -> None:
        def published_first(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any) -> Any:
                trial.world.publish("silu_and_mul", b"code 3")
                return function(*arguments)

            return run if function.__name__ in ("roll_back", "move") else function

        trial.report(fleet(mismatches=1), 60)
        found = trial.look(published_first)
        assert "has taken the place of what was judged" in found.action
        assert trial.serves(CANARY) == {"softmax.float32", "rms_norm.float32", "silu_and_mul.float32"}

    def test_a_failure_outlasts_what_others_publish_meanwhile(self, trial: Trial) -> None:
        """However well the next state fares: what failed leaves it, and what came with it stays and is tried."""
        trial.report(fleet(mismatches=1), 60)
        canary.look_at(trial.world.store, trial.world.keyring, CANARY, POLICY, remember=True)
        trial.world.publish("silu_and_mul", b"code 3")
        trial.tried = trial.world.publish("skinny_linear", b"code 4")
        trial.swapped[True] = utc(time.time())
        trial.report(fleet(), 120)
        trial.look(act=False, remember=True)
        found = trial.reports(fleet())
        assert outcome(found) is Outcome.FAILED and found.looked.assessment is not None
        assert "rms_norm.float32 failed before" in found.looked.assessment.reason
        assert "4 mismatches" in found.looked.assessment.reason
        assert found.action.startswith("took out rms_norm.float32: canary/")
        assert trial.serves(CANARY) == {"softmax.float32", "silu_and_mul.float32", "skinny_linear.float32"}
        failed = failed_kernels(trial.world.store, trial.world.repository, CANARY)
        assert why_failed(make_artifact("rms_norm", b"code 2")[0].table, failed)
        assert why_failed(make_artifact("silu_and_mul", b"code 3")[0].table, failed) is None
        again = trial.look()
        assert outcome(again) is Outcome.INCONCLUSIVE and again.action == "", "the others are tried by themselves"

    @pytest.mark.parametrize("part", ["object", "candidate"])
    def test_another_manifest_of_the_same_code_is_no_pardon(self, trial: Trial, part: str) -> None:
        trial.report(fleet(mismatches=1), 60)
        canary.look_at(trial.world.store, trial.world.keyring, CANARY, POLICY, remember=True)
        failed = promotion.failed_in_canary(trial.world.store, trial.settings)
        artifact, files = make_artifact("rms_norm", b"code 2", "1.7")
        assert "4 mismatches" in str(why_failed(artifact.table, failed))
        if part == "candidate":
            artifact, files = built_anew(artifact, files)
            assert "4 mismatches" in str(why_failed(artifact.table, failed))
        trial.tried = publish(trial.world.store, trial.world.keyring, CANARY, [artifact], files, take)
        trial.swapped[True] = utc(time.time())
        trial.report(fleet(), 120)
        trial.look(act=False, remember=True)
        found = trial.reports(fleet())
        assert outcome(found) is Outcome.FAILED
        assert found.action.startswith("took out rms_norm.float32: canary/")
        assert trial.serves(STABLE) == trial.serves(CANARY) == {"softmax.float32"}

    def test_what_a_table_shares_with_stable_is_not_at_fault(self, trial: Trial) -> None:
        """Two ranges, of which stable serves one: the other one failed."""
        old, files = make_artifact("softmax", b"code 1")
        new, more = make_artifact("softmax", b"code 6")
        entries = (*old.table.entries, replace(new.table.entries[0], domain=Domain("softmax", "float32", (BEYOND,))))
        both = replace(new, table=replace(new.table, entries=entries))
        trial.tried = publish(trial.world.store, trial.world.keyring, CANARY, [both], files | more, take)
        trial.report(fleet(mismatches=1), 60)
        canary.look_at(trial.world.store, trial.world.keyring, CANARY, POLICY, remember=True)
        failed = promotion.failed_in_canary(trial.world.store, trial.settings)
        assert why_failed(new.table, failed) and why_failed(old.table, failed) is None

    def test_what_a_person_brings_again_is_tried_again(self, trial: Trial) -> None:
        trial.report(fleet(mismatches=1), 60)
        assert trial.look().action.startswith("rolled back")
        trial.tried = trial.world.publish("rms_norm", b"code 2")
        trial.swapped[True] = utc(time.time())
        assert outcome(trial.reports(fleet())) is Outcome.SUCCEEDED

    @pytest.mark.parametrize("improved", [True, False])
    def test_in_the_place_of_what_failed_comes_what_stable_serves(self, trial: Trial, improved: bool) -> None:
        if improved:
            trial.tried = trial.world.publish("softmax", b"code 5")
            trial.swapped[True] = utc(time.time())
        trial.report(fleet(mismatches=1), 60)
        canary.look_at(trial.world.store, trial.world.keyring, CANARY, POLICY, remember=True)
        trial.world.publish("silu_and_mul", b"code 3")
        trial.look()
        current, stable = (trial.world.repository.current(one) for one in (CANARY, STABLE))
        assert current is not None and stable is not None
        assert set(current.index.tables) == {"softmax.float32", "silu_and_mul.float32"}
        assert current.index.tables["softmax.float32"] == stable.index.tables["softmax.float32"]


class TestBelowStable:
    """A person has rolled canary back, or a thief of its key: that tries nothing and takes nothing from stable."""

    def test_a_canary_that_only_lacks_tables_is_none(self, trial: Trial) -> None:
        trial.tried = roll_back(trial.world.store, trial.world.keyring, CANARY, 0)
        trial.swapped[True] = utc(time.time())
        found = trial.reports(fleet())
        assert found.looked.watch is None and found.action == ""
        assert "tries nothing that stable does not serve; last change: rollback to 0" in watch_flow.line(found)
        assert trial.serves(STABLE) == {"softmax.float32"}
        number = trial.world.repository.current(CANARY).index.number  # type: ignore[union-attr]
        trial.look()
        assert trial.world.repository.current(CANARY).index.number == number  # type: ignore[union-attr]

    def test_a_good_one_takes_no_table_from_stable_without_a_person(self, trial: Trial) -> None:
        roll_back(trial.world.store, trial.world.keyring, CANARY, 0)
        trial.tried = trial.world.publish("rms_norm", b"code 2")
        trial.swapped[True] = utc(time.time())
        found = trial.reports(fleet())
        assert outcome(found) is Outcome.SUCCEEDED, found.looked.assessment
        assert found.action.startswith("waits for a person: ") and "lose softmax.float32" in found.action
        assert trial.serves(STABLE) == {"softmax.float32"}
        release_steps(trial.settings, plain)
        assert trial.serves(STABLE) == {"rms_norm.float32"}

    def test_what_is_revoked_may_go_without_one(self, trial: Trial) -> None:
        roll_back(trial.world.store, trial.world.keyring, CANARY, 0)
        trial.tried = trial.world.publish("rms_norm", b"code 2")
        revoke(trial.world.store, trial.world.keyring, records.digest(make_artifact("softmax", b"code 1")[0]), "wrong")
        trial.swapped[True] = utc(time.time())
        assert trial.reports(fleet()).action.startswith("released: ")
        assert trial.serves(STABLE) == {"rms_norm.float32"}


class TestClocks:
    @pytest.mark.parametrize("off_s", [-3700, -1860, 7200])
    def test_a_promoters_clock_decides_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: int
    ) -> None:
        class Off(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(tz) + timedelta(seconds=off_s)

        monkeypatch.setattr(entry, "datetime", Off)
        trial = Trial(tmp_path)
        looked = canary.look_at(trial.world.store, trial.world.keyring, CANARY, WatchPolicy(), remember=False)
        assert looked.watch is not None and looked.assessment is not None
        assert looked.watch.canary.promoted_s <= looked.now_s < looked.watch.canary.promoted_s + 1800
        assert looked.assessment.outcome is Outcome.INCONCLUSIVE
        assert "of 30 min" in looked.assessment.reason

    def test_a_state_that_cannot_be_restored_leaves_no_kernels(self, trial: Trial) -> None:
        """Rather the engine's own everywhere than what has failed."""
        states = list(trial.world.repository.history(CANARY))
        trial.world.path(trust.target_key(CANARY.index_path, states[1].sha256)).unlink()
        trial.report(fleet(mismatches=1), 60)
        assert trial.look().action.startswith("rolled back")
        assert trial.serves(CANARY) == set()


class TestMemory:
    def test_two_who_look_at_once_lose_nothing(self, trial: Trial) -> None:
        """Who loses the race looks again, upon what the other has remembered."""
        key = canary.watch_key(CANARY)

        class RacedStore(DelegatingStore):
            raced = False

            def replace_if(self, key: str, content: bytes, etag: str) -> str:
                if not self.raced:
                    self.raced = True
                    trial.report(fleet(mismatches=1), 120)
                    canary.look_at(self.inner, trial.world.keyring, CANARY, POLICY, remember=True)
                return self.inner.replace_if(key, content, etag)

        trial.report(fleet(), 60)
        trial.look()
        trial.report(fleet(), 90)
        raced = RacedStore(trial.world.store)
        looked = canary.look_at(raced, trial.world.keyring, CANARY, POLICY, remember=True)
        assert raced.raced and looked.assessment is not None and looked.assessment.outcome is Outcome.FAILED
        assert "4 mismatches" in trial.world.path(key).read_text()

    def test_it_is_recalled_without_a_write(self, trial: Trial) -> None:
        """Who approves or promotes may have no more rights than that takes."""
        trial.report(fleet(mismatches=1), 60)
        canary.look_at(trial.world.store, trial.world.keyring, CANARY, POLICY, remember=True)
        watch = canary.remembered(DyingStore(trial.world.store, 0), trial.world.keyring, CANARY)
        assert watch is not None and "4 mismatches" in watch.failures["rms_norm.float32"]

    @pytest.mark.parametrize("damage", [b"", b"{}", b"\xff"])
    def test_a_damaged_memory_is_begun_anew(self, trial: Trial, damage: bytes) -> None:
        trial.report(fleet(), 60)
        trial.look()
        trial.world.path(canary.watch_key(CANARY)).write_bytes(damage)
        assert outcome(trial.look()) is Outcome.INCONCLUSIVE
        trial.report(fleet(), 1800)
        assert outcome(trial.look()) is Outcome.SUCCEEDED

    def test_the_next_canary_is_a_new_one(self, trial: Trial) -> None:
        trial.report(fleet(mismatches=1), 60)
        trial.look()
        trial.tried = trial.world.publish("rms_norm", b"code 3")
        trial.swapped[True] = utc(time.time())
        assert outcome(trial.reports(fleet())) is Outcome.SUCCEEDED


class TestRevoked:
    """What nobody may load is tried on nobody: else the watch would wait for its calls for ever."""

    def digest(self, kind: str, code: bytes) -> str:
        artifact, _ = make_artifact("rms_norm", code)
        (entry,) = artifact.table.entries
        found = {"manifest": records.digest(artifact), "object": entry.object.sha256, "candidate": entry.candidate}
        return found[kind]

    @pytest.mark.parametrize("kind", ["manifest", "object", "candidate"])
    def test_a_canary_of_which_nothing_is_left_is_none(self, trial: Trial, kind: str) -> None:
        revoke(trial.world.store, trial.world.keyring, self.digest(kind, b"code 2"), "wrong under load")
        found = trial.look()
        assert found.looked.watch is None and found.action == ""
        assert trial.serves(CANARY) == {"softmax.float32", "rms_norm.float32"}, "hosts leave it out by themselves"

    def test_the_rest_of_a_canary_is_tried_under_the_salt_that_hosts_use(self, trial: Trial) -> None:
        before = trial.look().looked
        trial.tried = trial.world.publish("silu_and_mul", b"code 3")
        raw = trial.world.repository.current(CANARY)
        revoke(trial.world.store, trial.world.keyring, self.digest("object", b"code 2"), "wrong under load")
        watch = trial.look().looked.watch
        assert before.watch is not None and watch is not None and raw is not None
        assert before.watch.canary.changed == ("rms_norm.float32",)
        assert watch.canary.changed == ("silu_and_mul.float32",)
        assert watch.canary.salt == cohort.salt_of(raw.index) and watch.canary.state == raw.sha256

    def test_what_is_gone_from_the_store_may_be_in_caches(self, trial: Trial) -> None:
        trial.world.store.delete(trust.blob_key(self.digest("manifest", b"code 2")))
        revoke(trial.world.store, trial.world.keyring, "a" * 64, "another one")
        watch = trial.look().looked.watch
        assert watch is not None and watch.canary.changed == ("rms_norm.float32",)


def test_one_look_reads_the_metadata_once(trial: Trial) -> None:
    trial.report(fleet(), 60)
    counting = DelegatingStore(trial.world.store)
    canary.look_at(counting, trial.world.keyring, CANARY, POLICY, remember=True)
    metadata = [key for key in counting.reads if key.startswith("tuf/")]
    assert TIMESTAMP_KEY in metadata and len(metadata) == len(set(metadata))
    reports = [key for key in counting.reads if key.startswith("reports/")]
    assert len(reports) == len(set(reports)) == len(fleet())


class TestReport:
    def test_tables_and_sentences(self, trial: Trial) -> None:
        set_share(trial.world.store, trial.world.keyring, CANARY.fleet, 50)
        trial.world.store.put(report_key(CANARY, "f" * 64), b"{}")
        looked = trial.reports([*fleet(rest=5), replace(fleet()[0], name="quiet", changes={"kill": "off"})]).looked
        rows = watch_report.host_rows([looked])
        assert [(row["channel"], row["role"], row["processes"], row["hits"]) for row in rows] == [
            ("canary", "canary", "5", "25000"),
            ("stable", "rest", "5", "0"),
        ]
        compared = watch_report.comparison_rows([looked])
        assert [row["what"] for row in compared] == ["tokens/s", "rms_norm.float32", "softmax.float32"]
        assert all(row["canary hosts"] == "4" for row in compared), "one has its kernels switched off"
        assert watch_report.flaws(looked) == {"f" * 64: watch_report.flaws(looked)["f" * 64]}
        said = watch_report.sentence(looked)
        assert "tries rms_norm.float32 on 5 % of auto hosts: inconclusive: the report of ffffffffff" in said
        assert records.canonical_json(watch_report.process_facts(looked))

    def test_what_a_person_with_the_offline_key_may_do_next(self, trial: Trial) -> None:
        """The watch cannot: the share is not signed by any key that it has."""
        auto = [replace(host, changes={"follows": "auto"}) for host in fleet(canary=2, rest=18)]
        assert watch_report.next_step(trial.reports(auto).looked) == (
            "2 hosts try it, 3 must before it can succeed: ./mill canary --share 30 (needs the targets key, which the "
            "watch does not have)"
        )
        auto[2:4] = [replace(host, changes={"follows": "auto"}) for host in fleet(canary=4)[2:4]]
        trial.report(auto, 60)
        trial.look(act=False, remember=True)
        trial.report(auto, 1800)
        good = trial.look(act=False)
        assert outcome(good) is Outcome.SUCCEEDED, good.looked.assessment
        assert watch_report.next_step(good.looked).startswith("to try it on more hosts before all have it: ./mill can")
        set_share(trial.world.store, trial.world.keyring, CANARY.fleet, 1000)
        assert watch_report.next_step(trial.look(act=False).looked) == "", "all have it already"

    @pytest.mark.parametrize("bad", [True, False])
    def test_where_more_hosts_would_change_nothing_none_is_proposed(self, trial: Trial, bad: bool) -> None:
        assert not trial.world.repository.orders(CANARY).share_permille
        looked = trial.reports(fleet(canary=2, mismatches=int(bad))).looked
        assert watch_report.next_step(looked) == "", "it has failed" if bad else "nobody follows a cohort"

    def test_hosts_are_shown_where_nothing_is_tried(self, trial: Trial) -> None:
        move(trial.world.store, trial.world.keyring, CANARY)
        trial.report(fleet(canary=1, rest=2), 60)
        looked = trial.look().looked
        assert [(row["channel"], row["role"], row["processes"]) for row in watch_report.host_rows([looked])] == [
            ("canary", "-", "1"),
            ("stable", "-", "2"),
        ]


class TestPolicy:
    def test_numbers_are_changed_by_name(self) -> None:
        changed = canary.policy_of({"min_hosts": 2.0, "soak_s": 60})
        assert changed == WatchPolicy(min_hosts=2, soak_s=60.0)
        assert isinstance(changed.min_hosts, int) and isinstance(changed.soak_s, float)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"soak": 1.0}, "'soak' is not known, expected one of min_hosts, "),
            ({"min_hosts": 0.0}, "min_hosts is 0, expected a whole number from 1"),
            ({"min_hosts": 2.5}, "min_hosts is 2.5, expected a whole number"),
            ({"soak_s": -1.0}, "soak_s is -1, expected a number from 0"),
            ({"soak_s": float("nan")}, "soak_s is nan"),
            ({"max_lost": float("inf")}, "max_lost is inf"),
        ],
    )
    def test_what_it_cannot_be_is_refused(self, changes: dict[str, float], words: str) -> None:
        with pytest.raises(WatchError) as raised:
            canary.policy_of(changes)
        assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_report_from_before_this_version_is_told(trial: Trial) -> None:
    """The fleet is upgraded host by host; those that are not yet say nothing that counts."""
    old = records.encode(fleet()[0].report(PROMOTED_S + 60)) | {"schema_version": 1}
    trial.world.store.put(report_key(CANARY, str(old["host"])), records.canonical_json(old))
    trial.report(fleet()[1:], 60)
    found = trial.look()
    assert any("version 1, expected 2" in one for one in found.looked.assessment.missing)  # type: ignore[union-attr]
