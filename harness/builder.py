"""From a candidate's sources to a shared object: sandboxed, cached by content, in parallel with measurements."""

from __future__ import annotations

import errno
import functools
import os
import platform
import secrets
import shutil
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.records import sha256_hex
from harness import assembly, compiler_log, sandbox
from harness.errors import FlagError, HostFaultError, NoCompilerError
from kernels.candidate import Candidate
from kernels.verdict import ObjectReport

BASE_FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden"),
    "-fno-gnu-unique",  # static data of templates and inline variables is an object's own, not the process's
    "-Wl,-z,defs",  # what nobody defines is an error of the build
)
ALLOWED_FLAGS = frozenset(
    (
        *("-O2", "-O3", "-ffast-math", "-fno-math-errno", "-funroll-loops", "-fno-trapping-math", "-fassociative-math"),
        *(
            "-fno-signed-zeros",
            "-fno-tree-vectorize",
            "-fstrict-aliasing",
            "-fno-strict-aliasing",
            "-ffp-contract=fast",
        ),
        *("-mprefer-vector-width=128", "-mprefer-vector-width=256", "-mprefer-vector-width=512", "-fno-unroll-loops"),
    )
)
HEADER = Path(__file__).resolve().parent.parent / "gristmill" / "abi" / "gristmill_kernel.h"
LIMITS = sandbox.Limits(
    memory_bytes=4 << 30, cpu_s=20, files=256, processes=64, file_bytes=256 << 20, scratch_bytes=512 << 20
)
BUILD_TIMEOUT_S = 180.0
"""Of wall time; generous, because a busy host must not fail a good candidate. CPU time has a limit of its own."""
MAX_LOG_CHARACTERS = 20_000
FIRST_BYTES = "head -c 8000000"
"""Of a disassembly: about two hundred thousand instructions."""
BACKGROUND_NICE = 10
NAME_ERRORS = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""What a candidate's own file names can cause; everything else is the host's fault."""


@dataclass(frozen=True)
class Build:
    """What became of a candidate's sources. `path` is None when the compiler refused; `errors` says why, briefly."""

    path: Path | None
    sha256: str
    log: str
    """All that the compiler said, capped."""
    cached: bool
    report: ObjectReport | None = None
    """Of the object; None if there is none."""

    @property
    def errors(self) -> str:
        """The compiler's first errors with their source lines; empty if it built."""
        return compiler_log.errors(self.log) if self.path is None else ""


class Builder:
    """Builds into a cache folder. Threads and processes may share the folder: objects appear by rename.

    Raises:
        NoCompilerError: none of `$CXX`, `g++`, `c++` is on the PATH.
    """

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.compiler = find_compiler()
        cache.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def compiler_version(self) -> str:
        """First line of `--version`: part of an object's identity."""
        answer = subprocess.run([self.compiler, "--version"], capture_output=True, text=True, check=False)
        return answer.stdout.partition("\n")[0]

    @functools.cached_property
    def _target(self) -> str:
        """What `-march=native` means here."""
        answer = subprocess.run(
            [self.compiler, "-march=native", "-Q", "--help=target"], capture_output=True, text=True, check=False
        )
        return sha256_hex(answer.stdout.encode())

    @property
    def identity(self) -> str:
        """The compiler's version and what it builds for."""
        return f"{self.compiler_version} {self._target}"

    def key(self, candidate: Candidate) -> str:
        """The content address of a build's inputs: sources, flags, header, compiler, target."""
        header = sha256_hex(HEADER.read_bytes())
        flags = [*BASE_FLAGS, *candidate.compile_flags]
        return records.digest([candidate.files, flags, header, self.compiler_version, self._target])

    def build(self, candidate: Candidate, *, background: bool = False) -> Build:
        """Compiles, or finds what was compiled before. Objects are kept, and failures for which the sources are to
        blame; what ended for any other reason (time, memory, a full disk) is tried again when it is asked for again.

        Raises:
            FlagError: the candidate asks for a flag that is not allowed.
            HostFaultError: the cache cannot be written, or the sandbox does not start.
        """
        found = self.find(candidate)
        return found if found is not None else self._compile(candidate, self.key(candidate), background)

    def find(self, candidate: Candidate) -> Build | None:
        """What was compiled before.

        Raises:
            FlagError: as `build`.
        """
        check_flags(candidate.compile_flags)
        return self._find(self.key(candidate))

    def loops(self, candidate: Candidate) -> str:
        """Disassembly of the innermost loops of what was built before; empty if nothing was, or there are none."""
        path = self.cache / f"{self.key(candidate)}.loops"
        return path.read_text() if path.exists() else ""

    def _find(self, key: str) -> Build | None:
        log_path = self.cache / f"{key}.log"
        if not log_path.exists():
            return None
        log = log_path.read_text()
        path = self.cache / f"{key}.so"
        if path.exists():
            return Build(path, sha256_hex(path.read_bytes()), log, cached=True, report=self._read_report(key))
        return Build(None, "", log, cached=True)

    def _read_report(self, key: str) -> ObjectReport | None:
        """What was found out when the object was built; None if it was built before there were reports."""
        path = self.cache / f"{key}.report"
        try:
            return records.parse(ObjectReport, path.read_bytes(), path.name)
        except (FileNotFoundError, MalformedRecordError):
            return None

    def _compile(self, candidate: Candidate, key: str, background: bool) -> Build:
        try:
            with tempfile.TemporaryDirectory(prefix="build-", dir=self.cache) as scratch:
                return self._compile_in(Path(scratch), candidate, key, background)
        except OSError as error:
            raise HostFaultError(f"build cache {self.cache}: {error.strerror}; free space or choose another") from None

    def _compile_in(self, scratch: Path, candidate: Candidate, key: str, background: bool) -> Build:
        sources = scratch / "source"
        refused = _write_sources(sources, candidate.files)
        if refused:
            return Build(None, "", refused, cached=False)
        _readable(scratch)
        object_path = scratch / "object.so"
        end, log, listing = self._run_compiler(sources, object_path, candidate.compile_flags, background)
        if end is None:
            return Build(None, "", f"the compiler did not finish within {BUILD_TIMEOUT_S:.0f} s", cached=False)
        built = end.exit_code == 0 and object_path.stat().st_size > 0
        if not built and not compiler_log.blames_source(log):
            why = compiler_log.stopped_by(log) or (
                f"it {end}, and may have run out of its {LIMITS.memory_bytes >> 30} GiB or {LIMITS.cpu_s} s"
            )
            return Build(None, "", f"error: the compiler was stopped: {why}\n{log}", cached=False)
        target = self.cache / f"{key}.so"
        digest = ""
        report = assembly.report(listing) if built else None
        if report is not None:
            report_path = scratch / "report"
            report_path.write_bytes(records.canonical_json(report))
            report_path.replace(self.cache / f"{key}.report")
            loops_path = scratch / "loops"
            loops_path.write_text(assembly.loops(listing))
            loops_path.replace(self.cache / f"{key}.loops")
        if built:
            digest = sha256_hex(object_path.read_bytes())
            object_path.chmod(0o755)
            object_path.replace(target)
        log_path = scratch / "log"
        log_path.write_text(log)
        log_path.replace(self.cache / f"{key}.log")
        return Build(target if built else None, digest, log, cached=False, report=report)

    def _run_compiler(
        self, sources: Path, object_path: Path, flags: tuple[str, ...], background: bool
    ) -> tuple[sandbox.End | None, str, str]:
        """How it ended, what the compiler said, and the object's disassembly.

        The compiler writes into its private /tmp; the object leaves through a descriptor, so no folder is shared. The
        disassembly follows the log, after a line that the sources cannot know.
        """
        mark = secrets.token_hex(16)
        confinement = sandbox.Confinement(
            limits=LIMITS,
            visible=((str(sources), "/source"), (str(HEADER.parent), "/abi"), *_compiler_paths(self.compiler)),
            nice=BACKGROUND_NICE if background else 0,
            cwd="/source",
        )
        intel = "-M intel" if platform.machine() == "x86_64" else ""
        disassembly = f"objdump {' '.join(assembly.ARGUMENTS)} {intel} /tmp/object.so 2>/dev/null"
        script = f'"$@" >&2 && cat /tmp/object.so && {{ echo {mark} >&2; {disassembly} | {FIRST_BYTES} >&2; true; }}'
        command = (self.compiler, *BASE_FLAGS, *flags, "-I/abi", "-fdiagnostics-color=never", "-pipe")
        log_path = object_path.with_suffix(".log")
        with object_path.open("wb") as output, log_path.open("wb") as log:
            process = sandbox.start(
                confinement,
                argv=("/bin/sh", "-c", script, "sh", *command, "-o", "/tmp/object.so", "main.cpp"),
                environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": "/tmp"},
                stdout=output.fileno(),
                stderr=log.fileno(),
            )
            try:
                process.wait_ready()
                end = process.wait(BUILD_TIMEOUT_S)
            finally:
                process.close()
        said, _, listing = log_path.read_bytes().partition(f"{mark}\n".encode())
        return end, said[:MAX_LOG_CHARACTERS].decode(errors="replace"), listing.decode(errors="replace")


class BuildPool:
    """Builds ahead on worker threads, at the lowest priority, while another candidate is measured."""

    def __init__(self, builder: Builder, workers: int) -> None:
        self._builder = builder
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="build")

    def submit(self, candidate: Candidate) -> Future[Build]:
        """The build's outcome, or its error, later."""
        return self._threads.submit(self._builder.build, candidate, background=True)

    def close(self) -> None:
        """Drops what has not begun and waits for what has."""
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def find_compiler() -> str:
    """Path of the C++ compiler.

    Raises:
        NoCompilerError: none is on the PATH.
    """
    wanted = os.environ.get("CXX", "")
    if wanted and shutil.which(wanted) is None:
        raise NoCompilerError(f"no C++ compiler: $CXX names {wanted}, which cannot be run; correct or unset it")
    for name in (wanted, "g++", "c++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NoCompilerError(
        "no C++ compiler: looked for $CXX, g++ and c++ on the PATH; install one (Debian: apt-get install g++)"
    )


def check_flags(flags: tuple[str, ...]) -> None:
    """Returns if every flag is allowed.

    Raises:
        FlagError: naming the first that is not.
    """
    for flag in flags:
        if flag not in ALLOWED_FLAGS:
            raise FlagError(f"compile flag {flag!r} is not allowed; choose from {' '.join(sorted(ALLOWED_FLAGS))}")


def _compiler_paths(compiler: str) -> tuple[tuple[str, str], ...]:
    """The compiler's own prefix, where it does not lie in the system's."""
    resolved = Path(compiler).resolve()
    if any(resolved.is_relative_to(path) for path in ("/usr", "/bin")):
        return ()
    prefix = str(resolved.parent.parent)
    return ((prefix, prefix),)


def _write_sources(folder: Path, files: dict[str, str]) -> str:
    """Writes a candidate's files; says why, where its names cannot all be files of one folder."""
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, errors="replace")
        except OSError as error:
            if error.errno not in NAME_ERRORS:
                raise
            return f"error: file name {name[:80]!r} cannot be used: {error.strerror}"
    return ""


def _readable(folder: Path) -> None:
    """Opens the folder to the compiler's user, whatever umask made it."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
