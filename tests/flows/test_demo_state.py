"""An interrupted demo goes on where it was; a damaged or finished one begins anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows import demo_state


def test_a_new_demo_writes_nothing_until_it_is_kept(tmp_path: Path) -> None:
    state, resumed = demo_state.begin(tmp_path / "demo", "o", fresh=False)
    assert not resumed and not state.captured and state.search_id == "" and state.generation == 0
    assert list(tmp_path.iterdir()) == []
    demo_state.keep(tmp_path / "demo", state)
    assert demo_state.begin(tmp_path / "demo", "o", fresh=False) == (state, True)


def test_a_demo_with_other_options_is_another_demo(tmp_path: Path) -> None:
    state, _ = demo_state.begin(tmp_path, "float32", fresh=False)
    demo_state.keep(tmp_path, replace(state, captured=True))
    again, resumed = demo_state.begin(tmp_path, "bfloat16", fresh=False)
    assert not resumed and not again.captured


def test_each_phase_that_was_done_stays_done(tmp_path: Path) -> None:
    state, _ = demo_state.begin(tmp_path, "o", fresh=False)
    for done in ({"captured": True}, {"search_id": "abc"}, {"generation": 3}):
        state = replace(state, **done)
        demo_state.keep(tmp_path, state)
        assert demo_state.begin(tmp_path, "o", fresh=False) == (state, True)


def test_fresh_and_finished_begin_anew(tmp_path: Path) -> None:
    state, _ = demo_state.begin(tmp_path, "o", fresh=False)
    demo_state.keep(tmp_path, replace(state, captured=True, search_id="abc"))
    again, resumed = demo_state.begin(tmp_path, "o", fresh=True)
    assert not resumed and not again.captured and again.search_id == ""
    demo_state.end(tmp_path)
    demo_state.end(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not demo_state.begin(tmp_path, "o", fresh=False)[1]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"seed":"x"}', b'{"options":"o","started_utc":"now","seed":1,"more":2}', b"\xff"]
)
def test_a_damaged_state_is_no_obstacle(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "state.json").write_bytes(damage)
    state, resumed = demo_state.begin(tmp_path, "o", fresh=False)
    assert not resumed
    demo_state.keep(tmp_path, state)
    assert demo_state.begin(tmp_path, "o", fresh=False) == (state, True)
