"""Compiling candidates and calling them, for the tests of sources."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gristmill.native import NativeKernel
from kernels.candidate import Candidate

ABI = Path(__file__).resolve().parents[2] / "gristmill" / "abi"
FLAGS = ("-O1", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")

Compile = Callable[[Sequence[Candidate], str], list[NativeKernel]]


@pytest.fixture
def compile_candidates(tmp_path: Path) -> Compile:
    """`(candidates, architecture) -> kernels`, several at a time; a compiler's complaint fails the test."""

    def compile_one(candidate: Candidate, architecture: str) -> NativeKernel:
        folder = tmp_path / candidate.digest / architecture
        folder.mkdir(parents=True)
        for name, text in candidate.files.items():
            (folder / name).write_text(text)
        command = [
            "g++",
            f"-march={architecture}",
            *FLAGS,
            *candidate.compile_flags,
            f"-I{ABI}",
            "main.cpp",
            "-o",
            "k.so",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{candidate.origin}: {done.stderr[:3000]}"
        return NativeKernel(folder / "k.so", needs_setup=candidate.needs_setup)

    def compile_all(candidates: Sequence[Candidate], architecture: str) -> list[NativeKernel]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda candidate: compile_one(candidate, architecture), candidates))

    return compile_all
