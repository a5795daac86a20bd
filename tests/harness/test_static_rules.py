"""Static rules name what they see, where, and nothing that is only talked about."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.domain import Domain
from harness.static_rules import inspect_source, refusal
from kernels.candidate import Candidate, Language, Origin

HONEST = '// calls fork() and sleep(1)\n/* system("x")\n*/ int32_t gm_run(const gm_call *call) { return 0; }\n'


def cpp(text, **more):
    return Candidate("rms_norm", Language.CPP, {"main.cpp": text}, Domain("rms_norm", "float32"), Origin("t"), **more)


def python(text):
    return Candidate("softmax", Language.PYTHON, {"main.py": text}, Domain("softmax", "float32"), Origin("t"))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('system("ls");', "starts a program"),
        ("if (fork() == 0) return 1;", "forks"),
        ("std::thread t(f);", "starts a thread"),
        ('void *h = dlopen("x", 1);', "loads a library"),
        ('auto p = "/proc/self/maps";', "reads the process's files"),
        ('FILE *f = fopen("x", "r");', "opens files"),
        ("syscall(39);", "makes raw system calls"),
        ('asm volatile("syscall");', "has inline assembly"),
        ("usleep(5);", "waits"),
        ("getpid();", "asks who it is"),
        ("clock_gettime(CLOCK_MONOTONIC, &t);", "reads a clock"),
        ("static float cache[64];", "keeps state between calls"),
        ("static int calls = 0;", "keeps state between calls"),
        ("thread_local std::vector<float> buffer;", "keeps state between calls"),
        ("signal(11, handler);", "handles signals"),
        ("_exit(0);", "ends the process"),
        ("write(3, p, 4);", "writes to descriptors"),
        ("mprotect(p, 4096, 3);", "changes memory protection"),
        ("__attribute__((constructor)) void f();", "runs at load"),
    ],
)
def test_each_rule_sees_its_thing(line, what):
    sightings = [sighting for sighting in inspect_source(cpp(HONEST + line)) if sighting.what == what]
    assert [str(sighting) for sighting in sightings] == [f"main.cpp:4: {what}"]


def test_honest_sources_are_seen_as_such(source):
    for name in ("rms_norm", "softmax", "skinny_linear", "skinny_linear_packed"):
        assert inspect_source(cpp(source(name))) == []
    helpers = "static inline float f(float x) { return x; }\nstatic const int N = 4;\nstatic constexpr int M = 2;\n"
    assert inspect_source(cpp(helpers + HONEST)) == []


def test_what_is_plainly_no_kernel_is_refused():
    assert refusal(cpp(HONEST)) is None
    assert "gm_run" in refusal(cpp("// gm_run\nint x;"))
    assert "gm_setup" in refusal(cpp(HONEST, needs_setup=True))
    assert refusal(python("def run(x, out):\n    pass\n")) is None
    assert "run" in refusal(python("x = 1\n"))


def test_python_rules():
    seen = {
        sighting.what for sighting in inspect_source(python("import ctypes, time\ndef run(x, out):\n    eval('1')\n"))
    }
    assert seen == {"reaches into memory", "reads a clock", "runs built text"}


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_no_text_breaks_the_rules(text):
    inspect_source(cpp(text))
    inspect_source(python(text))
    refusal(cpp(text))
    refusal(python(text))
