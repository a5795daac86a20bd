"""A fleet in miniature for benchmarks: a promoter and a host as processes, around one kernel that really runs.

Each process is forked by a server that has imported everything already, so that one which was killed is back in a
fraction of a second. They end with the process that made them, and leave Ctrl-C to it.

Shapes: T tokens, H hidden.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from benchmarks.figures import ROOT
from gristmill.dispatch import Dispatcher
from gristmill.domain import Domain
from gristmill.errors import GristmillError
from gristmill.hook import Hook, Instruments
from gristmill.host import Host
from gristmill.kernel_table import Artifact
from gristmill.pull import Puller
from gristmill.store import open_store
from harness.builder import Builder
from kernels.candidate import Candidate, Language, Origin
from registry.promotion import Decision
from registry.publication import publish
from tests.registry.world import CANARY, World, make_artifact

OPERATOR = "rms_norm"
SOURCE = ROOT / "tests" / "harness" / "sources" / "rms_norm.cpp"
TOKENS, HIDDEN, EPS = 4, 64, 1e-5
IDLE_S = 0.01
"""Between two steps of a host that nobody asks anything."""
ANSWER_S = 60.0
"""A host that has not answered by then hangs."""
PAUSE_S = 0.05
"""Before a promoter repeats what has failed."""

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Address:
    """Where a store is, and what opens it."""

    url: str
    environ: Mapping[str, str]


NOWHERE = Address("s3://nowhere?endpoint=http://127.0.0.1:9", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
"""Where nothing answers: a host that is given this one starts offline."""


@dataclass(frozen=True)
class Promotion:
    """One that was confirmed to its promoter."""

    table: str
    manifest: str
    number: int


@dataclass(frozen=True)
class Answer:
    """What a host says of one call of its operator."""

    generation: int
    served: bool
    """By a kernel of that generation; False: by the engine's own."""
    right: bool
    at_s: float
    """By the clock that all processes of a machine share."""
    problem: str


@dataclass
class Child:
    """A process and the line to it."""

    process: BaseProcess
    line: Connection

    def kill(self) -> None:
        """With SIGKILL."""
        self.process.kill()
        self.process.join()
        self.line.close()


def start(target: Callable[..., None], *arguments: object) -> Child:
    """Runs `target(*arguments, line)` in a process of its own, in which Ctrl-C does nothing."""
    ours, theirs = _forking.Pipe()
    process = _forking.Process(target=_alone, args=(target, *arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return Child(process, ours)


def _alone(target: Callable[..., None], *arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # whoever started us is gone
        target(*arguments)


def build_kernel(folder: Path) -> bytes:
    """The shared object of an `rms_norm` that serves every call here."""
    files = {"main.cpp": SOURCE.read_text()}
    candidate = Candidate(OPERATOR, Language.CPP, files, Domain(OPERATOR, "float32"), Origin("benchmark"))
    build = Builder(folder).build(candidate)
    if build.path is None:
        raise RuntimeError(build.errors)
    return build.path.read_bytes()


def new_artifact(operator: str, kernel: bytes) -> tuple[Artifact, dict[str, bytes]]:
    """A table of the kernel under a digest that it never had: loaders do not read what follows an object's end."""
    return make_artifact(operator, kernel + secrets.token_bytes(16))


def taken(artifact: Artifact, current: Artifact | None) -> Decision:
    """The gate of these benchmarks: open."""
    return Decision(True, "always")


def promote_without_rest(folder: Path, at: Address, operator: str, line: Connection) -> None:
    """Publishes one kernel after another; what is confirmed goes into the books before the next one begins.

    A promotion that fails is repeated until it is confirmed, and the failure noted.
    """
    world = World(folder, open_store(at.url, at.environ))
    kernel = (folder / "kernel.so").read_bytes()
    again = None
    while not line.poll():
        artifact, files = again or new_artifact(operator, kernel)
        try:
            done = publish(world.store, world.keyring, CANARY, [artifact], files, taken)
        except GristmillError as error:
            again = artifact, files
            _append(folder / "failures", str(error))
            time.sleep(PAUSE_S)
        else:
            again = None
            name = artifact.table.name
            _append(folder / "books", json.dumps(vars(Promotion(name, done.manifests[name], done.number))))


def _append(path: Path, text: str) -> None:
    """One write per line, so that a kill leaves no part of one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, text.encode() + b"\n")
    os.close(descriptor)


def books(folder: Path, offset: int = 0) -> tuple[list[Promotion], int]:
    """What was confirmed, from a place in the books on; and the place to go on from."""
    path = folder / "books"
    content = path.read_bytes()[offset:] if path.exists() else b""
    return [Promotion(**json.loads(line)) for line in content.splitlines()], offset + len(content)


class Engine:
    """The smallest engine that can tell what served a call: one site, through the adapter's own hook."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(CANARY.name, CANARY.hardware)
        self._x_TH = torch.rand(TOKENS, HIDDEN) - 0.5
        self._weight_H = torch.rand(HIDDEN) + 0.5
        site = self.dispatcher.site(OPERATOR, torch.float32, {"hidden": HIDDEN}, (EPS,), _own)
        site.add_weight(self._weight_H)
        self._hook = Hook(Instruments(self.dispatcher, None), site, engine=self._fall_back)
        self._served = True

    @torch.no_grad()
    def call(self, problem: str) -> Answer:
        """One call, checked; `problem` is passed on."""
        self._served = True
        (found,) = self._hook.call(self._x_TH, self._weight_H)
        right = torch.allclose(found, _own(self._x_TH, self._weight_H, EPS)[0], rtol=1e-4, atol=1e-5)
        return Answer(self.dispatcher.generation.number, self._served, right, time.monotonic(), problem)

    def _fall_back(self, x_TH: torch.Tensor, weight_H: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._served = False
        return _own(x_TH, weight_H, EPS)


def _own(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.rms_norm(x_TH, (HIDDEN,), weight_H, eps),)


def serve(folder: Path, at: Address, poll_s: float, line: Connection) -> None:
    """Follows the channel, and answers each number that comes down the line once that generation, or a later one,
    serves; or `ANSWER_S` has passed.
    """
    engine = Engine()
    store, root = open_store(at.url, at.environ), (folder / "root.json").read_bytes()
    kind = CANARY.fleet, CANARY.model, CANARY.hardware, CANARY.name
    puller = Puller(store, root, *kind, folder / "cache", lambda: (f"{OPERATOR}.float32",))
    host = Host(puller, engine.dispatcher, lambda event: None, poll_s)
    host.start()
    try:
        while True:
            while not line.poll(IDLE_S):
                host.boundary()
            line.send(_answered(engine, host, int(line.recv())))
    finally:
        host.stop()


def _answered(engine: Engine, host: Host, at_least: int) -> Answer:
    deadline_s = time.monotonic() + ANSWER_S
    while True:
        host.boundary()
        answer = engine.call(host.problem)
        if answer.generation >= at_least or answer.at_s > deadline_s:
            return answer
        time.sleep(IDLE_S)


def ask(line: Connection, at_least: int) -> Answer | None:
    """What a host answers; None if it died."""
    try:
        line.send(at_least)
        answer = line.recv()
    except (EOFError, OSError):
        return None
    assert isinstance(answer, Answer)
    return answer


def open_registry(folder: Path, at: Address) -> World:
    """A registry in a store; its keys, its root and a kernel to promote are in the folder. All is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(folder, open_store(at.url, at.environ))
    (folder / "root.json").write_bytes(world.repository.initialise())
    if not (folder / "kernel.so").exists():
        (folder / "kernel.so").write_bytes(build_kernel(folder / "builds"))
    return world
