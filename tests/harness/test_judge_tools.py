"""What agents ask a judge while it works for others: builds beside the measuring, rough checks, disassembly."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from harness.judge import BUILD_WORKERS
from harness.policy import screening
from kernels.verdict import Status


def test_what_builds_gives_no_verdict_and_is_built_then(judge, cpp, source, rms_norm_workloads) -> None:
    candidate = cpp("rms_norm", source("rms_norm") + "\n// asked for by an agent")
    assert judge.assembly(candidate) == ""
    assert judge.build(candidate) is None
    verdict = judge.judge(candidate, rms_norm_workloads)
    assert verdict.timings and verdict.object_sha256
    if verdict.object_report.architecture:
        assert "gm_run" in judge.assembly(candidate)


def test_refused_sources_come_with_the_reason(judge, cpp, source) -> None:
    broken = judge.build(cpp("rms_norm", source("rms_norm").replace("return 0;", "return nothing;")))
    assert broken.status is Status.BUILD_FAILED and "nothing" in broken.build_errors
    entry = judge.build(cpp("rms_norm", "int f() { return 0; }\n"))
    assert entry.status is Status.REJECTED and "gm_run" in entry.reason
    flag = judge.build(replace(cpp("rms_norm", source("rms_norm")), compile_flags=("-fplugin=x",)))
    assert flag.status is Status.REJECTED and "-fplugin=x" in flag.reason


def test_builds_from_many_threads_beside_a_judgement(judge, cpp, source, rms_norm_workloads) -> None:
    measured = cpp("rms_norm", source("rms_norm") + "\n// measured")
    asked = [cpp("rms_norm", source("rms_norm") + f"\n// thread {number % 3}") for number in range(9)]
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = [threads.submit(judge.build, candidate) for candidate in asked]
        verdict = judge.judge(measured, rms_norm_workloads)
        assert [answer.result() for answer in answers] == [None] * len(asked)
    assert verdict.status in (Status.SLOWER, Status.FASTER), verdict.reason
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]


def test_a_candidate_is_ready_once_the_compiler_is_done(judge, cpp, source) -> None:
    candidate = cpp("rms_norm", source("rms_norm") + "\n// prepared")
    assert not judge.is_built(candidate)
    judge.prepare(candidate)
    deadline_s = time.monotonic() + 60
    while not judge.is_built(candidate) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert judge.is_built(candidate)


def test_what_was_built_before_is_ready_however_much_waits_for_the_compiler(judge, cpp, source) -> None:
    known = cpp("rms_norm", source("rms_norm") + "\n// known")
    assert judge.build(known) is None
    for number in range(6):
        judge.prepare(cpp("rms_norm", source("rms_norm") + f"\n// waits {number}"))
    judge.prepare(known)
    assert judge.is_built(known)


def test_the_judge_does_not_stand_in_line_for_a_build(judge, cpp, source, rms_norm_workloads) -> None:
    judge.prepare(cpp("rms_norm", source("rms_norm") + "\n// starts the workers"))
    release = threading.Event()
    for _ in range(BUILD_WORKERS):
        judge._pool._threads.submit(release.wait, 60)
    try:
        candidate = cpp("rms_norm", source("rms_norm") + "\n// in line")
        judge.prepare(candidate)
        assert not judge.is_built(candidate)
        assert judge.judge(candidate, rms_norm_workloads[:1]).object_sha256
    finally:
        release.set()


def test_another_policy_measures_less_and_keeps_the_same_buffers(judge, cpp, source, rms_norm_workloads) -> None:
    candidate = cpp("rms_norm", source("rms_norm"))
    judge.judge(candidate, rms_norm_workloads)
    kept = list(judge._stocks._kept)
    few = replace(screening(), stop=replace(screening().stop, min_pairs=3, max_pairs=3))
    verdict = judge.judge(candidate, rms_norm_workloads, policy=few)
    assert list(judge._stocks._kept) == kept
    assert [timing.pairs for timing in verdict.timings] == [3] * len(rms_norm_workloads)
    own = judge.judge(candidate, rms_norm_workloads)
    assert [timing.pairs for timing in own.timings] == [judge.policy.stop.min_pairs] * len(rms_norm_workloads)


def test_a_rough_check_still_finds_what_is_wrong(judge, cpp, source, rms_norm_workloads) -> None:
    damaged = source("rms_norm").replace("return 0;", "((float *)o.data)[0] = 7; return 0;")
    verdict = judge.judge(cpp("rms_norm", damaged), rms_norm_workloads[:1], policy=screening())
    assert verdict.status is Status.INCORRECT, verdict.reason
