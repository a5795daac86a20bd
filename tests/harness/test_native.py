"""A compiler that meets a limit of this host is a host fault in plain words, on one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import native
from harness.builder import find_compiler
from harness.errors import HostFaultError

ROOT = Path(__file__).resolve().parents[2]
LIMITED = """
import resource, sys
from pathlib import Path
from harness import native
from harness.builder import find_compiler
from harness.errors import HostFaultError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    native.build(Path(sys.argv[1]), find_compiler(), "a compiler")
except HostFaultError as error:
    print(error)
"""


def test_a_limit_on_the_size_of_files_is_named_and_not_called_a_bug(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    (line,) = done.stdout.splitlines()
    assert "ulimit -f" in line and "bug" not in line


def test_anything_else_is_told_as_the_compiler_says_it_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(HostFaultError, match="try another CXX") as fault:
        native._compile(find_compiler(), ("-x", "c", str(tmp_path / "absent.c")), tmp_path / "target")
    assert "absent.c" in str(fault.value) and "\n" not in str(fault.value) and "\\n" not in str(fault.value)
    assert list(tmp_path.iterdir()) == []
