"""Landlock alone, in a forked child that nothing else walls in."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness import landlock

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import ctypes, errno, json, os, socket, sys
from harness import landlock
given, scratch, port = sys.argv[1:]
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
landlock.restrict(["/usr", "/lib", "/lib64", "/bin", given, "/no/such/path"], [scratch], ["/dev/null"])
def refused(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""
def make():
    with open(scratch + "/made", "w") as file:
        file.write("text")
    os.mkdir(scratch + "/folder")
    os.rename(scratch + "/made", scratch + "/folder/moved")
def connect():
    with socket.socket() as one:
        one.connect(("127.0.0.1", int(port)))
print(json.dumps({
    "read given": refused(lambda: open(given + "/file").close()),
    "write given": refused(lambda: open(given + "/file", "w").close()),
    "list given": refused(lambda: os.listdir(given)),
    "read elsewhere": refused(lambda: open("/etc/passwd").close()),
    "list elsewhere": refused(lambda: os.listdir("/etc")),
    "write scratch": refused(make),
    "execute scratch": refused(lambda: os.execv(scratch + "/program", ["program"])),
    "null": refused(lambda: open("/dev/null", "w").close()),
    "zero": refused(lambda: open("/dev/zero").close()),
    "connect": refused(connect),
    "execute": refused(lambda: os.spawnv(os.P_WAIT, "/bin/true", ["true"])),
}))
"""


@pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
def test_what_is_named_is_all_there_is(tmp_path):
    given, scratch = tmp_path / "given", tmp_path / "scratch"
    given.mkdir()
    scratch.mkdir()
    (given / "file").write_text("text")
    (scratch / "program").write_bytes(Path("/bin/true").read_bytes())
    (scratch / "program").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(given), str(scratch), port],
            env={"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        )
    denied = errno.errorcode[errno.EACCES]
    assert json.loads(done.stdout) == {
        "read given": "",
        "write given": denied,
        "list given": "",
        "read elsewhere": denied,
        "list elsewhere": denied,
        "write scratch": "" if landlock.abi() >= 2 else errno.errorcode[errno.EXDEV],
        "execute scratch": denied,
        "null": "",
        "zero": denied,
        "connect": denied if landlock.abi() >= 4 else "",
        "execute": "",
    }


WITHOUT_IT = """
import ctypes, errno, os
from harness import landlock

landlock.CREATE_RULESET = 100_000
assert landlock.abi() == 0
before = os.listdir("/proc/self/fd")
try:
    landlock.restrict(["/usr"], [], [])
except OSError as error:
    assert "landlock" in str(error), error
else:
    raise AssertionError("no such call, and no refusal")
assert ctypes.get_errno() in (errno.ENOSYS, errno.EPERM)
assert os.listdir("/proc/self/fd") == before
"""


def test_a_kernel_without_it_refuses():
    """In a process of its own: threads of other tests open and close files here as they like."""
    subprocess.run([sys.executable, "-c", WITHOUT_IT], cwd=REPOSITORY, timeout=60, check=True)
