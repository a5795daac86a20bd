"""Servers that a command needs for its own lifetime: Prefect, MLflow, a Prefect worker. Loopback only, gone with us."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from gristmill.child_process import die_with_parent
from tasks.errors import ServerStartError

STOP_GRACE_S = 5.0
LOOPBACK = "127.0.0.1"
LOOK_S = 1.0
"""Between two looks at whether servers are still there."""
RAISED = re.compile(r"(\w+\.)*\w*(Error|Exception)\b.*\S")
"""The line of a traceback that says what is wrong."""


def free_port() -> int:
    """A loopback port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def cause(output: str) -> str:
    """The line of a program's output that tells why it failed: the exception it ended with, or else its last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    raised = [line for line in lines if RAISED.fullmatch(line)]
    return (raised or lines or ["it printed nothing"])[-1]


def watch(servers: Sequence[LocalServer]) -> NoReturn:
    """Returns never: it is left by Ctrl-C, or once one of them has ended.

    Raises:
        ServerStartError: naming that one, and what it said.
    """
    while True:
        for server in servers:
            if not server.alive:
                server.refuse_ended()
        time.sleep(LOOK_S)


class LocalServer:
    """A child process in its own group. It ends with `stop`, with the `with` block, or when this process dies."""

    def __init__(
        self, name: str, argv: Sequence[str], log_path: Path, *, env: Mapping[str, str], ready_url: str = ""
    ) -> None:
        self.name = name
        self._ready_url = ready_url
        self._log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - it takes no lock
            )

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, timeout_s: float) -> None:
        """Returns once `ready_url` answers.

        Raises:
            ServerStartError: if the process ended or the time ran out; the message ends with what its log says of it.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.alive:
            try:
                with urllib.request.urlopen(self._ready_url, timeout=2):
                    return
            except (OSError, http.client.HTTPException):  # nothing there yet, or something that is no web server
                time.sleep(0.1)
        if not self.alive:
            self.refuse_ended()
        self._refuse(f"not ready after {timeout_s:.0f} s")

    def refuse_ended(self) -> NoReturn:
        """
        Raises:
            ServerStartError: how it ended, and why as far as it has said so.
        """
        self._refuse(f"exited with {self.wait()}")

    def wait(self) -> int:
        """Blocks until the process ends by itself."""
        return self._process.wait()

    def stop(self) -> None:
        """Ends the whole process group, politely first. Safe to call twice."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sent)
            except ProcessLookupError:
                break
            try:
                self._process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()

    def _refuse(self, problem: str) -> NoReturn:
        said = cause(self._log_path.read_text(errors="replace"))
        raise ServerStartError(f"{self.name} {problem}: {said} (log: {self._log_path})")


def _check_port(name: str, port: int) -> None:
    """What listens there already would answer in the server's place, and be taken for it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what has just ended is no reason
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ServerStartError(
                f"{name}: port {port} of {LOOPBACK} cannot be had ({error.strerror}); end what listens there, or "
                "choose another port"
            ) from None


def prefect_environment(home: Path, api_url: str) -> dict[str, str]:
    """What the Prefect server and everything that talks to it must share. Set before `prefect` is imported."""
    return {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": api_url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": os.environ.get("PREFECT_LOGGING_LEVEL", "CRITICAL"),
        "DO_NOT_TRACK": "1",
    }


def prefect_server(home: Path, port: int, database: str = "") -> tuple[LocalServer, dict[str, str]]:
    """Starts a Prefect server; returns it and the environment of its clients, which holds no password.

    Args:
        database: URL of its PostgreSQL, as `tasks.deployment.database_url` gives it; SQLite under `home` if empty.

    Raises:
        ServerStartError: the port is taken.
    """
    _check_port("Prefect server", port)
    base = f"http://{LOOPBACK}:{port}"
    env = prefect_environment(home, f"{base}/api")
    own = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database} if database else {}
    argv = [sys.executable, "-m", "prefect", "server", "start", "--host", LOOPBACK, "--port", str(port)]
    server = LocalServer(
        "Prefect server", argv, home / "logs" / "prefect-server.log", env={**env, **own}, ready_url=f"{base}/api/health"
    )
    return server, env


def prefect_worker(home: Path, env: Mapping[str, str], pool: str, limit: int = 1) -> LocalServer:
    """Starts a process worker that runs the deployments of a pool, so many at once."""
    argv = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"]
    argv += ["--limit", str(limit), "--name", f"{pool}-{os.getpid()}"]
    return LocalServer(f"Prefect worker of {pool}", argv, home / "logs" / f"prefect-worker-{pool}.log", env=env)


def mlflow_server(home: Path, store_uri: str, artifacts: str, port: int) -> LocalServer:
    """Starts the MLflow UI over a tracking store. Its job workers stay off: they cost 2.5 GB and we use none.

    Raises:
        ServerStartError: the port is taken.
    """
    _check_port("MLflow server", port)
    argv = [sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    argv += ["--backend-store-uri", store_uri, "--default-artifact-root", artifacts]
    return LocalServer(
        "MLflow server",
        argv,
        home / "logs" / "mlflow-server.log",
        env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "DO_NOT_TRACK": "1"},
        ready_url=f"http://{LOOPBACK}:{port}/health",
    )
