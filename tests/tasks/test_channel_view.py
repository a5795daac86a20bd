"""What MLflow is to show of the channels: one version per set of tables, whatever path the channels took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gristmill import cohort, records
from gristmill.domain import AxisRange, Domain
from gristmill.kernel_table import Artifact, KernelTable
from gristmill.revocation import NOTHING, Revocations
from registry.entry import Edit, Entry, entry_of, next_index
from tasks.channel_view import Registered, Version, View, view_of
from tasks.mlflow_runs import MAX_TEXT, NOT_A_KEY
from tests.registry.world import CANARY, STABLE, make_artifact

ONE, TWO = (make_artifact("rms_norm", code)[0] for code in (b"code 1", b"code 2"))
THREE = make_artifact("softmax", b"code 3")[0]
ARTIFACTS = {records.digest(one): one for one in (ONE, TWO, THREE)}


def history(*steps: tuple[Sequence[Artifact], int | None], channel: object = CANARY) -> list[Entry]:
    """States, newest first: what each serves, and the number that it restores."""
    states: list[Entry] = []
    for number, (artifacts, restores) in enumerate(steps, start=2):
        tables = {one.table.name: records.digest(one) for one in artifacts}
        edit = Edit(tables, f"step {number}", restores)
        index = next_index(channel, number, states[0] if states else None, edit)  # type: ignore[arg-type]
        states.insert(0, entry_of(replace(index, created_utc=f"2026-12-02T10:00:{number:02}.000000+00:00")))
    return states


def viewed(
    histories: Mapping[str, Sequence[Entry]],
    revoked: Revocations = NOTHING,
    approved: Sequence[str] = (),
    artifacts: Mapping[str, Artifact] = ARTIFACTS,
) -> View:
    return view_of(CANARY, Registered(histories, artifacts, approved, revoked))


def pointed(view: View, alias: str) -> Version:
    return next(one for one in view.versions if one.tables_sha256 == view.aliases[alias])


def test_a_promotion_and_a_release_are_one_version() -> None:
    digest = records.digest(ONE)
    view = viewed(
        {"canary": history(([ONE], None)), "stable": history(([ONE], None), channel=STABLE)}, approved=[digest]
    )
    assert view.name == "gristmill chat llama on x86_64-test"
    (version,) = view.versions
    assert view.aliases == {"canary": version.tables_sha256, "stable": version.tables_sha256}
    wanted = {
        "fleet": "chat",
        "model": "llama",
        "hardware": "x86_64-test",
        "operators": "rms_norm",
        "status": "served",
        "reason": "step 2",
        "ended": "-",
        "approved": "yes",
        "generation/canary": "2",
        "generation/stable": "2",
        "manifest/rms_norm.float32": digest,
        "gain/rms_norm.float32": "2.00x, at least 1.50x",
    }
    assert wanted.items() <= version.tags.items()
    assert "| rms_norm.float32 | tokens 1 to 8 | 2.0x | 1.5x |" in version.description


def test_aliases_follow_a_rollback_and_what_was_undone_says_so() -> None:
    view = viewed({"canary": history(([ONE], None), ([TWO], None), ([ONE], 2))})
    first, second = view.versions
    assert view.aliases == {"canary": first.tables_sha256}
    assert (first.tags["status"], first.tags["generation/canary"]) == ("served", "4")
    assert (second.tags["status"], second.tags["ended"]) == ("rolled back", "step 4")
    assert second.tags["approved"] == "not yet: rms_norm.float32"


def test_what_gave_way_to_something_better_is_superseded_unless_it_serves_elsewhere() -> None:
    canary = history(([ONE], None), ([TWO], None), ([TWO, THREE], None))
    view = viewed({"canary": canary, "stable": history(([ONE], None), channel=STABLE)})
    assert [one.tags["status"] for one in view.versions] == ["served", "superseded", "served"]
    assert pointed(view, "canary").tags["operators"] == "rms_norm softmax"


def test_a_rollback_to_no_kernels_points_nowhere() -> None:
    view = viewed({"canary": history(([ONE], None), ([], 0))})
    assert view.aliases == {} and [one.tags["status"] for one in view.versions] == ["rolled back"]
    assert view.tags["canary"] == "generation 3, 2026-12-02T10:00:03: step 3"


def test_a_revoked_manifest_object_or_candidate_marks_every_set_that_holds_it() -> None:
    (entry,) = TWO.table.entries
    canary = history(([ONE], None), ([TWO], None), ([TWO, THREE], None))
    for digest in (records.digest(TWO), entry.object.sha256, entry.candidate):
        view = viewed({"canary": canary}, Revocations({digest: "wrong under load"}))
        assert [one.tags["status"] for one in view.versions] == ["superseded", "revoked", "revoked"]
        assert view.versions[2].tags["revoked/rms_norm.float32"] == "wrong under load"
        assert "revoked/softmax.float32" not in view.versions[2].tags


def test_a_manifest_that_was_collected_is_named_all_the_same() -> None:
    digest = records.digest(ONE)
    view = viewed({"canary": history(([ONE], None))}, Revocations({digest: "bad"}), artifacts={})
    (version,) = view.versions
    assert version.tags["manifest/rms_norm.float32"] == digest and version.tags["status"] == "revoked"
    assert "gain/rms_norm.float32" not in version.tags


def test_a_table_of_many_ranges_is_cut_to_what_mlflow_takes() -> None:
    (entry,) = ONE.table.entries
    entries = tuple(
        replace(entry, domain=Domain("rms_norm", "float32", (AxisRange("tokens", n, n),)), ratio=f"{n}.5")
        for n in range(2, 500)
    )
    long = replace(ONE, table=KernelTable("rms_norm", "float32", CANARY.hardware, entries))
    view = viewed({"canary": history(([long], None))}, artifacts={records.digest(long): long})
    (version,) = view.versions
    rows = [line for line in version.description.splitlines() if line.startswith("| rms_norm")]
    assert MAX_TEXT - 200 < len(version.description) <= MAX_TEXT
    assert f"and {498 - len(rows)} more" in version.description
    assert version.tags["gain/rms_norm.float32"] == "2.50x to 499.50x, at least 1.50x"


STEPS = st.lists(
    st.tuples(st.sets(st.sampled_from([0, 1, 2])), st.one_of(st.none(), st.just(2))), min_size=1, max_size=8
)


@given(STEPS, STEPS)
def test_every_set_once_and_every_alias_points_to_what_its_channel_serves(
    canary: list[tuple[set[int], int | None]], stable: list[tuple[set[int], int | None]]
) -> None:
    known = (ONE, TWO, THREE)
    histories = {
        channel.name: history(*(([known[n] for n in sorted(served)], back) for served, back in steps), channel=channel)
        for channel, steps in ((CANARY, canary), (STABLE, stable))
    }
    view = viewed(histories)
    sets = {cohort.salt_of(one.index) for states in histories.values() for one in states if one.index.tables}
    assert len(view.versions) == len(sets) and {one.tables_sha256 for one in view.versions} == sets
    for name, states in histories.items():
        tables = states[0].index.tables
        assert (name in view.aliases) == bool(tables)
        if tables:
            version = pointed(view, name)
            assert version.tags["status"] == "served"
            assert {k: v for k, v in version.tags.items() if k.startswith("manifest/")} == {
                f"manifest/{table}": digest for table, digest in tables.items()
            }
    assert {one.tags["status"] for one in view.versions} <= {"served", "superseded", "rolled back"}
    served = set(view.aliases.values())
    assert all((one.tags["status"] == "served") == (one.tables_sha256 in served) for one in view.versions)
    assert all(not NOT_A_KEY.search(key) and value for one in view.versions for key, value in one.tags.items())
