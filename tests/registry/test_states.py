from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.entry import Edit, Entry, entry_of, next_index
from registry.errors import StateNameError
from registry.states import Position, find_state, signature_of
from tests.registry.world import CANARY, STABLE, World


def states(channel=CANARY, count: int = 4) -> list[Entry]:  # type: ignore[no-untyped-def]
    entries: list[Entry] = []
    for number in range(2, 2 + count):
        edit = Edit({"rms_norm.float32": f"{number:064x}"}, "promotion")
        entries.append(entry_of(next_index(channel, number, entries[-1] if entries else None, edit)))
    return entries[::-1]


HISTORIES = {"canary": states(), "stable": states(STABLE, 2), "empty": []}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("canary", ("canary", 0)),
        ("canary~", ("canary", 1)),
        ("canary~0", ("canary", 0)),
        ("stable~1", ("stable", 1)),
        ("canary:2", ("canary", 3)),
        ("canary:4~2", ("canary", 3)),
    ],
)
def test_names(name: str, expected: tuple[str, int]) -> None:
    assert find_state(name, HISTORIES) == Position(*expected)


@given(st.sampled_from([(channel, i) for channel, found in HISTORIES.items() for i in range(len(found))]), st.data())
def test_a_prefix_means_its_state_or_says_that_it_means_several(at: tuple[str, int], data: st.DataObject) -> None:
    digest = HISTORIES[at[0]][at[1]].sha256
    prefix = digest[: data.draw(st.integers(4, 64))]
    alike = [entry for found in HISTORIES.values() for entry in found if entry.sha256.startswith(prefix)]
    if len(alike) == 1:
        assert find_state(prefix, HISTORIES) == Position(*at)
    else:
        with pytest.raises(StateNameError, match="more digits"):
            find_state(prefix, HISTORIES)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "expected a channel"),
        ("canary~x", "expected a channel"),
        ("abc", "expected a channel"),
        ("nightly", "expected a channel"),
        ("dead:1", "expected a channel"),
        ("canary~4", "canary has 4 states$"),
        ("canary:99", "canary has no state 99"),
        ("empty", "nothing was published"),
        ("0" * 60, "no state begins like this"),
    ],
)
def test_names_of_nothing(name: str, says: str) -> None:
    with pytest.raises(StateNameError, match=says):
        find_state(name, HISTORIES)


def test_several_states_that_begin_alike() -> None:
    entry = HISTORIES["canary"][0]
    with pytest.raises(StateNameError, match="2 states begin like this"):
        find_state(entry.sha256[:6], {"a": [entry], "b": [entry]})


def test_before_what_was_removed() -> None:
    with pytest.raises(StateNameError, match="canary has 2 states; older ones were removed"):
        find_state("canary~2", {"canary": states()[:2]})


@given(st.text(max_size=12))
def test_any_text_is_a_state_or_a_refusal(text: str) -> None:
    try:
        found = find_state(text, HISTORIES)
    except StateNameError:
        return
    assert found.index < len(HISTORIES[found.channel_name])


class TestSignatures:
    def test_whose_key(self, tmp_path) -> None:  # type: ignore[no-untyped-def]
        world = World(tmp_path)
        world.publish("rms_norm", b"code")
        entry = world.repository.current(CANARY)
        assert entry is not None
        (key,) = world.keyring.public["canary"]
        found = signature_of(world.store, world.keyring, CANARY, entry)
        assert found is not None and (found.key_id, found.trusted) == (key.keyid, True)
        other = World(tmp_path / "other", world.store, own_keys=True)
        unknown = signature_of(world.store, other.keyring, CANARY, entry)
        assert unknown is not None and not unknown.trusted

    def test_nobody(self, tmp_path) -> None:  # type: ignore[no-untyped-def]
        """Tampered with, about another state, garbage, gone."""
        world = World(tmp_path)
        world.publish("rms_norm", b"code 1")
        world.publish("rms_norm", b"code 2")
        new, old = world.repository.history(CANARY)
        path = world.path(f"tuf/{new.index.number}.canary.json")
        good = path.read_bytes()
        tampered = good.replace(b'"version":3', b'"version":4')
        assert tampered != good
        for content in (tampered, world.path(f"tuf/{old.index.number}.canary.json").read_bytes(), b"{", b"[]"):
            path.write_bytes(content)
            assert signature_of(world.store, world.keyring, CANARY, new) is None
        path.unlink()
        assert signature_of(world.store, world.keyring, CANARY, new) is None
        assert signature_of(world.store, world.keyring, CANARY, old) is not None
