"""What the judge says of honest candidates, beyond that they are right: the corpus in `tests/honest` is for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gristmill.domain import AxisRange, Domain
from harness.errors import BaselineError
from harness.policy import search
from kernels import catalogue
from kernels.candidate import Candidate, Language, Origin
from kernels.inputs import workload
from kernels.verdict import Status

RIGHT = (Status.FASTER, Status.SLOWER)


def shapes(operator, *all_axes):
    definition = catalogue.operator(operator)
    return [workload(definition, "float32", **axes) for axes in all_axes]


def test_rms_norm_is_right_and_timed(judge, cpp, source, rms_norm_workloads):
    verdict = judge.judge(cpp("rms_norm", source("rms_norm")), rms_norm_workloads)
    assert verdict.status in RIGHT, verdict.reason
    assert [timing.workload for timing in verdict.timings] == rms_norm_workloads
    for timing in verdict.timings:
        assert 0 < timing.ratio_low <= timing.ratio <= timing.ratio_high
        assert timing.candidate_ns > 0 and timing.baseline_ns > 0 and timing.pairs == 5
    assert verdict.object_sha256 and verdict.isolation and verdict.ratio and verdict.host["compiler"]


def test_a_kernel_that_wins_by_far_is_faster(judge, cpp, source, rms_norm_workloads, monkeypatch):
    patient = replace(search().stop, max_pairs=400, budget_s=10.0)  # however noisy the host
    monkeypatch.setattr(judge, "policy", replace(judge.policy, stop=patient))
    verdict = judge.judge(cpp("rms_norm", source("rms_norm")), rms_norm_workloads[:1], edges=False)
    assert verdict.status is Status.FASTER, verdict.reason


def test_linear_with_and_without_packed_weights(judge, cpp, source):
    workloads = shapes("skinny_linear", {"tokens": 2, "in_features": 192, "out_features": 320})
    plain = judge.judge(cpp("skinny_linear", source("skinny_linear")), workloads)
    packed = judge.judge(cpp("skinny_linear", source("skinny_linear_packed"), needs_setup=True), workloads)
    assert plain.status in RIGHT, plain.reason
    assert packed.status in RIGHT, packed.reason
    assert packed.setup_ns[workloads[0].label] > 0 and not plain.setup_ns


def test_a_python_candidate(judge):
    main = "import torch\n\ndef run(x, out):\n    torch.softmax(x, -1, out=out)\n"
    domain = Domain("softmax", "float32")
    candidate = Candidate("softmax", Language.PYTHON, {"main.py": main}, domain, Origin("test"))
    verdict = judge.judge(candidate, shapes("softmax", {"rows": 2, "columns": 64}), baseline="torch")
    assert verdict.status in RIGHT, verdict.reason


def test_only_what_the_domain_admits_is_run(judge, cpp, source, rms_norm_workloads):
    candidate = cpp(
        "rms_norm", source("rms_norm").replace("const float *W =", "if (T > 1) return 1;\n  const float *W =")
    )
    narrow = replace(candidate, domain=Domain("rms_norm", "float32", (AxisRange("tokens", 1, 1),)))
    verdict = judge.judge(narrow, rms_norm_workloads, held_out=rms_norm_workloads)
    assert verdict.status in RIGHT, verdict.reason
    assert len(verdict.timings) == 1
    wide = judge.judge(candidate, rms_norm_workloads, edges=False)
    assert wide.status is Status.INCORRECT and "returned 1 inside its own domain" in wide.reason


def test_build_ahead_gives_the_same_verdict(judge, cpp, source, rms_norm_workloads):
    candidate = cpp("rms_norm", source("rms_norm") + "// built ahead\n")
    judge.prepare(candidate)
    assert judge.judge(candidate, rms_norm_workloads[:1], edges=False).status in RIGHT


def test_the_caller_hears_of_an_unknown_baseline(judge, cpp, source, rms_norm_workloads):
    with pytest.raises(BaselineError, match="choose one of eager"):
        judge.judge(cpp("rms_norm", source("rms_norm")), rms_norm_workloads, baseline="cuda")


def test_a_seed_repeats_a_judgement(judge, cpp, source, rms_norm_workloads):
    text = source("rms_norm").replace("X[i]*r*W[i]", "X[i]*r*W[i]*1.0001f")
    first, second = (judge.judge(cpp("rms_norm", text), rms_norm_workloads, seed=17) for _ in range(2))
    third = judge.judge(cpp("rms_norm", text), rms_norm_workloads, seed=18)
    assert first.seed == second.seed == 17
    assert first.mismatches == second.mismatches != third.mismatches
    assert judge.judge(cpp("rms_norm", text), rms_norm_workloads).seed not in (17, 18), "a known seed is not used on"
