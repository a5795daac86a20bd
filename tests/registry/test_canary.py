"""The watch: what makes a canary succeed and fail, what is missing, and what a host that lies can do about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.status_report import Received, TableCounts, Work
from registry.canary import Assessment, Outcome, WatchPolicy, look
from registry.witness import Watch, observe
from tests.registry.canary_world import (
    OTHER,
    POLICY,
    PROMOTED_S,
    SOAKED_S,
    TABLE,
    TRIED,
    FakeHost,
    fleet,
    looked,
    refusing,
    utc,
)

RANK = {Outcome.FAILED: 0, Outcome.INCONCLUSIVE: 1, Outcome.SUCCEEDED: 2}
garbage = st.sampled_from([(-1, "negative"), (1 << 63, "larger")])


def outcome(*arguments: object, **keywords: object) -> Outcome:
    return looked(*arguments, **keywords)[1].outcome  # type: ignore[arg-type]


def failed(assessment: Assessment, *words: str) -> None:
    assert assessment.outcome is Outcome.FAILED, assessment
    assert all(word in assessment.reason for word in words), assessment.reason


def missing(assessment: Assessment, *words: str) -> None:
    assert assessment.outcome is Outcome.INCONCLUSIVE, assessment
    assert all(any(word in one for one in assessment.missing) for word in words), assessment.missing


class TestSuccess:
    def test_a_good_canary_succeeds_with_what_it_rests_on(self) -> None:
        _, assessment = looked(fleet())
        assert assessment.outcome is Outcome.SUCCEEDED
        assert "4 hosts, 20000 calls served, 20 shadow-checked, no faults; tokens/s 1.098x (" in assessment.reason
        by_what = {one.what: one for one in assessment.comparisons}
        assert set(by_what) == {"tokens/s", TABLE, OTHER}
        for one in by_what.values():
            assert (one.canary_hosts, one.rest_hosts) == (4, 6)
            assert 1.07 < one.ratio_low < one.ratio < one.ratio_high < 1.13

    def test_as_fast_as_before_is_enough(self) -> None:
        assert outcome(fleet(speed=1.0)) is Outcome.SUCCEEDED

    def test_a_second_look_at_the_same_changes_nothing(self) -> None:
        watch, assessment = looked(fleet())
        assert look(watch, [host.received(SOAKED_S) for host in fleet()], SOAKED_S) == (watch, assessment)

    def test_what_is_remembered_survives_its_file(self) -> None:
        watch, _ = looked(fleet(mismatches=1))
        assert records.parse(Watch, records.canonical_json(watch)) == watch

    def test_rest_is_compared_by_what_it_did_meanwhile(self) -> None:
        """Not by what it did before the promotion, at night, say."""
        slow_before = [replace(host, speed=0.2) if not host.canary else host for host in fleet(speed=1.0)]
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 60) for host in slow_before], PROMOTED_S + 60)
        late = SOAKED_S + 7200
        counted = {host.name: host.report(PROMOTED_S + 60).work for host in slow_before if not host.canary}
        now = []
        for host in fleet(speed=1.0):
            report = host.report(late)
            if not host.canary:
                since = report.work - host.report(PROMOTED_S + 60).work
                report = replace(report, work=counted[host.name] + since)
            now.append(Received(report.name, late, report))
        _, assessment = look(watch, now, late)
        tokens = assessment.comparisons[0]
        assert tokens.ratio == pytest.approx(1.0, abs=0.02), "not 5"


class TestFailure:
    @pytest.mark.parametrize(
        ("faults", "words"),
        [
            ({"mismatches": 1}, ("4 mismatches", TABLE, "at most 0")),
            ({"failures": 3}, ("12 failures", TABLE)),
            ({"speed": 0.9}, ("tokens/s 0.89", "at least 0.98x")),
        ],
    )
    def test_faults_and_slowness(self, faults: dict[str, object], words: tuple[str, ...]) -> None:
        failed(looked(fleet(**faults))[1], *words)

    def test_a_fault_of_one_host_is_enough_and_at_once(self) -> None:
        hosts = fleet()
        hosts[2] = replace(hosts[2], mismatches=1)
        failed(looked(hosts, now_s=PROMOTED_S + 90)[1], "1 mismatches")
        assert outcome(hosts, policy=replace(POLICY, max_mismatches=1)) is Outcome.SUCCEEDED

    def test_slow_operators_fail_although_tokens_do_not_show_it(self) -> None:
        hosts = fleet()
        for position in range(4):
            report = hosts[position].report(SOAKED_S)
            slow = report.work.of(OTHER) + TableCounts(timed_ns=report.work.of(OTHER).timed_ns)
            hosts[position] = replace(
                hosts[position], changes={"work": replace(report.work, tables={**report.work.tables, OTHER: slow})}
            )
        failed(looked(hosts)[1], OTHER, "at least 0.95x")

    @pytest.mark.parametrize("serves", [6, 7])
    def test_refusals(self, serves: int) -> None:
        """Of the whole generation, so that the one before stays, or of one entry, so that the others are served."""
        hosts = fleet()
        refusal = refusing(hosts[0], "smoke test of out: 8 elements differ")
        hosts[0] = replace(refusal, changes={**refusal.changes, "generation": serves})
        failed(looked(hosts, now_s=PROMOTED_S + 90)[1], "1 hosts refused it", "8 elements differ")

    def test_refusals_of_another_generation_are_of_no_interest(self) -> None:
        hosts = fleet()
        other = replace(refusing(hosts[0]).changes["refusals"][0], generation=5)  # type: ignore[index]
        hosts[0] = replace(hosts[0], changes={"refusals": (other,)})
        assert outcome(hosts) is Outcome.SUCCEEDED

    def test_a_host_that_falls_silent_while_the_rest_goes_on(self) -> None:
        hosts = fleet(canary=5)
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 60) for host in hosts], PROMOTED_S + 60)
        _, assessment = look(watch, [host.received(SOAKED_S) for host in hosts[1:]], SOAKED_S)
        failed(assessment, "fell silent", hosts[0].report(0).host[:10])
        _, assessment = look(
            watch, [host.received(SOAKED_S) for host in hosts[1:]], SOAKED_S, replace(POLICY, max_lost=1)
        )
        assert assessment.outcome is Outcome.SUCCEEDED

    def test_a_host_that_dies_in_the_swap_has_never_reported_it(self) -> None:
        """Its last report is from before the promotion."""
        dead = replace(FakeHost("dead", True), changes={"channel": "stable", "generation": 3})
        last_words = dead.received(PROMOTED_S - 10)
        last_words = replace(last_words, report=replace(last_words.report, swapped_utc=utc(PROMOTED_S - 99)))  # type: ignore[arg-type, type-var]
        failed(looked(fleet(), extra=[last_words])[1], "fell silent")
        long_gone = replace(last_words, written_s=PROMOTED_S - 100)
        assert outcome(fleet(), extra=[long_gone]) is Outcome.SUCCEEDED

    def test_everybody_silent_is_not_the_canarys_doing_until_the_deadline(self) -> None:
        hosts = fleet()
        watch, _ = look(Watch(TRIED), [host.received(SOAKED_S) for host in hosts], SOAKED_S)
        again = SOAKED_S + POLICY.silent_s + 60
        missing(look(watch, [], again)[1], "0 of 3 canary hosts", "0 of 3 rest hosts")
        failed(look(watch, [], SOAKED_S + POLICY.deadline_s + 1)[1], "no host has reported")

    def test_hosts_that_ended_in_good_order_prove_no_outage(self) -> None:
        hosts = fleet()
        ended = [host if host.canary else replace(host, changes={"closing": True}) for host in hosts]
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 60) for host in ended], PROMOTED_S + 60)
        failed(look(watch, [host.received(SOAKED_S) for host in hosts[1:4]], SOAKED_S)[1], "fell silent")

    def test_a_last_word_is_no_silence(self) -> None:
        hosts = fleet(canary=5)
        goodbye = replace(hosts[0], changes={"closing": True})
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 60) for host in hosts], PROMOTED_S + 60)
        watch, _ = look(watch, [goodbye.received(PROMOTED_S + 300)], PROMOTED_S + 300)
        _, assessment = look(watch, [host.received(SOAKED_S) for host in hosts[1:]], SOAKED_S)
        assert assessment.outcome is Outcome.SUCCEEDED and "4 hosts" in assessment.reason

    @pytest.mark.parametrize("reports", [[], [FakeHost("rest", False)], [replace(FakeHost("old", True), generation=6)]])
    def test_no_reports_fail_after_the_deadline(self, reports: list[FakeHost]) -> None:
        before, after = PROMOTED_S + POLICY.deadline_s - 60, PROMOTED_S + POLICY.deadline_s + 60
        for now_s, expected in ((before, Outcome.INCONCLUSIVE), (after, Outcome.FAILED)):
            received = [host.received(now_s) for host in reports]
            assert look(Watch(TRIED), received, now_s)[1].outcome is expected

    def test_crash_loops(self) -> None:
        hosts = fleet()
        watch = Watch(TRIED)
        for life in range(5):
            now_s = PROMOTED_S + 300 * (life + 1)
            reborn = replace(hosts[0], changes={"process": f"life {life}"})
            watch, assessment = look(watch, [host.received(now_s) for host in (reborn, *hosts[1:])], now_s)
            expected = Outcome.FAILED if life > POLICY.max_restarts else Outcome.INCONCLUSIVE
            assert assessment.outcome is expected, life
        failed(assessment, "restarted more than 2 times")

    def test_what_an_earlier_life_did_is_not_forgotten(self) -> None:
        hosts = fleet(mismatches=2)
        policy = replace(POLICY, max_mismatches=9)
        watch, assessment = look(
            Watch(TRIED), [host.received(PROMOTED_S + 60) for host in hosts], PROMOTED_S + 60, policy
        )
        assert assessment.outcome is Outcome.INCONCLUSIVE
        reborn = [replace(host, changes={"process": "p2"}) for host in hosts]
        failed(
            look(watch, [host.received(PROMOTED_S + 120) for host in reborn], PROMOTED_S + 120, policy)[1], "16 mism"
        )

    def test_failed_stays_failed(self) -> None:
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 60) for host in fleet(mismatches=1)], PROMOTED_S + 60)
        healed = [host.received(SOAKED_S) for host in fleet()]
        healed = [replace(one, report=replace(one.report, process="p2")) for one in healed]  # type: ignore[arg-type, type-var]
        failed(look(replace(watch, witnesses={}), healed, SOAKED_S)[1], "4 mismatches")


class TestMissing:
    @pytest.mark.parametrize(
        ("hosts", "words"),
        [
            (fleet(canary=2), ("2 of 3 canary hosts report", "tokens/s is known of 2 canary hosts")),
            (fleet(rest=2), ("2 of 3 rest hosts report",)),
            (fleet(rest=0), ("0 of 3 rest hosts report",)),
            (fleet(hits=99), (f"{TABLE} has served 100 calls on 0 of 3 hosts",)),
            (fleet(shadow_checks=0), (f"{TABLE} was shadow-checked 0 times",)),
            (fleet(changes={"kill": "baseline-only"}), ("0 of 3 canary hosts",)),
            ([], ("0 of 3 canary hosts", "no host has measured")),
        ],
    )
    def test_what_is_missing_is_named(self, hosts: list[FakeHost], words: tuple[str, ...]) -> None:
        missing(looked(hosts)[1], *words)

    def test_nothing_succeeds_before_it_has_soaked(self) -> None:
        missing(looked(fleet(), now_s=PROMOTED_S + 600)[1], "it has run for 10 min of 30 min")

    def test_hosts_too_far_apart_to_tell(self) -> None:
        hosts = [replace(host, speed=0.7 + 0.2 * position) for position, host in enumerate(fleet(canary=4)[:4])]
        missing(looked([*hosts, *fleet(canary=0)])[1], "not known to be at least 0.98x")

    def test_every_changed_table_must_have_been_used(self) -> None:
        missing(looked(fleet(), canary=replace(TRIED, changed=(TABLE, "silu_and_mul.float32")))[1], "silu_and_mul")

    def test_hosts_without_a_sampler_are_judged_by_tokens(self) -> None:
        def without_times(host: FakeHost, now_s: float) -> Received:
            work = host.report(now_s).work
            counts = {name: replace(c, calls=0, timed_calls=0, timed_ns=0) for name, c in work.tables.items()}
            return replace(host, changes={"work": replace(work, tables=counts)}).received(now_s)

        watch = Watch(TRIED)
        for now_s in (PROMOTED_S + 60, SOAKED_S):
            watch, assessment = look(watch, [without_times(host, now_s) for host in fleet()], now_s)
        assert assessment.outcome is Outcome.SUCCEEDED
        assert [one.what for one in assessment.comparisons] == ["tokens/s"]

    def test_hosts_that_report_neither_tokens_nor_times_prove_nothing(self) -> None:
        def silent(host: FakeHost) -> FakeHost:
            counts = {TABLE: TableCounts(hits=5000, shadow_checks=5)} if host.canary else {}
            return replace(host, changes={"work": Work(counts)})

        missing(looked(map(silent, fleet()))[1], "no host has measured")

    def test_the_cohort_counts_before_it_has_swapped(self) -> None:
        hosts = [replace(host, changes={"follows": "auto", "channel": "stable", "generation": 3}) for host in fleet()]
        everybody = replace(TRIED, share_permille=1000)
        missing(looked(hosts, canary=everybody)[1], "0 of 3 canary hosts", "0 of 3 rest hosts")


class TestReportsThatCannotBeTrue:
    """They are listed, count as missing, and change no outcome for the better."""

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"created_utc": utc(SOAKED_S + 400)}, "its clock is +400 s off"),
            ({"created_utc": utc(SOAKED_S - 400)}, "its clock is -400 s off"),
            ({"created_utc": "tomorrow"}, "its times are none"),
            ({"created_utc": "2026-12-02T12:30:00"}, "its times are none"),
            ({"swapped_utc": utc(SOAKED_S + 60)}, "before the swap"),
            ({"generation": -7}, "negative"),
            ({"work": Work({}, -1, 0)}, "negative"),
            ({"work": Work({TABLE: TableCounts(timed_ns=-1)})}, "negative"),
            ({"work": Work({TABLE: TableCounts(hits=10**400)})}, "larger than any can be"),
            ({"work": Work({TABLE: TableCounts(hits=1)}, 1, 1)}, "has fallen"),
        ],
    )
    @pytest.mark.parametrize("of_canary", [True, False])
    def test_it_is_listed_and_missing(self, changes: dict[str, object], reason: str, of_canary: bool) -> None:
        hosts = fleet(canary=3, rest=3)
        position = 0 if of_canary else 3
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 60) for host in hosts], PROMOTED_S + 60)
        lied = replace(hosts[position], changes=changes).report(SOAKED_S)
        received = [host.received(SOAKED_S) for host in hosts]
        received[position] = Received(lied.name, SOAKED_S, lied)
        watch, assessment = look(watch, received, SOAKED_S)
        assert reason in watch.flaws[lied.name].reason
        if of_canary:
            assert assessment.outcome is Outcome.FAILED, "it has not told the truth since long ago"
            assert lied.name[:10] in assessment.reason
        else:
            missing(assessment, "2 of 3 rest hosts")

    def test_unreadable_ones_hold_the_canary_back(self) -> None:
        """Nobody knows what they would have said."""
        bad = Received("f" * 64, SOAKED_S, None, "status report: not JSON")
        missing(looked(fleet(), extra=[bad])[1], "the report of ffffffffff does not count: status report: not JSON")
        assert outcome(fleet(), extra=[replace(bad, written_s=PROMOTED_S)]) is Outcome.SUCCEEDED, "its writer is gone"

    def test_an_older_report_than_one_seen(self) -> None:
        hosts = fleet()
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 200) for host in hosts], PROMOTED_S + 200)
        replayed = replace(hosts[0].received(PROMOTED_S + 100), written_s=PROMOTED_S + 250)
        watch, _ = look(watch, [replayed], PROMOTED_S + 250)
        assert "older than one that was seen" in watch.flaws[replayed.name].reason


class TestOneHostThatLies:
    """What it can do: make a canary fail. What it can't: make one succeed."""

    lies = st.builds(
        lambda tokens, ns, hits, checks, timed, timed_ns: Work(
            {
                name: TableCounts(hits=hits, shadow_checks=checks, timed_calls=timed, timed_ns=timed_ns)
                for name in (TABLE, OTHER)
            },
            tokens,
            ns,
        ),
        *[st.integers(0, 1 << 50)] * 6,
    )

    @given(lies, st.sampled_from([3, 4, 7]), st.booleans())
    def test_cannot_make_a_slow_canary_succeed(self, lie: Work, hosts_each: int, in_canary: bool) -> None:
        hosts = fleet(canary=hosts_each, rest=hosts_each, speed=0.85)
        position = 0 if in_canary else hosts_each
        hosts[position] = replace(hosts[position], changes={"work": lie})
        assert outcome(hosts) is not Outcome.SUCCEEDED

    @given(lies)
    def test_cannot_hide_what_others_report(self, lie: Work) -> None:
        hosts = fleet()
        hosts[1] = replace(hosts[1], failures=1)
        hosts[0] = replace(hosts[0], changes={"work": lie})
        assert outcome(hosts) is Outcome.FAILED

    @given(lies)
    def test_cannot_prove_use_for_hosts_that_did_not(self, lie: Work) -> None:
        hosts = fleet(canary=3, hits=0)
        hosts[0] = replace(hosts[0], changes={"work": lie})
        assert outcome(hosts) is not Outcome.SUCCEEDED

    @given(lies)
    def test_cannot_fail_a_good_one_by_speed_alone(self, lie: Work) -> None:
        hosts = fleet()
        hosts[0] = replace(hosts[0], changes={"work": lie})
        assert outcome(hosts) is not Outcome.FAILED

    def test_can_fail_it_with_one_mismatch(self) -> None:
        hosts = fleet()
        hosts[0] = replace(hosts[0], mismatches=1)
        assert outcome(hosts) is Outcome.FAILED


class TestWitness:
    steps = st.lists(
        st.tuples(st.sampled_from(["work", "restart", "swap back and forth"]), st.integers(0, 50)), max_size=12
    )

    @given(steps, st.sampled_from([1, 2]))
    def test_adds_up_all_lives_under_one_generation(self, steps: list[tuple[str, int]], looks: int) -> None:
        """Whatever a host goes through, as long as its last report of each life was seen."""
        watch, process, life, served, total = Watch(TRIED), "p", 0, 0, 0
        for position, (what, calls) in enumerate([("work", 0), *steps]):
            if what != "work":
                life, served = life + 1, 0
            served, total = served + calls, total + calls
            process = f"p{life}" if what == "restart" else process
            swapped = utc(PROMOTED_S + 20 + life)
            changes = {"process": process, "swapped_utc": swapped, "work": Work({TABLE: TableCounts(hits=served)})}
            host = FakeHost("one", True, changes=changes)
            for _ in range(looks):
                watch = observe(watch, [host.received(PROMOTED_S + 60 + position)])
        (witness,) = watch.witnesses.values()
        assert watch.flaws == {} and witness.work.of(TABLE).hits == total
        assert not witness.watched.has_negative

    def test_a_restart_is_one_and_a_swap_back_is_none(self) -> None:
        watch = Watch(TRIED)
        for position, process in enumerate(["a", "a", "b", "b"]):
            host = FakeHost("one", True, changes={"process": process, "swapped_utc": utc(PROMOTED_S + 20 + position)})
            watch = observe(watch, [host.received(PROMOTED_S + 60 + position)])
        assert [witness.restarts for witness in watch.witnesses.values()] == [1]


class TestOrder:
    """Worse reports never give a better outcome."""

    fleets = st.builds(
        fleet,
        canary=st.integers(0, 5),
        rest=st.integers(0, 5),
        speed=st.sampled_from([0.5, 0.95, 0.97, 1.0, 1.2]),
        mismatches=st.integers(0, 2),
        failures=st.integers(0, 2),
        shadow_checks=st.integers(0, 2),
        hits=st.sampled_from([0, 99, 100, 10**6]),
    )
    policies = st.builds(
        WatchPolicy,
        min_hosts=st.integers(1, 4),
        max_mismatches=st.integers(0, 6),
        max_failures=st.integers(0, 6),
        max_lost=st.integers(0, 2),
    )

    @given(fleets, policies, st.integers(0, 4), st.integers(1, 5), st.sampled_from(["mismatches", "failures"]))
    def test_more_faults(self, hosts: list[FakeHost], policy: WatchPolicy, at: int, more: int, what: str) -> None:
        before = outcome(hosts, policy=policy)
        if at < len(hosts) and hosts[at].canary:
            hosts[at] = replace(hosts[at], **{what: getattr(hosts[at], what) + more})  # type: ignore[arg-type]
        assert RANK[outcome(hosts, policy=policy)] <= RANK[before]

    @given(fleets, policies, st.integers(0, 9), st.floats(0.1, 1.0))
    def test_slower_canary_hosts(self, hosts: list[FakeHost], policy: WatchPolicy, at: int, factor: float) -> None:
        before = outcome(hosts, policy=policy)
        if at < len(hosts) and hosts[at].canary:
            hosts[at] = replace(hosts[at], speed=hosts[at].speed * factor)
        assert RANK[outcome(hosts, policy=policy)] <= RANK[before]

    @given(fleets, policies, st.integers(0, 9), garbage)
    def test_damage_never_helps(
        self, hosts: list[FakeHost], policy: WatchPolicy, at: int, damage: tuple[int, str]
    ) -> None:
        before = outcome(hosts, policy=policy)
        if at < len(hosts):
            hosts[at] = replace(hosts[at], changes={"work": Work({TABLE: TableCounts(hits=damage[0])})})
        after = outcome(hosts, policy=policy)
        assert after is not Outcome.SUCCEEDED or before is Outcome.SUCCEEDED

    @given(fleets, policies, st.integers(0, 9))
    def test_a_missing_report_never_helps(self, hosts: list[FakeHost], policy: WatchPolicy, at: int) -> None:
        before = outcome(hosts, policy=policy)
        received = [host.received(SOAKED_S) for position, host in enumerate(hosts) if position != at]
        watch, _ = look(Watch(TRIED), [host.received(PROMOTED_S + 60) for host in hosts], PROMOTED_S + 60, policy)
        after = look(watch, received, SOAKED_S, policy)[1].outcome
        assert after is not Outcome.SUCCEEDED or before is Outcome.SUCCEEDED or policy.max_lost

    @given(fleets, policies, st.randoms())
    def test_the_order_of_reports_says_nothing(self, hosts: list[FakeHost], policy: WatchPolicy, draw: object) -> None:
        shuffled = list(hosts)
        draw.shuffle(shuffled)  # type: ignore[attr-defined]
        one, other = (looked(each, policy=policy)[1] for each in (hosts, shuffled))
        assert one.outcome is other.outcome and one.comparisons == other.comparisons
