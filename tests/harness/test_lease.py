"""The lease: one holder among all processes, freed by death."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import lease
from harness.errors import HostFaultError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def device(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return "test"


def test_a_second_holder_waits(device):
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with lease.hold(device):
            order.append("second")

    thread = threading.Thread(target=second)
    with lease.hold(device):
        thread.start()
        waiting.wait()
        thread.join(timeout=0.2)
        assert thread.is_alive()
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


RIVAL = """
import sys, tempfile
from pathlib import Path
tempfile.tempdir = sys.argv[1]
from harness import lease
count = Path(sys.argv[1], "count")
for _ in range(200):
    with lease.hold("test"):
        Path(sys.argv[1], "held").mkdir()
        count.write_text(str(int(count.read_text()) + 1))
        Path(sys.argv[1], "held").rmdir()
"""


def test_processes_that_take_turns_never_hold_it_together_and_leave_nothing(device, tmp_path):
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", RIVAL, str(tmp_path)]
    rivals = [subprocess.Popen(command, env={"PYTHONPATH": str(REPOSITORY)}) for _ in range(3)]
    assert [rival.wait() for rival in rivals] == [0, 0, 0], "who finds it held cannot make the folder"
    assert (tmp_path / "count").read_text() == "600"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_devices_do_not_wait_for_each_other(device):
    with lease.hold(device), lease.hold("other"):
        assert lease.lease_path(device) != lease.lease_path("other")


def test_a_killed_holder_frees_it(device, tmp_path):
    script = (
        "import tempfile, time\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\nfrom harness import lease\n"
        "with lease.hold('test'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(REPOSITORY)}
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with lease.hold(device):
        pass


def test_an_error_inside_frees_it(device):
    with pytest.raises(RuntimeError), lease.hold(device):
        raise RuntimeError
    with lease.hold(device):
        pass


def test_a_lock_file_that_is_a_link_is_refused(device, tmp_path):
    lease.lease_path(device).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostFaultError, match="lease"), lease.hold(device):
        pass
