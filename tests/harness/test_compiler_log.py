"""Trimmed logs: the first errors with their lines, and nothing of the host."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import compiler_log

LOG = """In file included from /usr/include/c++/12/algorithm:61,
                 from main.cpp:3:
/usr/include/c++/12/bits/predefined_ops.h: In instantiation of 'constexpr bool f(I, J) [with I = S*]':
/usr/include/c++/12/bits/stl_algo.h:1922:25:   required from 'void std::__sort(I, I)'
main.cpp:6:42:   required from here
/usr/include/c++/12/bits/predefined_ops.h:45:23: error: no match for 'operator<' (operand types are 'S' and 'S')
   45 |       { return *__it1 < *__it2; }
      |                ~~~~~~~^~~~~~~~
/usr/include/c++/12/bits/regex.h:1169:5: note: candidate: 'template<class T> bool operator<(T, T)'
 1169 |     operator<(const sub_match<T>& a, const sub_match<T>& b)
      |     ^~~~~~~~
main.cpp:7:7: warning: unused variable 'unused' [-Wunused-variable]
    7 |   int unused;
      |       ^~~~~~
main.cpp:8:13: error: 'missing' was not declared in this scope
    8 |   float x = missing + 1;
      |             ^~~~~~~
parts/loop.h:1:9: error: 'absent' was not declared in this scope
    1 | int y = absent;
      |         ^~~~~~
main.cpp:8:13: error: 'missing' was not declared in this scope
main.cpp:9:1: error: a fourth
"""


def test_the_first_three_errors_with_their_lines_and_nothing_else():
    assert compiler_log.errors(LOG).splitlines() == [
        "predefined_ops.h:45:23: error: no match for 'operator<' (operand types are 'S' and 'S')",
        "   45 |       { return *__it1 < *__it2; }",
        "      |                ~~~~~~~^~~~~~~~",
        "main.cpp:6:42:   required from here",
        "main.cpp:8:13: error: 'missing' was not declared in this scope",
        "    8 |   float x = missing + 1;",
        "      |             ^~~~~~~",
        "parts/loop.h:1:9: error: 'absent' was not declared in this scope",
        "    1 | int y = absent;",
        "      |         ^~~~~~",
    ]


def test_an_error_of_the_abi_header_does_not_name_its_folder():
    said = compiler_log.errors(
        "/abi/gristmill_kernel.h:3:2: error: #error x\nmain.cpp:1: fatal error: /abi/y/z.h: no\n"
    )
    assert said.splitlines() == ["gristmill_kernel.h:3:2: error: #error x", "main.cpp:1: fatal error: z.h: no"]


@pytest.mark.parametrize(
    ("log", "first"),
    [
        ("", "the compiler said nothing"),
        ("\n\nthe compiler did not finish within 180 s\n", "the compiler did not finish within 180 s"),
        (LOG, "predefined_ops.h:45:23: error: no match for 'operator<' (operand types are 'S' and 'S')"),
        (
            "/usr/bin/ld: /tmp/cc1.o: in function `gm_run':\nmain.cpp:(.text+0x5): undefined reference to `nope'",
            "undefined",
        ),
    ],
)
def test_the_reason_is_one_line(log, first):
    assert first in compiler_log.first_error(log) and "\n" not in compiler_log.first_error(log)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([*LOG.splitlines(), "", "x" * 2000, "/a/b/c.h:1: error: /d/e"]), max_size=30))
def test_no_log_gives_more_than_three_errors_or_a_host_path(lines):
    said = compiler_log.errors("\n".join(lines))
    assert sum("error:" in line for line in said.splitlines()) <= 3
    assert "/usr/include" not in said and "/a/b" not in said
    assert all(len(line) <= compiler_log.MAX_LINE_CHARACTERS for line in said.splitlines())


@pytest.mark.parametrize(
    "log",
    [
        "main.cpp:3:1: error: 'missing' was not declared in this scope\n",
        "parts/loop.h:12: fatal error: no.h: No such file or directory\n",
        "main.cpp: Assembler messages:\nmain.cpp:7: Error: no such instruction: `frobnicate %eax'\n",
        "{standard input}:20: Error: bad register name `%zzz'\n",
        "/usr/bin/ld: /tmp/cc.o: in function `gm_run':\nmain.cpp:(.text+0x5): undefined reference to `elsewhere'\n",
        "/usr/bin/ld: /tmp/cc.o: relocation R_X86_64_32 against `.text'\ncollect2: error: ld returned 1 exit status\n",
        "/usr/bin/ld: /tmp/cc.o: multiple definition of `twice'\n",
    ],
)
def test_faults_of_the_sources_are_told_apart(log):
    assert compiler_log.blames_source(log)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n", "ended the compiler"),
        (
            "{standard input}: Fatal error: can't write 3 bytes to section .text of /tmp/cc.o: 'File too large'\n",
            "ulimit -f",
        ),
        ("cat: write error: No space left on device\n", "no space is left"),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 4294967296 bytes\n", "too little memory"),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]\ncompilation terminated.\n", ""),
        ("ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status\n", "no space"),
        ("main.cpp:3:1: warning: unused variable\nsh: 1: Cannot fork\n", ""),
        ("", ""),
    ],
)
def test_from_what_ended_for_another_reason(log, why):
    assert not compiler_log.blames_source(log)
    assert why in compiler_log.stopped_by(log) and bool(why) == bool(compiler_log.stopped_by(log))
