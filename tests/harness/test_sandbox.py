"""Sandboxed processes: what they see, how they end, and what a dead judge leaves of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harness import sandbox
from harness.errors import HostFaultError
from harness.sandbox import Confinement, End, Filter, Limits

REPOSITORY = Path(__file__).resolve().parents[2]
OPEN = Confinement()
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def shell(tmp_path):
    """Runs a line of shell in a sandbox; returns its end, its output, and the layers."""

    def run(line: str, confinement: Confinement = OPEN, timeout_s: float = 20.0):
        output = tmp_path / "output"
        with output.open("wb") as file:
            process = sandbox.start(
                confinement,
                argv=("/bin/sh", "-c", line),
                environment=ENVIRONMENT,
                stdout=file.fileno(),
                stderr=file.fileno(),
            )
            try:
                process.wait_ready()
                end = process.wait(timeout_s)
            finally:
                process.close()
        return end, output.read_text(), process.isolation

    return run


def test_ends_are_told_apart(shell):
    assert shell("exit 3")[0] == End(exit_code=3)
    assert shell("sleep 60", timeout_s=0.2)[0] is None
    limited = Confinement(limits=Limits(cpu_s=1))
    assert shell("while :; do :; done", limited)[0].signal_number in (signal.SIGXCPU, signal.SIGKILL)
    assert str(End(signal_number=11)) == "was ended by SIGSEGV"


def test_nothing_of_the_host_is_in_sight(shell):
    line = f"ls -d {REPOSITORY} /root /home /etc/passwd /proc/1 /var; touch /usr/x; touch /tmp/x && ls /tmp; id -u"
    _, output, isolation = shell(line)
    if "private root" not in isolation:
        pytest.skip("this host grants no private root")
    assert output.count("No such file") == 6
    assert "Read-only file system" in output
    assert output.split()[-2] == "x", "its /tmp is its own, and empty"
    assert int(output.split()[-1]) != 0 or os.geteuid() != 0


def test_only_what_is_named_is_visible(shell, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "file").write_text("text")
    confinement = Confinement(visible=((str(tmp_path / "given"), "/given"),), cwd="/given")
    _, output, isolation = shell("cat file; rm file; echo more > new", confinement)
    if "private root" not in isolation:
        pytest.skip("this host grants no private root")
    assert output.startswith("text")
    assert [path.name for path in (tmp_path / "given").iterdir()] == ["file"]


def test_scratch_is_limited(shell):
    _, output, isolation = shell(
        "head -c 9000000 /dev/zero > /tmp/a; wc -c < /tmp/a", Confinement(limits=Limits(scratch_bytes=1 << 20))
    )
    if "private root" not in isolation:
        pytest.skip("this host grants no private root")
    assert int(output.split()[-1]) <= 1 << 20


def test_all_that_it_started_ends_with_it(shell):
    marker = f"86399.{os.getpid()}"
    end, _, isolation = shell(f"(setsid sleep {marker} &) ; (sleep {marker} &) ; exit 0")
    if "process namespace" not in isolation:
        pytest.skip("this host grants no process namespace")
    assert end == End(exit_code=0)
    assert not _running(marker)


def test_a_killed_judge_leaves_nothing(tmp_path):
    marker = f"86398.{os.getpid()}"
    script = (
        "import sys, time\nfrom harness import sandbox\n"
        f"p = sandbox.start(sandbox.Confinement(), argv=('/bin/sleep', '{marker}'), environment={ENVIRONMENT})\n"
        "p.wait_ready()\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    judge = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(REPOSITORY)}
    )
    assert judge.stdout is not None and judge.stdout.readline() == "up\n"
    assert _eventually(lambda: _running(marker))
    judge.kill()
    judge.wait()
    judge.stdout.close()
    assert _eventually(lambda: not _running(marker))


@pytest.mark.parametrize("trusted", [False, True])
def test_a_killed_judge_leaves_no_frozen_process(trusted):
    """A stopped process cannot notice anything itself."""
    marker = f"{86396 + trusted}.{os.getpid()}"
    script = (
        "import sys, time\nfrom harness import sandbox\n"
        f"p = sandbox.start(sandbox.Confinement(trusted={trusted}), argv=('/bin/sleep', '{marker}'))\n"
        "p.wait_ready()\np.freeze()\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    judge = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(REPOSITORY)}
    )
    assert judge.stdout is not None and judge.stdout.readline() == "up\n"
    watches = _children(judge.pid)
    assert watches
    judge.kill()
    judge.wait()
    judge.stdout.close()
    assert _eventually(lambda: not _running(marker) and not any(Path(f"/proc/{pid}").exists() for pid in watches))


def test_frozen_means_frozen(tmp_path):
    counter = tmp_path / "counter"
    with counter.open("wb") as file:
        process = sandbox.start(
            Confinement(),
            argv=("/bin/sh", "-c", "while :; do echo; done"),
            environment=ENVIRONMENT,
            stdout=file.fileno(),
        )
        process.wait_ready()
        assert _eventually(lambda: counter.stat().st_size > 0)
        process.freeze()
        time.sleep(0.05)
        size = counter.stat().st_size
        time.sleep(0.1)
        assert counter.stat().st_size == size
        process.thaw()
        assert _eventually(lambda: counter.stat().st_size > size)
        process.close()
        process.close()


def test_a_program_that_is_not_there(shell):
    process = sandbox.start(Confinement(), argv=("/bin/no-such-program",), environment=ENVIRONMENT)
    process.wait_ready()
    end = process.wait(10.0)
    process.close()
    assert end is not None and end.exit_code == 1


def test_a_sandbox_that_cannot_be_built_is_the_host_s_fault(tmp_path):
    process = sandbox.start(Confinement(cwd="/no/such/folder"), argv=("/bin/true",), environment=ENVIRONMENT)
    with pytest.raises(HostFaultError, match="sandbox"):
        process.wait_ready(20.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can only be tried by root")
def test_without_root_there_are_still_walls():
    """The same as an ordinary user, who may or may not be allowed namespaces of their own."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no system Python that another user can start")
    script = (
        "import json, os, sys\nos.setgroups([])\nos.setresgid(*[65534] * 3)\nos.setresuid(*[65534] * 3)\n"
        "from harness import sandbox\n"
        "p = sandbox.start(sandbox.Confinement(), argv=('/bin/sh', '-c', 'id -u; ls -d /root /etc/passwd'),"
        " stdout=1, stderr=2)\n"
        "p.wait_ready()\np.wait(20.0)\np.close()\nprint(json.dumps(p.isolation), flush=True)\n"
    )
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        for package in ("harness", "gristmill"):
            (Path(folder) / package).mkdir()
            for source in (REPOSITORY / package).glob("*.py"):
                shutil.copy(source, Path(folder) / package)
        done = subprocess.run(
            ["/usr/bin/python3", "-B", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=True
        )
    *output, isolation = done.stdout.splitlines()
    layers = json.loads(isolation)
    assert {"resource limits", "no new privileges", "system call filter"} <= set(layers)
    if "private root" in layers:
        assert output == ["0"], "root of its own namespace, with nothing of the host in sight"


@pytest.fixture(scope="module")
def zygote():
    with sandbox.Zygote(environment=ENVIRONMENT) as made:
        yield made


HANDED = r"""
#include <fcntl.h>
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int count, char **arguments) {
    static struct sock_filter code[4096];
    int descriptor = atoi(arguments[count - 1]);
    struct sock_fprog program = {read(descriptor, code, sizeof code) / sizeof *code, code};
    if (prctl(PR_SET_SECCOMP, 2, &program)) return 9;
    dprintf(atoi(arguments[1]), "fork %d", fork());
    for (int fd = 3; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0) dprintf(atoi(arguments[1]), " %s", fd == descriptor ? "filter" : "kept");
    return 7;
}
"""


def test_a_filter_is_handed_over(zygote, tmp_path):
    (tmp_path / "handed.c").write_text(HANDED)
    subprocess.run(["cc", "-o", tmp_path / "runner", tmp_path / "handed.c"], check=True)
    confinement = Confinement(filter=Filter.HANDED_OVER, visible=((str(tmp_path / "runner"), "/runner"),))
    reader, writer = os.pipe()
    process = zygote.start(confinement, argv=("/runner", str(writer)), keep=(writer,))
    os.close(writer)
    process.wait_ready()
    end = process.wait(20.0)
    process.close()
    said = os.read(reader, 100)
    os.close(reader)
    if "system call filter" not in process.isolation:
        pytest.skip("this host grants no system call filter")
    assert end == End(exit_code=7)
    assert sorted(said.split()) == [b"-1", b"filter", b"fork", b"kept"]


def test_filters_that_cannot_work_are_refused(zygote):
    with pytest.raises(ValueError, match="kernel"):
        zygote.start(Confinement(filter=Filter.KERNEL), argv=("/bin/true",))
    with pytest.raises(ValueError, match="handed over"):
        zygote.start(Confinement(filter=Filter.HANDED_OVER), program={})


def test_a_zygote_that_died_is_started_again():
    others = set(_children(os.getpid()))
    with sandbox.Zygote(environment=ENVIRONMENT) as zygote:
        for _ in range(2):
            process = zygote.start(Confinement(), argv=("/bin/true",))
            process.wait_ready()
            assert process.wait(10.0) == End(exit_code=0)
            process.close()
            (victim,) = set(_children(os.getpid())) - others
            os.kill(victim, signal.SIGKILL)
            assert _eventually(lambda victim=victim: _state(victim) == "Z")


def test_a_zygote_that_cannot_serve_says_why():
    with sandbox.Zygote(sandbox.Imports(modules=("no_such_module",))) as zygote:
        process = zygote.start(Confinement(), argv=("/bin/true",))
        with pytest.raises(HostFaultError, match="no_such_module"):
            process.wait_ready(20.0)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _running(marker: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"sleep\0{marker}".encode() in (entry / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _eventually(condition, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
