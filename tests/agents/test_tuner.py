"""The tuner has nothing to say until a model leaves constants open; then it tunes the best such programs in turn."""

from __future__ import annotations

from agents.tuner import Tuner
from kernels.candidate import Candidate
from tests.agents.search_world import brief, candidate, failure, verdict


def tunable(number: int, model: str = "mock") -> Candidate:
    rows, step = "constexpr int ROWS = 4;  // tune: 1, 2, 4, 8", "constexpr int STEP = 1;  // tune: 1, 2, 3"
    return candidate(number, model=model, text=f"int gm_run{number}();\n{rows}\n{step}\n")


def test_it_joins_when_a_language_model_leaves_constants_open() -> None:
    tuner = Tuner(1)
    assert tuner.propose(brief(), 3) == []
    for silent in (candidate(1), tunable(2, model="")):
        tuner.learn(silent, verdict(silent, decode=2.0))
    wrong = tunable(3)
    tuner.learn(wrong, failure(wrong))
    assert tuner.propose(brief(), 3) == []
    found = tunable(4)
    tuner.learn(found, verdict(found, decode=2.0))
    proposed = tuner.propose(brief(), 3)
    assert proposed and all(one.origin.parents == (found.digest,) for one in proposed)
    assert all(one.origin.agent == tuner.name and "ROWS" in one.origin.parameters for one in proposed)


def test_several_programs_are_tuned_in_turn_and_each_variant_once() -> None:
    tuner = Tuner(1)
    for number, ratio in ((1, 2.0), (2, 1.5)):
        found = tunable(number)
        tuner.learn(found, verdict(found, decode=ratio))
    seen: list[Candidate] = []
    for _ in range(60):
        for one in tuner.propose(brief(), 1):
            seen.append(one)
            tuner.learn(one, verdict(one, decode=1.0))
    texts = [one.files["main.cpp"] for one in seen]
    assert len(set(texts)) == len(texts) and all(one.digest != tunable(1).digest for one in seen)
    for number in (1, 2):
        assert 8 <= sum(f"gm_run{number}" in text for text in texts) <= 11, "of 12 variants the first was known"
    assert ["gm_run1" in text for text in texts[:4]] in ([True, False, True, False], [False, True, False, True])
