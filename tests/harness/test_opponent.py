"""Both sides of a pair are treated alike: what is done to the memory of one side only looks like a gain."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from harness import probes, scheduling
from harness.arena import OutputArena
from harness.opponent import RivalCandidate
from harness.stock import Stock
from kernels import catalogue, inputs

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
    *_, rival, candidate = sorted(touched.values())  # before them what is checked, but not timed
    checks = 3  # two batches of the check and the one in disguise, which a rival is spared
    assert timing.pairs <= rival <= candidate <= rival + checks + 1


def test_a_rival_is_warm_before_anything_is_pinned_in_every_judgement(judge, monkeypatch):
    """Each has a process of its own, whose kernel's threads would inherit the place of the one that starts them."""
    told: list[str] = []
    run, pinned = RivalCandidate.run, scheduling.on_the_same_core

    def running(rival, pool, calls):
        told.append("run")
        return run(rival, pool, calls)

    @contextlib.contextmanager
    def pinning(*arguments):
        told.append("pinned")
        with pinned(*arguments) as move:
            yield move

    monkeypatch.setattr(RivalCandidate, "run", running)
    monkeypatch.setattr(scheduling, "on_the_same_core", pinning)
    workload = probes.workloads()[1]
    probe = probes.probe(workload.operator)
    for _ in range(2):
        told.clear()
        assert judge.judge(probe, [workload], edges=False, baseline=probe).timings
        assert told.index("run") < told.index("pinned") < len(told) - 1


def test_no_set_is_packed_as_another_was_or_nearly(judge, cpp, source, monkeypatch):
    """Whoever packs equal weights once, and of others the differences, keeps them in a cache, as serving does not."""
    seen: list[float] = []
    original = Stock.tell_apart

    def looking(stock, numbers, random):
        original(stock, numbers, random)
        weights = stock.inputs.tensors[stock.layout.weights.index(True)]
        seen.append(float((weights[1:] == weights[0]).flatten(1).double().mean(1).max()))

    monkeypatch.setattr(Stock, "tell_apart", looking)
    made = inputs.workload(catalogue.operator("skinny_linear"), "float32", tokens=2, in_features=256, out_features=192)
    packed = cpp("skinny_linear", source("skinny_linear_packed"), needs_setup=True)
    verdict = judge.judge(packed, [made], edges=False)
    assert verdict.timings, verdict.reason
    assert len(seen) == 1 and seen[0] < 0.001
