"""A child that is gone when we are: by `stop`, by the block's end, or by our own death."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks import local_server
from tasks.errors import ServerStartError
from tasks.local_server import LOOPBACK, LocalServer, free_port

SERVER = "import http.server, sys; http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()"
ANSWERS = (
    "import http.server\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'ok')\n" + SERVER
)
PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
)
PATIENCE_S = 30


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def gone(pid: int) -> bool:
    """Ended, or a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def start(tmp_path: Path, code: str, *arguments: str, ready_url: str = "") -> LocalServer:
    argv = [sys.executable, "-S", "-c", code, *arguments]
    return LocalServer(
        "Mill server", argv, tmp_path / "logs" / "server.log", env={"PHRASE": "word"}, ready_url=ready_url
    )


def test_ready_once_it_answers_and_gone_after_the_block(tmp_path: Path) -> None:
    port = free_port()
    with start(tmp_path, ANSWERS, str(port), ready_url=f"http://{LOOPBACK}:{port}/") as server:
        server.wait_ready(PATIENCE_S)
        assert server.alive
    assert not server.alive
    with pytest.raises(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        pass
    server.stop()


def test_one_that_ends_is_told_with_its_last_line_and_its_log(tmp_path: Path) -> None:
    code = "import os, sys; print('starting'); sys.exit('no ' + os.environ['PHRASE'] + ' given')"
    server = start(tmp_path, code, ready_url=f"http://{LOOPBACK}:{free_port()}/")
    with pytest.raises(ServerStartError, match=r"Mill server exited with 1: no word given \(log: .*server\.log\)"):
        server.wait_ready(PATIENCE_S)


def test_of_a_traceback_the_line_that_says_what_is_wrong_is_told(tmp_path: Path) -> None:
    code = (
        "import sys, traceback\n"
        "try: raise ConnectionRefusedError(111, 'database is gone')\n"
        "except OSError: traceback.print_exc()\n"
        "print('ERROR:    Application startup failed.', file=sys.stderr); sys.exit('Server stopped!')"
    )
    server = start(tmp_path, code, ready_url=f"http://{LOOPBACK}:{free_port()}/")
    with pytest.raises(ServerStartError, match=r"exited with 1: ConnectionRefusedError: .*database is gone"):
        server.wait_ready(PATIENCE_S)


def test_who_waits_for_ctrl_c_hears_of_a_server_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "LOOK_S", 0.02)
    code = "import sys, time; time.sleep(0.2); sys.exit('the disk is full')"
    with start(tmp_path, "import time; time.sleep(600)") as lasting, start(tmp_path / "other", code) as ending:
        with pytest.raises(ServerStartError, match="Mill server exited with 1: the disk is full"):
            local_server.watch([lasting, ending])
        assert lasting.alive


def test_a_port_that_is_taken_is_refused_before_its_owner_answers(tmp_path: Path) -> None:
    with stranger() as port:
        with pytest.raises(ServerStartError, match=rf"Prefect server: port {port} of 127\.0\.0\.1 cannot be had"):
            local_server.prefect_server(tmp_path, port)
        with pytest.raises(ServerStartError, match="MLflow server: port"):
            local_server.mlflow_server(tmp_path, "sqlite://", str(tmp_path), port)


def test_one_that_says_nothing_is_not_waited_for_forever(tmp_path: Path) -> None:
    with (
        start(tmp_path, "import time; time.sleep(600)", ready_url=f"http://{LOOPBACK}:{free_port()}/") as server,
        pytest.raises(ServerStartError, match="not ready after 0 s: it printed nothing"),
    ):
        server.wait_ready(0.3)
    assert not server.alive


@contextlib.contextmanager
def stranger() -> Iterator[int]:
    """Something on the port that does not speak HTTP."""
    with socket.create_server((LOOPBACK, 0)) as listener:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        peer.recv(100)
                        peer.sendall(b"SSH-2.0-nobody\r\n")

        threading.Thread(target=greet, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_stranger_on_the_port_is_not_a_traceback(tmp_path: Path) -> None:
    with stranger() as port:
        server = start(
            tmp_path,
            "import sys, time; time.sleep(1); sys.exit('address in use')",
            ready_url=f"http://{LOOPBACK}:{port}/",
        )
        with pytest.raises(ServerStartError, match="address in use"):
            server.wait_ready(PATIENCE_S)


@pytest.mark.parametrize("leader", ["time.sleep(600)", "sys.exit(0)"])
def test_stop_ends_the_whole_group_even_if_its_leader_has_ended(tmp_path: Path, leader: str) -> None:
    server = start(tmp_path, PARENT + leader)
    log = tmp_path / "logs" / "server.log"
    assert eventually(lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    assert not gone(child)
    server.stop()
    assert eventually(lambda: gone(child))


def test_one_that_ignores_the_polite_request_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "STOP_GRACE_S", 0.2)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    server = start(tmp_path, code)
    assert eventually(lambda: "deaf" in (tmp_path / "logs" / "server.log").read_text())
    server.stop()
    assert server.wait() == -signal.SIGKILL


def test_the_child_dies_when_we_are_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tasks.local_server import LocalServer\n"
        "argv = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']\n"
        f"server = LocalServer('x', argv, Path({str(tmp_path)!r}) / 'log', env={{}})\n"
        "print(server._process.pid, flush=True); sys.stdin.read()"
    )
    root = Path(local_server.__file__).parents[1]
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert parent.stdout is not None and parent.stdin is not None
    child = int(parent.stdout.readline())
    assert not gone(child)
    parent.kill()
    parent.wait()
    assert eventually(lambda: gone(child))
    parent.stdin.close()
    parent.stdout.close()
