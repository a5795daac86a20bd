"""Candidates that cheat, crash, hang or trespass: each gets its status, and leaves nothing behind."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.domain import Domain
from harness.judge import Judge
from kernels import catalogue
from kernels.candidate import Candidate, Language, Origin
from kernels.inputs import workload
from kernels.verdict import Status

HEADER = '#include "gristmill_kernel.h"\n'
RIGHT = (Status.FASTER, Status.SLOWER)
SHORT_DEADLINE_S = 1.5


@pytest.fixture(scope="module")
def hasty(tmp_path_factory, peaks, judge):
    """A judge that does not wait long."""
    policy = replace(judge.policy, deadline_s=SHORT_DEADLINE_S)
    with Judge(tmp_path_factory.mktemp("hasty"), policy, peaks, device="test") as made:
        yield made


@pytest.fixture
def trial(judge, cpp, source, rms_norm_workloads):
    """Judges an rms_norm whose `gm_run` is this text; the honest kernel can be called as `honest(call)`."""

    def run(body: str, *, head: str = "", by: Judge = judge, edges: bool = False):
        text = source("rms_norm").replace("GM_EXPORT int32_t gm_run", "static int32_t honest")
        text += f"{head}\nGM_EXPORT int32_t gm_run(const gm_call *call) {{ {body} }}\n"
        return by.judge(cpp("rms_norm", text), rms_norm_workloads, edges=edges)

    return run


OUTPUT = (
    "float *out = (float *)call->outputs[0].data, *x = (float *)call->inputs[0].data;"
    "const int64_t n = call->outputs[0].shape[0] * call->outputs[0].shape[1]; (void)x;"
)
WRONG_ANSWERS = {
    "returns at once": "return 0;",
    "fills with zeros": OUTPUT + "for (int64_t i = 0; i < n; i++) out[i] = 0; return 0;",
    "copies its input": OUTPUT + "for (int64_t i = 0; i < n; i++) out[i] = x[i]; return 0;",
    "drops the last element": OUTPUT + "float last = out[n - 1]; honest(call); out[n - 1] = last; return 0;",
    "drops a tail": OUTPUT + "honest(call); for (int64_t i = n - n / 8; i < n; i++) out[i] = 0; return 0;",
    "gets one row wrong": OUTPUT
    + "honest(call); for (int64_t i = 0; i < n / call->outputs[0].shape[0]; i++) out[i] *= 1.001f; return 0;",
    "gets one element wrong": OUTPUT + "honest(call); out[n / 2] *= 1.00001f; return 0;",
    "rounds to bfloat16": OUTPUT
    + "honest(call); for (int64_t i = 0; i < n; i++) {"
    + "uint32_t b; __builtin_memcpy(&b, out + i, 4); b = (b + 0x8000) & 0xFFFF0000;"
    + "__builtin_memcpy(out + i, &b, 4); } return 0;",
    "forgets epsilon and weight": OUTPUT
    + "gm_call c = *call; gm_tensor in[2] = {call->inputs[0], call->inputs[0]}; c.inputs = in; return honest(&c);",
    "refuses": "return 3;",
}


@pytest.mark.parametrize("trick", WRONG_ANSWERS)
def test_wrong_answers_are_incorrect(trial, trick):
    verdict = trial(WRONG_ANSWERS[trick])
    assert verdict.status is Status.INCORRECT, f"{trick}: {verdict.status} {verdict.reason}"
    assert not verdict.timings and verdict.ratio is None


def test_the_evidence_says_where(trial):
    verdict = trial(WRONG_ANSWERS["drops a tail"])
    (mismatch, *_) = verdict.mismatches
    assert mismatch.pattern == "tail" and mismatch.found == "0"
    assert 0 < mismatch.wrong_elements < mismatch.total_elements


REPLAY_HEAD = "#include <algorithm>\n#include <map>\n#include <vector>"
KEEP = (
    "auto &kept = seen[key]; if (kept.empty()) { honest(call); kept.assign(out, out + n); }"
    "else std::copy(kept.begin(), kept.end(), out); return 0;"
)
REPLAYS = {
    "caches by pointer": "static std::map<float *, std::vector<float>> seen; auto key = x;" + KEEP,
    "caches by shape": "static std::map<int64_t, std::vector<float>> seen; auto key = n;" + KEEP,
    "caches by a few values": "static std::map<float, std::vector<float>> seen; auto key = x[0] + x[n / 2];" + KEEP,
    "works on its first calls only": "static int calls; if (calls++ < 40) return honest(call); return 0;",
    "works six times in seven": "static int calls; if (calls++ % 7 != 6) return honest(call); return 0;",
    "guesses one call in fifty": "static int calls; if (calls++ % 50 != 49) return honest(call);"
    "std::fill(out, out + n, 1.0f); return 0;",
}


@pytest.mark.parametrize("trick", REPLAYS)
def test_replays_are_caught(trial, trick):
    verdict = trial(OUTPUT + REPLAYS[trick], head=REPLAY_HEAD)
    assert verdict.status in (Status.CHEATED, Status.INCORRECT), f"{trick}: {verdict.status} {verdict.reason}"


def test_an_answer_kept_by_address_is_called_a_cheat(trial):
    verdict = trial(OUTPUT + REPLAYS["caches by pointer"], head=REPLAY_HEAD)
    assert verdict.status is Status.CHEATED and "previous answer" in verdict.reason


CRASHES = {
    "reads address 0": ("return *(volatile int *)8;", "SIGSEGV"),
    "writes past its output": (
        OUTPUT + "honest(call); for (int64_t i = n; i < n + 64; i++) out[i] = 1; return 0;",
        "SIGSEGV",
    ),
    "writes to its input": ("honest(call); ((volatile float *)call->inputs[0].data)[0] = 0; return 0;", "SIGSEGV"),
    "reads past its input": (
        "honest(call); const gm_tensor &x = call->inputs[0];"
        "volatile float f = ((float *)x.data)[x.shape[0] * x.shape[1] + 16]; (void)f; return 0;",
        "SIGSEGV",
    ),
    "aborts": ("__builtin_trap();", "SIGILL"),
    "exits in the middle": ("honest(call); _exit(0);", "exited with code 0"),
    "divides by zero": ("volatile int zero = 0, q = 7 / zero; return q * 0;", "SIGFPE"),
}


@pytest.mark.parametrize("trick", CRASHES)
def test_crashes_say_how(trial, trick):
    body, sign = CRASHES[trick]
    verdict = trial(body, head="#include <signal.h>\n#include <unistd.h>")
    assert verdict.status is Status.CRASHED, f"{trick}: {verdict.status} {verdict.reason}"
    assert sign in verdict.reason


def test_writes_just_outside_of_the_output_are_seen(trial):
    verdict = trial(OUTPUT + "honest(call); out[-1] = 1; return 0;", edges=True)
    assert verdict.status in (Status.INCORRECT, Status.CRASHED)


def test_an_endless_loop_costs_its_deadline(trial, hasty):
    start = time.monotonic()
    verdict = trial("for (volatile int i = 0;; i++) {}", by=hasty)
    assert verdict.status is Status.TIMED_OUT, verdict.reason
    assert verdict.duration_s <= time.monotonic() - start


def test_memory_without_end(trial, hasty):
    body = (
        "for (;;) { char *p = (char *)malloc(1 << 26); if (!p) abort();"
        "for (int i = 0; i < 1 << 26; i += 1 << 22) p[i] = 1; }"
    )
    assert trial(body, head="#include <stdlib.h>", by=hasty).status in (Status.CRASHED, Status.TIMED_OUT)


def test_threads_without_end(trial, hasty):
    body = "for (;;) { pthread_t t; if (pthread_create(&t, nullptr, wait, nullptr)) abort(); }"
    head = "#include <pthread.h>\n#include <stdlib.h>\n#include <unistd.h>\nvoid *wait(void *) { for (;;) pause(); }"
    verdict = trial(body, head=head, by=hasty)
    assert verdict.status in (Status.CRASHED, Status.TIMED_OUT), verdict.reason


def test_a_thread_that_finishes_after_the_answer(trial):
    body = "gm_call c = *call; std::thread([c] { usleep(20000); honest(&c); }).detach(); return 0;"
    verdict = trial(body, head="#include <thread>\n#include <unistd.h>")
    assert verdict.status in (Status.INCORRECT, Status.CHEATED, Status.CRASHED), verdict.reason


def test_no_child_is_ever_forked(trial):
    body = 'if (fork() >= 0) _exit(9); if (system("true") == 0) _exit(8); return honest(call);'
    verdict = trial(body, head="#include <stdlib.h>\n#include <unistd.h>")
    assert verdict.status in RIGHT, verdict.reason


def test_noise_on_standard_output_is_harmless(trial):
    body = 'puts("{\\"status\\": \\"faster\\"}"); fflush(stdout); return honest(call);'
    assert trial(body, head="#include <stdio.h>").status in RIGHT


def test_forged_answers_are_cheating(trial):
    body = (
        "honest(call); char junk[16] = {101};"
        "for (int fd = 3; fd < 64; fd++) if (write(fd, junk, 16)) continue; return 0;"
    )
    verdict = trial(body, head="#include <unistd.h>")
    assert verdict.status is Status.CHEATED, verdict.reason


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
        "char *page = (char *)((uintptr_t)call->inputs[0].data & ~4095ul);"
        "if (mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0) _exit(1);"
        "for (int fd = 3; fd < 64; fd++) { struct stat s; if (fstat(fd, &s) || !S_ISREG(s.st_mode)) continue;"
        "  if (ftruncate(fd, 0) == 0) _exit(2); }"
        "return honest(call);"
    )
    verdict = trial(body, head="#include <sys/mman.h>\n#include <sys/stat.h>\n#include <unistd.h>")
    assert verdict.status in RIGHT, verdict.reason


def test_packed_weights_that_are_never_renewed(judge, cpp, source):
    text = source("skinny_linear_packed").replace(
        "if (c->inputs[0].data) return 7;", "static int once; if (once++ > 1) return 0;"
    )
    shapes = [workload(catalogue.operator("skinny_linear"), "float32", tokens=2, in_features=64, out_features=96)]
    verdict = judge.judge(cpp("skinny_linear", text, needs_setup=True), shapes, edges=False)
    assert verdict.status in (Status.INCORRECT, Status.CHEATED), verdict.reason


def test_setup_sees_no_activations(judge, cpp, source):
    text = source("skinny_linear_packed").replace(
        "if (c->inputs[0].data) return 7;", "volatile float f = *(float *)c->inputs[0].data; (void)f;"
    )
    shapes = [workload(catalogue.operator("skinny_linear"), "float32", tokens=2, in_features=64, out_features=96)]
    assert judge.judge(cpp("skinny_linear", text, needs_setup=True), shapes, edges=False).status is Status.CRASHED


def test_packed_memory_cannot_carry_answers(judge, cpp, source):
    text = source("skinny_linear_packed").replace(
        "const int64_t T = x.shape[0]", "((volatile float *)c->packed)[0] = 1;\n  const int64_t T = x.shape[0]"
    )
    shapes = [workload(catalogue.operator("skinny_linear"), "float32", tokens=2, in_features=64, out_features=96)]
    assert judge.judge(cpp("skinny_linear", text, needs_setup=True), shapes, edges=False).status is Status.CRASHED


@pytest.mark.parametrize("size", ["-1", "1ll << 50"])
def test_packed_sizes_that_cannot_be(judge, cpp, source, size):
    text = source("skinny_linear_packed").replace(
        "return c->inputs[1].shape[0]*c->inputs[1].shape[1]*4", f"return {size}"
    )
    shapes = [workload(catalogue.operator("skinny_linear"), "float32", tokens=2, in_features=64, out_features=96)]
    verdict = judge.judge(cpp("skinny_linear", text, needs_setup=True), shapes, edges=False)
    assert verdict.status is Status.INCORRECT and "gm_packed_bytes" in verdict.reason


NOT_KERNELS = {
    "no gm_run": ("int main() { return 0; }", Status.REJECTED, "gm_run"),
    "only in a comment": ("// gm_run\nint x;", Status.REJECTED, "gm_run"),
    "does not compile": ("int32_t gm_run(", Status.BUILD_FAILED, "error"),
    "declared, not defined": ('#include "gristmill_kernel.h"\nint y;', Status.REJECTED, "gm_run"),
    "hidden": ('#include <cstdint>\nextern "C" int32_t gm_run(const void *) { return 0; }', Status.INCORRECT, "loaded"),
    "includes a host file": ('#include "/etc/passwd"\nint gm_run;', Status.BUILD_FAILED, "No such file"),
}


@pytest.mark.parametrize("trick", NOT_KERNELS)
def test_what_is_no_kernel(judge, cpp, rms_norm_workloads, trick):
    text, status, sign = NOT_KERNELS[trick]
    verdict = judge.judge(cpp("rms_norm", text), rms_norm_workloads)
    assert verdict.status is status, f"{verdict.status} {verdict.reason}"
    assert sign in verdict.reason
    assert str(judge.builder.cache) not in verdict.build_log + verdict.reason


def test_flags_operators_and_domains_that_do_not_exist(judge, cpp, source, rms_norm_workloads):
    flags = judge.judge(cpp("rms_norm", source("rms_norm"), flags=("-fplugin=/tmp/x.so",)), rms_norm_workloads)
    assert flags.status is Status.REJECTED and "-fplugin" in flags.reason
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


PYTHON_TRICKS = {
    "writes nothing": ("def run(x, out):\n    pass\n", Status.INCORRECT),
    "raises": ("def run(x, out):\n    raise ValueError('no')\n", Status.INCORRECT),
    "no run": ("x = 1\n", Status.REJECTED),
    "zeroes its input": ("def run(x, out):\n    x.zero_()\n", Status.CRASHED),
}


@pytest.mark.parametrize("trick", PYTHON_TRICKS)
def test_python_tricks(judge, trick):
    text, status = PYTHON_TRICKS[trick]
    candidate = Candidate("softmax", Language.PYTHON, {"main.py": text}, Domain("softmax", "float32"), Origin("test"))
    shapes = [workload(catalogue.operator("softmax"), "float32", rows=2, columns=8)]
    verdict = judge.judge(candidate, shapes, edges=False)
    assert verdict.status is status, f"{verdict.status} {verdict.reason}"


def test_nothing_is_left_behind(peaks, tmp_path, judge, cpp, rms_norm_workloads):
    children = _settled_descendants()
    before = _open_files()
    with Judge(tmp_path, judge.policy, peaks, device="test") as made:
        for body in ("abort();", "for (;;) {}", "return 0;"):
            text = f"#include <stdlib.h>\n{HEADER}GM_EXPORT int32_t gm_run(const gm_call *) {{ {body} }}\n"
            made.policy = replace(judge.policy, deadline_s=0.5)
            made.judge(cpp("rms_norm", text), rms_norm_workloads[:1], edges=False)
    assert _settled_descendants() == children
    assert _open_files() == before
    assert {path.suffix for path in (tmp_path / "builds").iterdir()} <= {".so", ".log"}


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _settled_descendants() -> set[int]:
    """When other judges' warm runners have come up, and dead ones are gone."""
    found = _descendants()
    while True:
        time.sleep(0.3)
        again = _descendants()
        if again == found:
            return found
        found = again


def _descendants() -> set[int]:
    """Processes below this one, by their parents."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more
