"""The filter as the kernel reads it: a small interpreter of its few instructions, over every call that is named."""

from __future__ import annotations

import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import system_calls
from harness.system_calls import REFUSED_ALWAYS, REFUSED_TO_KERNELS, filter_program

ALLOWED, REFUSED, UNKNOWN, KILLED = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
ARCHITECTURE = system_calls.AUDIT_ARCH[platform.machine()]
NAMED = {name: numbers[COLUMN] for name, numbers in (REFUSED_ALWAYS | REFUSED_TO_KERNELS).items()}
CLONE = system_calls.CLONE[COLUMN]
SIGCHLD, THREAD = 17, 0x10000 | 0x3D0F00


def answer(program: bytes, number: int, argument: int = 0, architecture: int = ARCHITECTURE) -> int:
    """What the filter says to a call: `struct seccomp_data` holds number, architecture and arguments."""
    words = {0: number, 4: architecture, 16: argument & 0xFFFFFFFF}
    lines = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, operand = lines[at]
        at += 1
        if code == 0x20:
            accumulator = words[operand]
        elif code == 0x06:
            return operand
        else:
            compare = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            at += if_true if compare[code] else if_false


@pytest.mark.parametrize("kernel", [False, True])
def test_every_named_call_is_refused_to_whom_it_should_be(kernel):
    program = filter_program(kernel)
    for name, number in NAMED.items():
        if number is not None:
            refused = kernel or name in REFUSED_ALWAYS
            assert answer(program, number) == (REFUSED if refused else ALLOWED), name


@given(number=st.integers(0, 1000), kernel=st.booleans(), argument=st.integers(0, 2**32 - 1))
def test_no_other_call_is_touched(number, kernel, argument):
    if number not in (*NAMED.values(), CLONE, system_calls.CLONE3[COLUMN], system_calls.PRCTL[COLUMN]):
        assert answer(filter_program(kernel), number, argument) == ALLOWED


def test_numbers_are_not_repeated():
    """A slip of a digit would refuse one call twice and another not at all."""
    for column in (0, 1):
        numbers = [numbers[column] for numbers in (REFUSED_ALWAYS | REFUSED_TO_KERNELS).values()]
        known = [number for number in numbers if number is not None]
        assert len(known) == len(set(known))


@given(flags=st.integers(0, 2**32 - 1))
def test_clone_makes_threads_for_kernels_and_processes_for_compilers_but_no_namespace(flags):
    apart = bool(flags & system_calls.CLONE_NAMESPACES)
    thread = bool(flags & system_calls.CLONE_THREAD)
    assert (answer(filter_program(True), CLONE, flags) == ALLOWED) == (thread and not apart)
    assert (answer(filter_program(False), CLONE, flags) == ALLOWED) == (not apart)


@given(option=st.integers(0, 100) | st.integers(0, 2**32 - 1), kernel=st.booleans())
def test_nothing_may_outlive_its_watch(option, kernel):
    expected = REFUSED if option == system_calls.PR_SET_PDEATHSIG else ALLOWED
    assert answer(filter_program(kernel), system_calls.PRCTL[COLUMN], option) == expected


def test_threads_of_the_c_library_and_forks_of_a_shell():
    assert answer(filter_program(True), CLONE, THREAD) == ALLOWED
    assert answer(filter_program(False), CLONE, SIGCHLD) == ALLOWED
    assert answer(filter_program(True), CLONE, SIGCHLD) == REFUSED


def test_other_ways_into_the_kernel_are_closed():
    program = filter_program(True)
    assert answer(program, 1, architecture=0x40000003) == KILLED, "32-bit calls have other numbers"
    assert answer(program, system_calls.X32_BIT | 1) == REFUSED
    assert answer(program, system_calls.CLONE3[COLUMN]) == UNKNOWN, "the C library then falls back to clone"


def test_it_fits():
    assert len(filter_program(True)) // 8 < 4096, "the kernel takes so many instructions"
