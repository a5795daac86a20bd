"""The count of attacks: what did not pass is never counted as refused."""

from __future__ import annotations

from benchmarks.attacks import Tally, figures
from benchmarks.figures import Outcome


def test_every_one_refused() -> None:
    attacks, torn = figures(Tally({"test_keys.py": 3, "test_freeze.py": 2, "test_torn_cache.py": 4}))
    assert (attacks.measured, attacks.unit, attacks.verdict) == (5.0, "of 5", Outcome.MET)
    assert attacks.note == "freeze 2, keys 3"
    assert (torn.measured, torn.unit, torn.verdict) == (4.0, "of 4", Outcome.MET)


def test_one_that_succeeds_is_named() -> None:
    attacks, torn = figures(Tally({"test_keys.py": 3}, {"test_keys.py": ["test_of_the_judge"]}))
    assert (attacks.measured, attacks.unit, attacks.verdict) == (3.0, "of 4", Outcome.MISSED)
    assert "test_of_the_judge" in attacks.note
    assert torn.verdict is Outcome.MISSED
