"""Both sides of a pair are treated alike: what is done to the memory of one side only looks like a gain."""

from __future__ import annotations

from collections import Counter

import pytest

from harness import probes
from harness.arena import OutputArena

TOUCHING = ("poison", "survey")
"""What the judge does to the outputs of a side around each of its batches."""


@pytest.mark.parametrize("method", TOUCHING)
def test_the_outputs_of_a_rival_are_touched_as_often_as_the_candidates(judge, monkeypatch, method):
    touched: Counter[int] = Counter()
    original = getattr(OutputArena, method)

    def counting(arena, *arguments, **named):
        touched[id(arena)] += 1
        return original(arena, *arguments, **named)

    monkeypatch.setattr(OutputArena, method, counting)
    workload = next(w for w in probes.workloads() if w.axes.get("tokens") == 16)
    probe = probes.probe(workload.operator)
    verdict = judge.judge(probe, [workload], edges=False, baseline=probe)
    (timing,) = verdict.timings
    rival, candidate = sorted(touched.values())
    checks = 3  # two batches of the check and the one in disguise, which a rival is spared
    assert timing.pairs <= rival <= candidate <= rival + checks + 1
