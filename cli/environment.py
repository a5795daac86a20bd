"""The checkout's virtual environments: made on first use, from hash-locked requirements, and again when they change.

`.venv` runs the commands; `.venv-agents` holds litellm, runs the provider process alone, and is there only where
language models are called; `.venv-vllm` holds that engine, for the demo on it.

Standard library only. Whatever interrupts a set-up, the next one ends in the same environment: the stamp that says
what the environment holds is written last, and an environment in which pip was stopped while it wrote is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli import home
from cli.errors import EnvironmentSetupError
from cli.progress import ProgressLine

SETS = {
    "pipeline": ("pipeline.txt",),
    "dev": ("dev.txt", "oracle.txt", "dask.txt"),
    "agents": ("agents.txt",),
    "local-model": ("local-model.txt",),
    "vllm": ("vllm.txt",),
}
"""Requirement files by name of the set; `dev` holds all of `pipeline`."""
APART = ("agents", "local-model")
"""Sets that need no torch, each with an environment of its own."""
AGENTS_VARIABLE = "MILL_AGENTS_VENV"
VLLM_VARIABLE = "MILL_VLLM_VENV"
MODELS_VARIABLES = ("MILL_MODELS", "MILL_MODELS_FILE")
TORCH = "torch==2.13.0"
TORCH_INDEX_VARIABLE = "MILL_TORCH_INDEX"
NEEDED_BYTES = 4 << 30
"""Free space without which a set-up would only fail later: the CPU build and Triton take 3.5 GB, CUDA builds more."""
APART_NEEDED_BYTES = 1 << 30
"""The same for what stands apart: 0.4 GB and, with its weights, 0.9 GB."""
REDIRECTING_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
"""What would make pip install somewhere else."""
PACKAGE_LINE = re.compile(r"(Collecting|Requirement already satisfied:|Ignoring) ")
FAILURES = {
    "No space left on device": "no space left on the disk",
    "DO NOT MATCH THE HASHES": "a package does not match its locked hash, so it was not installed",
    "NameResolutionError": "the package index cannot be reached",
    "NewConnectionError": "the package index cannot be reached",
    "Temporary failure in name resolution": "the package index cannot be reached",
    "from versions: none": "the package index cannot be reached or lacks a package",
}
"""What pip prints, to what it means; the first that occurs is reported."""


def python_for(requirements: str) -> Path:
    """The interpreter of an environment that holds a set of `SETS`; sets one up where there is none.

    Raises:
        EnvironmentSetupError: in one line, with the place of pip's log.
    """
    prepared = os.environ.get("MILL_VENV")
    if prepared:
        python = Path(prepared).expanduser().absolute() / "bin" / "python"
        if not os.access(python, os.X_OK):
            raise EnvironmentSetupError(f"MILL_VENV: no Python at {python}; name a virtual environment, or unset it")
        return python
    checkout = Environment(home.ROOT, home.home())
    if not checkout.holds(requirements):
        checkout.set_up(requirements)
    return checkout.python


def name_agents_environment(environ: MutableMapping[str, str], wanted: bool) -> None:
    """Sets `MILL_AGENTS_VENV` to an environment with litellm, and sets one up if it is wanted and none is named.

    Raises:
        EnvironmentSetupError: in one line, with the place of pip's log.
    """
    if environ.get(AGENTS_VARIABLE):
        return
    agents = Environment(home.ROOT, home.home(), ".venv-agents")
    if wanted and not agents.holds("agents"):
        agents.set_up("agents")
    if agents.holds("agents"):
        environ[AGENTS_VARIABLE] = str(agents.folder)


def name_vllm_environment(environ: MutableMapping[str, str]) -> None:
    """Sets `MILL_VLLM_VENV` to an environment with vLLM, and sets one up if none is named.

    Raises:
        EnvironmentSetupError: in one line, with the place of pip's log.
    """
    if environ.get(VLLM_VARIABLE):
        return
    engine = Environment(home.ROOT, home.home(), ".venv-vllm")
    if not engine.holds("vllm"):
        engine.set_up("vllm")
    environ[VLLM_VARIABLE] = str(engine.folder)


def models_configured(environ: Mapping[str, str]) -> bool:
    """Whether a search would call language models."""
    return any(environ.get(name, "").strip() for name in MODELS_VARIABLES)


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a checkout."""

    root: Path
    home: Path
    name: str = ".venv"

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.home / "install.log"

    @property
    def _stamp(self) -> Path:
        return self.folder / "holds.json"

    @property
    def _torn(self) -> Path:
        """There while pip writes packages: found at a start, it means that one may be half there."""
        return self.folder / "installing"

    def digest(self, requirements: str) -> str:
        """Identity of a set: its files, torch, and the version of Python it is for."""
        content = hashlib.sha256(f"{sys.version_info[:2]} {'' if requirements in APART else TORCH}".encode())
        for name in SETS[requirements]:
            content.update((self.root / "requirements" / name).read_bytes())
        return content.hexdigest()

    def holds(self, requirements: str) -> bool:
        """Whether a set, or one that includes it, is installed as locked today."""
        try:
            stamp = json.loads(self._stamp.read_text())
        except (OSError, ValueError):
            return False
        installed = stamp.get("requirements")
        return (
            installed in (requirements, "dev")
            and stamp.get("digest") == self.digest(installed)
            and os.access(self.python, os.X_OK)
        )

    def set_up(self, requirements: str) -> None:
        """Brings the environment to a set. One process at a time does; the others wait and find it done."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock() as lock:
                if not self.holds(requirements):
                    self._set_up(requirements, lock)
        except OSError as error:
            raise EnvironmentSetupError(f"cannot set up {self.folder}: {error.strerror} ({error.filename})") from None

    def _set_up(self, requirements: str, lock: int) -> None:
        free = shutil.disk_usage(self.root).free
        needed = APART_NEEDED_BYTES if requirements in APART else NEEDED_BYTES
        if free < needed:
            raise EnvironmentSetupError(
                f"cannot set up {self.folder}: {free >> 20} MiB free, {needed >> 20} MiB needed; free some space"
            )
        print(f"setting up {self.name} for this checkout, once; log: {self.log}", file=sys.stderr, flush=True)
        self.log.write_text("")
        files = [self.root / "requirements" / name for name in SETS[requirements]]
        index = os.environ.get(TORCH_INDEX_VARIABLE)
        with ProgressLine(sys.stderr) as progress:
            if self._torn.exists() or not self._usable():
                progress.show("making the virtual environment")
                self._create()
            self._stamp.unlink(missing_ok=True)
            locked = [argument for file in files for argument in ("-r", str(file))]
            packages = sum(len(re.findall(r"^\w\S*==", file.read_text(), re.MULTILINE)) for file in files)
            self._install(["--require-hashes", "--no-deps", *locked], packages, progress, lock)
            if requirements not in APART:
                self._install([*(["--index-url", index] if index else []), TORCH], 1, progress, lock)
            self._write_stamp(requirements)

    def _usable(self) -> bool:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return os.access(self.python, os.X_OK) and (self.folder / "lib" / version / "site-packages" / "pip").exists()

    def _create(self) -> None:
        command = [sys.executable, "-m", "venv", "--clear", str(self.folder)]
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if result.returncode == 0:
            return
        if "ensurepip" in result.stdout or "No module named venv" in result.stdout:
            what = f"{sys.executable} lacks venv or ensurepip; install them (Debian: apt-get install python3-venv)"
        else:
            what = _last_line(result.stdout) or "python -m venv failed"
        raise EnvironmentSetupError(f"cannot make {self.folder}: {what}")

    def _install(self, arguments: Sequence[str], packages: int, progress: ProgressLine, lock: int) -> None:
        options = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        process = subprocess.Popen(
            [str(self.python), "-m", "pip", "install", *options, *arguments],
            env={name: value for name, value in os.environ.items() if name not in REDIRECTING_VARIABLES},
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),  # should this process be killed, the lock lasts until pip has gone as well
        )
        assert process.stdout is not None
        output: list[str] = []
        try:
            with self.log.open("a") as log:
                for line in process.stdout:
                    log.write(line)
                    output.append(line)
                    self._follow(line, output, packages, progress)
            process.wait()
        finally:
            _end(process)
        if process.returncode:
            raise EnvironmentSetupError(self._explain("".join(output)))
        self._torn.unlink(missing_ok=True)

    def _follow(self, line: str, output: list[str], packages: int, progress: ProgressLine) -> None:
        if line.startswith("Installing collected packages"):
            self._torn.touch()
            progress.show(f"installing {line.count(',') + 1} packages")
        elif line.startswith("Collecting torch"):
            progress.show("fetching torch")
        elif packages > 1 and PACKAGE_LINE.match(line):
            seen = sum(bool(PACKAGE_LINE.match(each)) for each in output)
            progress.show(f"fetching package {seen} of {packages}")

    def _explain(self, output: str) -> str:
        meaning = next((meaning for words, meaning in FAILURES.items() if words in output), "")
        return f"pip failed: {meaning or _last_line(output)}; log: {self.log}. The same command continues from there"

    def _write_stamp(self, requirements: str) -> None:
        draft = self._stamp.with_suffix(".draft")
        draft.write_text(json.dumps({"requirements": requirements, "digest": self.digest(requirements)}))
        draft.replace(self._stamp)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Belongs to the checkout, not to `MILL_HOME`: two homes share one environment."""
        path = self.root / ".mill" / "environment.lock"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("waiting for another mill that sets up an environment", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file.fileno()


def _end(process: subprocess.Popen[str]) -> None:
    """After Ctrl-C pip has had the same signal: let it clean up, then insist."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1]
