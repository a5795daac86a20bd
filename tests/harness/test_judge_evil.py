"""What the judge says of candidates that cheat, crash or trespass, and what its sandbox keeps from them.

That each gets its verdict is tested by the evil corpus (`tests/evil`); here are the reasons, patterns and logs.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.census import descendants
from gristmill.domain import Domain
from harness.judge import Judge
from kernels.verdict import Status
from tests.corpus import judged, read

HEADER = '#include "gristmill_kernel.h"\n'
RIGHT = (Status.FASTER, Status.SLOWER)
EVIL = Path(__file__).parent.parent / "evil"


@pytest.fixture
def trial(judge, cpp, source, rms_norm_workloads):
    """Judges an rms_norm whose `gm_run` is this text; the honest kernel can be called as `honest(call)`."""

    def run(body: str, *, head: str = ""):
        text = source("rms_norm").replace("GM_EXPORT int32_t gm_run", "static int32_t honest")
        text += f"{head}\nGM_EXPORT int32_t gm_run(const gm_call *call) {{ {body} }}\n"
        return judge.judge(cpp("rms_norm", text), rms_norm_workloads, edges=False)

    return run


OUTPUT = (
    "float *out = (float *)call->outputs[0].data, *x = (float *)call->inputs[0].data;"
    "const int64_t n = call->outputs[0].shape[0] * call->outputs[0].shape[1]; (void)x;"
)


def test_the_evidence_says_where(trial):
    verdict = trial(OUTPUT + "honest(call); for (int64_t i = n - n / 8; i < n; i++) out[i] = 0; return 0;")
    (mismatch, *_) = verdict.mismatches
    assert mismatch.pattern == "tail" and mismatch.found == "0"
    assert 0 < mismatch.wrong_elements < mismatch.total_elements


REASONS = {
    "semantics/alignment_assumed.cpp": "slid by one element",
    "semantics/alignment_by_sixteen.cpp": "slid by 16 bytes",
    "semantics/alignment_of_another.cpp": "out_TH slid by one element",
    "semantics/epsilon_hard_coded.cpp": "eps is ignored; with the usual value it was right",
    "tampering/locale_changed.cpp": "left the locale changed",
    "tampering/openmp_threads_changed.cpp": "num_threads clause",
    "timing/workers_spin.cpp": "an engine needs its cores",
    "replay/by_pointer.cpp": "previous answer",
    "tampering/input_written.cpp": "SIGSEGV",
    "tampering/aborts.cpp": "SIGILL",
    "tampering/divides_by_zero.cpp": "SIGFPE",
    "tampering/exits_with_success.cpp": "exited with code 0",
    "tampering/loops_for_ever.cpp": "no answer within",
    "tampering/setup_takes_all_memory.cpp": "gm_packed_bytes",
    "tampering/setup_takes_less_than_nothing.cpp": "gm_packed_bytes",
    "not_a_kernel/refuses.cpp": "gm_run returned 3",
    "not_a_kernel/wrong_entry_point.cpp": "gm_run",
    "not_a_kernel/entry_is_hidden.cpp": "loaded",
    "not_a_kernel/does_not_compile.cpp": "error",
    "not_a_kernel/host_file_included.cpp": "No such file",
    "not_a_kernel/flag_not_allowed.cpp": "-fplugin",
    "not_a_kernel/domain_elsewhere.cpp": "none of the 2 workloads",
    "not_a_kernel/raises.py": "NotImplementedError",
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_says_what_happened(judge, name):
    program = read(EVIL / name)
    verdict = judged(program, judge)
    assert verdict.status in program.statuses, f"{verdict.status} {verdict.reason}"
    assert REASONS[name] in verdict.reason
    assert not verdict.timings and verdict.ratio is None
    assert str(judge.builder.cache) not in verdict.build_log + verdict.reason


def test_no_child_is_ever_forked(trial):
    body = 'if (fork() >= 0) _exit(9); if (system("true") == 0) _exit(8); return honest(call);'
    verdict = trial(body, head="#include <stdlib.h>\n#include <unistd.h>")
    assert verdict.status in RIGHT, verdict.reason


def test_noise_on_standard_output_is_harmless(trial):
    body = 'puts("{\\"status\\": \\"faster\\"}"); fflush(stdout); return honest(call);'
    assert trial(body, head="#include <stdio.h>").status in RIGHT


def test_the_host_is_out_of_sight(trial, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("seed")
    tmp_path.chmod(0o755)
    paths = [
        str(secret),
        "/etc/passwd",
        "/proc/self/maps",
        "/proc/1/environ",
        "/work",
        "/root",
        "/home",
        str(Path(__file__)),
    ]
    checks = "".join(f'if (access("{path}", F_OK) == 0) _exit(7);' for path in paths)
    verdict = trial(checks + "return honest(call);", head="#include <unistd.h>")
    if "private root" not in verdict.isolation:
        pytest.skip("this host grants no private root")
    assert verdict.status in RIGHT, verdict.reason


def test_no_network_and_no_way_into_other_processes(trial):
    body = (
        "if (socket(AF_INET, SOCK_STREAM, 0) >= 0) _exit(1); if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0) _exit(2);"
        "if (ptrace(PTRACE_TRACEME, 0, 0, 0) == 0) _exit(3); if (unshare(CLONE_NEWUSER) == 0) _exit(4);"
        "if (getuid() == 0) _exit(5); if (kill(-1, 0) == 0 && getpid() != 1) _exit(6); return honest(call);"
    )
    verdict = trial(
        body,
        head="".join(f"#include <{h}.h>\n" for h in ("sched", "signal", "sys/ptrace", "sys/socket", "unistd")),
    )
    if "system call filter" not in verdict.isolation:
        pytest.skip("this host grants no system call filter")
    assert verdict.status in RIGHT, verdict.reason


def test_inputs_cannot_be_made_writable(trial):
    body = (
        "static int calls; if (calls++ > 3) return honest(call);"  # activations of timed calls are made in the runner
        "char *page = (char *)((uintptr_t)call->inputs[0].data & ~4095ul);"
        "if (mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0) _exit(1);"
        "for (int fd = 3; fd < 64; fd++) { struct stat s; if (fstat(fd, &s) || !S_ISREG(s.st_mode)) continue;"
        "  if (ftruncate(fd, 0) == 0) _exit(2); }"
        "return honest(call);"
    )
    verdict = trial(body, head="#include <sys/mman.h>\n#include <sys/stat.h>\n#include <unistd.h>")
    assert verdict.status in RIGHT, verdict.reason


def test_operators_and_dtypes_that_do_not_exist(judge, cpp, source, rms_norm_workloads):
    unknown = judge.judge(cpp("fast_norm", source("rms_norm")), rms_norm_workloads)
    assert unknown.status is Status.REJECTED and "fast_norm" in unknown.reason
    other = judge.judge(
        replace(cpp("rms_norm", source("rms_norm")), domain=Domain("rms_norm", "bfloat16")), rms_norm_workloads
    )
    assert other.status is Status.REJECTED and "none of the 2 workloads" in other.reason


def test_static_rules_name_what_they_saw_and_do_not_convict(trial):
    verdict = trial("getpid(); return honest(call);", head="#include <unistd.h>")
    assert verdict.status in RIGHT
    assert "asks who it is" in verdict.build_log


def test_nothing_is_left_behind(peaks, tmp_path, judge, cpp, rms_norm_workloads):
    children = _settled_descendants()
    before = _open_files()
    with Judge(tmp_path, judge.policy, peaks, device="test") as made:
        for body in ("abort();", "for (;;) {}", "return 0;"):
            text = f"#include <stdlib.h>\n{HEADER}GM_EXPORT int32_t gm_run(const gm_call *) {{ {body} }}\n"
            made.policy = replace(judge.policy, deadline_s=0.5)
            made.judge(cpp("rms_norm", text), rms_norm_workloads[:1], edges=False)
    assert _settled_descendants() == children
    assert _open_files() <= before
    assert not any(path.is_dir() for path in (tmp_path / "builds").iterdir())


def _open_files() -> int:
    gc.collect()  # shared memory of judges that ended goes with the tensors over it
    return len(list(Path("/proc/self/fd").iterdir()))


def _settled_descendants() -> set[int]:
    """When other judges' warm runners have come up, and dead ones are gone."""
    found = descendants()
    while True:
        time.sleep(0.3)
        again = descendants()
        if again == found:
            return found
        found = again
