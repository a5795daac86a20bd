"""Our own compiled parts: the runner of compiled candidates, and the judge's hands on the shared buffers.

Built once per source, compiler and target into a cache folder; files appear by rename, so processes may share it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gristmill import records
from gristmill.records import sha256_hex
from harness import compiler_log
from harness.errors import HostFaultError
from harness.runner import Chain

SOURCES = Path(__file__).parent / "native"
ABI = Path(__file__).resolve().parent.parent / "gristmill" / "abi"
COMMON_FLAGS = ("-x", "c", "-std=gnu11", "-O3", "-march=native", f"-I{ABI}")
LIBRARY_FLAGS = (*COMMON_FLAGS, "-shared", "-fPIC", "-Wl,-Bsymbolic", str(SOURCES / "arena.c"))
"""Its functions call each other, whatever else in the process has such a name (`accept` is a system call)."""
RUNNER_FLAGS = (*COMMON_FLAGS, str(SOURCES / "runner.c"), "-Wl,--no-as-needed", "-ldl", "-lgomp", "-lstdc++", "-lm")
"""The runner brings the libraries that candidates are linked to, so that loading one is quick."""

Words = ctypes.c_int64 * 4


class InputTensor(ctypes.Structure):
    """`input_tensor` of `native/arena.c`."""

    _fields_ = (
        ("start", ctypes.c_void_p),
        ("pitch", ctypes.c_int64),
        ("item_bytes", ctypes.c_int64),
        ("shape", Words),
        ("stride", Words),
        ("base_stride", Words),
        ("bases", ctypes.c_void_p),
        ("base_count", ctypes.c_int64),
        ("base_elements", ctypes.c_int64),
    )


class OutputTensor(ctypes.Structure):
    """`output_tensor` of `native/arena.c`."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("pitch", ctypes.c_int64),
        ("room", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("item_bytes", ctypes.c_int64),
    )


class ComparerRule(ctypes.Structure):
    """`rule` of `native/arena.c`, and `comparer.Rule`."""

    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in (
            *("eps", "least", "roundings", "largest", "roundest"),
            *("accumulator", "mean", "line", "mean_rounding", "mean_spread"),
        )
    )


class AnswerTensor(ctypes.Structure):
    """`answer` of `native/arena.c`."""

    _fields_ = (
        ("exact", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("rule", ComparerRule),
    )


@dataclass(frozen=True)
class Native:
    """What was built."""

    runner: Path
    library: Path

    @functools.cached_property
    def arena(self) -> ctypes.CDLL:
        """The functions of `native/arena.c`; they release Python's lock."""
        loaded = ctypes.CDLL(str(self.library))
        address, integer = ctypes.c_void_p, ctypes.c_int64
        loaded.fill.argtypes = (address, address, integer, address)
        loaded.renew.argtypes = (address, address, integer, address)
        loaded.change.argtypes = (address, address, integer, integer, integer, address)
        loaded.poison.argtypes = (address, address, integer)
        loaded.inspect.argtypes = (address, address, integer, address, address)
        loaded.walk.argtypes = (ctypes.POINTER(Chain), integer, address, address)
        loaded.remake.argtypes = (ctypes.POINTER(Chain), integer, address, address, integer, address, integer)
        loaded.same.argtypes = (address, integer, address, integer, integer, address, integer)
        loaded.fill_sets.argtypes = (address, integer, address, address, integer, address)
        loaded.survey.argtypes = (ctypes.POINTER(Chain), address, integer, address, address)
        loaded.remake_rows.argtypes = (
            *(ctypes.POINTER(Chain), integer, address, address, integer),
            *(address, integer, address),
        )
        loaded.cut.argtypes = (address, integer, address, integer, address, *(integer,) * 3, address)
        loaded.accept.argtypes = (address, address, integer, address, address, integer, address)
        for function in (
            loaded.fill,
            loaded.fill_sets,
            loaded.remake_rows,
            loaded.cut,
            loaded.renew,
            loaded.change,
            loaded.poison,
            loaded.inspect,
            loaded.walk,
            loaded.remake,
        ):
            function.restype = None
        return loaded


def build(cache: Path, compiler: str, identity: str) -> Native:
    """Builds what is not in the cache yet. `identity` names the compiler's version and target.

    Raises:
        HostFaultError: our own sources do not compile here, or the cache cannot be written.
    """
    texts = [path.read_text() for path in sorted((*SOURCES.glob("*.[ch]"), *ABI.glob("*.h")))]
    key = sha256_hex(records.canonical_json([texts, identity, LIBRARY_FLAGS, RUNNER_FLAGS]))[:24]
    native = Native(cache / f"runner-{key}", cache / f"arena-{key}.so")
    for target, flags in ((native.runner, RUNNER_FLAGS), (native.library, LIBRARY_FLAGS)):
        if not target.exists():
            _compile(compiler, flags, target)
    return native


def _compile(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix="native-")
        os.close(handle)
    except OSError as error:
        raise HostFaultError(
            f"judge's folder {target.parent}: {error.strerror}; free space or choose another"
        ) from None
    built = subprocess.run([compiler, *flags, "-o", scratch], capture_output=True, text=True, check=False)
    if built.returncode:
        Path(scratch).unlink()
        raise HostFaultError(f"{compiler} cannot build the judge's own code: {_why(built.stderr)}")
    Path(scratch).chmod(0o755)
    Path(scratch).replace(target)


def _why(said: str) -> str:
    """What a compiler said, as one line that tells what to do. One that meets a limit of the host calls it a bug of its
    own.
    """
    return compiler_log.stopped_by(said) or f"{' '.join(said[:300].split())}; try another CXX"
