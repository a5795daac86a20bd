"""Sandboxed processes: what they see, how they end, and what a dead judge leaves of them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
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
    sought = f"{shlex.quote(str(REPOSITORY))} /root /home /etc/passwd /proc/1 /var"
    line = f"ls -d {sought}; touch /usr/x; touch /tmp/x && ls /tmp; id -u"
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


SPINS = "import threading, time; threading.Thread(target=lambda: all(iter(lambda: 1, 0))).start(); time.sleep(600)"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: the judge runs where the program does")
def test_a_thread_that_spins_is_frozen_though_the_first_one_waits_for_its_core():
    """As OpenMP's threads do after a call: for milliseconds the other side of a pair would have one core less."""
    process = sandbox.start(Confinement(trusted=True), argv=(sys.executable, "-c", SPINS), environment=ENVIRONMENT)
    try:
        process.wait_ready()
        tasks = Path(f"/proc/{process.process_id}/task")
        assert _eventually(lambda: len(list(tasks.iterdir())) == 2)
        (spinning,) = (task for task in tasks.iterdir() if int(task.name) != process.process_id)
        for task in tasks.iterdir():
            os.sched_setaffinity(int(task.name), {max(os.sched_getaffinity(0))})
        process.hasten()
        if os.sched_getscheduler(int(spinning.name)) != os.SCHED_RR:
            pytest.skip("this host grants no real-time priority, so the first thread need not wait")
        ran_ns, slept_ns = 0, 0
        for _ in range(10):
            before_ns = _ran_ns(spinning)
            assert _eventually(lambda known=before_ns: _ran_ns(spinning) > known), "it spins"
            process.freeze()
            before_ns, start_ns = _ran_ns(spinning), time.monotonic_ns()
            time.sleep(0.03)
            ran_ns, slept_ns = ran_ns + _ran_ns(spinning) - before_ns, slept_ns + time.monotonic_ns() - start_ns
            process.thaw()
        assert ran_ns < slept_ns / 5
    finally:
        process.close()


def _ran_ns(task: Path) -> int:
    return int((task / "schedstat").read_text().split()[0])


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


def test_a_zygote_ends_with_all_that_was_not_closed():
    marker = f"86395.{os.getpid()}"
    with sandbox.Zygote(environment=ENVIRONMENT) as zygote:
        process = zygote.start(Confinement(), argv=("/bin/sleep", marker))
        process.wait_ready()
        folders = _folders(zygote.process_id)
    assert not _running(marker) and not any(Path(folder).exists() for folder in folders)
    assert process.wait(1.0) == End(signal_number=signal.SIGKILL)
    process.close()


def test_descriptors_may_have_high_numbers(zygote):
    """Higher than `select` can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this host allows few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    reader, writer = os.pipe()
    others = [os.dup(reader) for _ in range(1100)]
    process = zygote.start(Confinement(), argv=("/bin/echo", "text"), stdout=writer, keep=(others[-1],))
    process.wait_ready()
    end = process.wait(10.0)
    process.close()
    assert zygote.settle()
    said = os.read(reader, 100)
    for descriptor in (*others, reader, writer):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (end, said) == (End(exit_code=0), b"text\n")


def test_a_zygote_that_cannot_serve_says_why():
    with sandbox.Zygote(sandbox.Imports(modules=("no_such_module",))) as zygote:
        process = zygote.start(Confinement(), argv=("/bin/true",))
        with pytest.raises(HostFaultError, match="no_such_module"):
            process.wait_ready(20.0)


TIGHT = Limits(resident_bytes=96 << 20, processes=48, scratch_bytes=4 << 20, files=32)
REFUSED = End(exit_code=5)
ENDS: dict[str, set[End | None]] = {
    "honest": {End(exit_code=0)},
    "crash": {End(signal_number=signal.SIGSEGV)},
    "abort": {End(signal_number=signal.SIGSEGV), End(signal_number=signal.SIGABRT)},
    "hang": {None},
    "forks": {None},
    "threads": {REFUSED},
    "memory": {End(signal_number=signal.SIGKILL), REFUSED},
    "disk": {REFUSED},
    "many_files": {REFUSED},
    "every_descriptor": {None},
    "daemons": {End(exit_code=0)},
    "stops": {None, REFUSED},
    "ignores": {None},
    "signals": {End(exit_code=5), *(End(signal_number=number) for number in range(1, 65))},
    "reaches": {REFUSED},
}


@pytest.fixture(scope="module")
def misbehave(tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("misbehave") / "misbehave"
    source = Path(__file__).parent / "sources" / "misbehave.c"
    subprocess.run(["cc", "-O1", "-pthread", "-o", built, source], check=True)
    return built


@pytest.mark.parametrize("kind", [Filter.HANDED_OVER, Filter.PROGRAMS])
@pytest.mark.parametrize("deed", ENDS)
def test_every_deed_ends_as_it_should_and_leaves_nothing(zygote, misbehave, deed, kind):
    """A kernel that was handed its filter; and a program that may fork, as compilers may."""
    if deed == "reaches" and kind is Filter.PROGRAMS:
        pytest.skip("compilers may do some of it, inside their walls")
    descriptors = _descriptors(os.getpid())
    address_space = 32 << 30  # the bomb must meet the control group, where there is one
    limits = dataclasses.replace(TIGHT, memory_bytes=address_space if _has_memory_group(zygote) else 96 << 20)
    confinement = Confinement(limits=limits, visible=((str(misbehave), "/misbehave"),), filter=kind)
    process = zygote.start(confinement, argv=("/misbehave", deed))
    process.wait_ready()
    end = process.wait(0.15 if ENDS[deed] == {None} else 20.0)
    process.close()
    assert zygote.settle(20.0)
    assert end in ENDS[deed]
    watch = zygote.process_id
    assert not _children(watch)
    assert not _groups(watch)
    assert _descriptors(os.getpid()) <= descriptors


def test_a_memory_bomb_meets_the_control_group(zygote, misbehave):
    if not _has_memory_group(zygote):
        pytest.skip("this host grants no memory group")
    confinement = Confinement(
        limits=Limits(memory_bytes=64 << 30, resident_bytes=64 << 20), visible=((str(misbehave), "/misbehave"),)
    )
    process = zygote.start(confinement, argv=("/misbehave", "memory"))
    process.wait_ready()
    assert process.wait(20.0) == End(signal_number=signal.SIGKILL)
    process.close()


def test_users_of_living_processes_differ(zygote):
    if os.geteuid() != 0:
        pytest.skip("without root all are the same user outside")
    reader, writer = os.pipe()
    alive = [zygote.start(Confinement(), argv=("/bin/sh", "-c", "id -u; exec sleep 60"), stdout=writer) for _ in "abc"]
    for process in alive:
        process.wait_ready()
    os.close(writer)
    with os.fdopen(reader) as lines:
        users = {lines.readline() for _ in alive}
    assert len(users) == 3 and "" not in users
    for process in alive:
        process.close()


def test_nothing_of_the_zygote_is_inherited(zygote):
    """Under any number: descriptors that the judge names may lie anywhere."""
    reader, writer = os.pipe()
    high = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, 200)
    process = zygote.start(Confinement(proc=True), argv=("/bin/ls", "-l", "/proc/self/fd"), keep=(high,), stdout=writer)
    os.close(writer)
    os.close(high)
    process.wait_ready()
    process.wait(10.0)
    process.close()
    with os.fdopen(reader) as lines:
        seen = dict(line.split()[-3::2] for line in lines if " -> " in line)
    assert seen.pop("3").startswith("/proc/"), "what ls reads"
    assert {number: kind.partition("[")[0] for number, kind in seen.items()} == {
        "0": "/dev/null",
        "1": "pipe:",
        "2": "/dev/null",
        "200": "pipe:",
    }


def test_kept_descriptors_may_have_any_number():
    """Those that the zygote uses itself too: here all low ones, each with something to read."""
    script = (
        "import os, sys\nfrom harness import sandbox\n"
        "r, w = os.pipe()\nos.write(w, b'x')\nkept = [r]\n"
        "while kept[-1] < 12:\n    kept.append(os.dup(r))\n"
        "kept = sorted({*kept, w})\nassert kept == list(range(kept[0], 13)) and kept[0] == 3, kept\n"
        "with sandbox.Zygote(environment={}) as zygote:\n"
        "    p = zygote.start(sandbox.Confinement(proc=True), argv=('/bin/ls', '/proc/self/fd'), keep=kept, stdout=1)\n"
        "    p.wait_ready()\n    end = p.wait(10.0)\n    p.close()\nsys.exit(str(end))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False
    )
    assert done.stderr == "exited with code 0\n"
    assert set(map(str, range(13))) <= set(done.stdout.split())


PHASES = {
    "zygote": "",
    "asked": "p = z.start(sandbox.Confinement(), argv=('/bin/sleep', marker))",
    "up": "p = z.start(sandbox.Confinement(), argv=('/bin/sleep', marker)); p.wait_ready()",
    "frozen": "p = z.start(sandbox.Confinement(), argv=('/bin/sleep', marker)); p.wait_ready(); p.freeze()",
    "many": "p = [z.start(sandbox.Confinement(), argv=('/bin/sleep', marker)) for _ in range(8)]; p[3].wait_ready()",
    "closing": "p = z.start(sandbox.Confinement(), argv=('/bin/sleep', marker)); p.wait_ready(); p.close()",
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_judge_killed_in_any_phase_leaves_nothing(phase):
    marker = f"{86300 + list(PHASES).index(phase)}.{os.getpid()}"
    script = (
        "import os, sys, time\nfrom harness import sandbox\n"
        f"marker = '{marker}'\nz = sandbox.Zygote(environment={{'MARK': marker}})\n{PHASES[phase]}\n"
        "print('there', flush=True)\ntime.sleep(60)\n"
    )
    judge = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(REPOSITORY)}
    )
    assert judge.stdout is not None and judge.stdout.readline() == "there\n"
    groups = [group for watch in _children(judge.pid) for group in _folders(watch)]
    judge.kill()
    judge.wait()
    judge.stdout.close()
    assert _eventually(lambda: not _running(marker) and not _marked(marker))
    assert _eventually(lambda: not any(Path(group).exists() for group in groups))


def test_groups_of_killed_zygotes_are_swept_and_those_of_living_ones_are_not(zygote):
    alive = zygote.start(Confinement(), argv=("/bin/sleep", "60"))
    alive.wait_ready()
    watch = zygote.process_id
    kept = _groups(watch)
    if not kept:
        pytest.skip("this host grants no control groups")
    others = set(_children(os.getpid()))
    dead = sandbox.Zygote(environment=ENVIRONMENT)
    marker = f"86394.{os.getpid()}"
    left = dead.start(Confinement(), argv=("/bin/sleep", marker))
    left.wait_ready()
    (victim,) = set(_children(os.getpid())) - others
    orphaned = _folders(victim)
    os.kill(victim, signal.SIGKILL)
    assert _eventually(lambda: not _running(marker)), "the kernel ends a child with its zygote"
    left.close()
    dead.close()
    assert orphaned and all(Path(folder).exists() for folder in orphaned)
    with sandbox.Zygote(environment=ENVIRONMENT) as sweeper:
        process = sweeper.start(Confinement(), argv=("/bin/true",))
        process.wait_ready()
        process.close()
    assert not any(Path(folder).exists() for folder in orphaned)
    assert all(group.exists() for group in kept)
    alive.close()


def test_torch_works_in_a_fork():
    """Imported before the fork; OpenMP, native threads and numpy's library come up in the child."""
    pytest.importorskip("torch")
    path = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    path.insert(1, str(Path(path[0]) / "lib-dynload"))
    imports = sandbox.Imports("tests.harness.sources.torch_program", ("torch",), tuple(path))
    prefixes = tuple((prefix, prefix) for prefix in {sys.prefix, sys.base_prefix} - {"/usr"})
    with sandbox.Zygote(imports, ENVIRONMENT | {"OMP_NUM_THREADS": "2"}) as zygote:
        for _ in range(2):
            reader, writer = os.pipe()
            confinement = Confinement(limits=Limits(memory_bytes=48 << 30), visible=prefixes, proc=True)
            process = zygote.start(confinement, program={"answer": writer}, keep=(writer,), environment=ENVIRONMENT)
            os.close(writer)
            process.wait_ready()
            end = process.wait(60.0)
            process.close()
            said = os.read(reader, 1000).decode()
            os.close(reader)
            assert (end, said) == (End(exit_code=0), "2 threads, sum 4194304, numpy 262144, child threads [3, 1]")


def _folders(watch: int) -> list[str]:
    """The control group folders that a zygote holds locked."""
    links = []
    for entry in Path(f"/proc/{watch}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it may be at work
            links.append(str(entry.readlink()))
    return [link for link in links if "/gristmill-" in link]


def _groups(watch: int) -> list[Path]:
    return [entry for folder in _folders(watch) for entry in Path(folder).iterdir() if entry.is_dir()]


def _has_memory_group(zygote) -> bool:
    process = zygote.start(Confinement(), argv=("/bin/true",))
    process.wait_ready()
    process.close()
    return "memory group" in process.isolation


def _descriptors(pid: int) -> set[str]:
    return {entry.name for entry in Path(f"/proc/{pid}/fd").iterdir()}


def _marked(marker: str) -> bool:
    """Whether any process lives that was given the marker in its environment, as zygotes are here."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"MARK={marker}".encode() in entry.read_bytes():
                return True
    return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


BARE_HOST = """
import json, os, sys
from harness import sandbox
from harness.sandbox import Confinement
folder = sys.argv[1]
script = "pwd; cat given /given/given; echo text > /tmp/made; cat '/tmp/made' $TMPDIR/made; cat {0}/other; ls /etc; " \
    "(setsid sleep {1} &)".format(folder, sys.argv[2])
with open(folder + "/output", "w") as output, sandbox.Zygote(environment={}) as zygote:
    process = zygote.start(
        Confinement(visible=((folder + "/visible", "/given"),), cwd="/given"),
        argv=("/bin/sh", "-c", script), environment={"PATH": "/usr/bin:/bin"}, stdout=output.fileno(),
    )
    process.wait_ready()
    end = process.wait(20.0)
    process.close()
print(json.dumps([str(end), list(process.isolation), os.listdir("/tmp")]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to play a host that grants less")
def test_a_host_that_grants_no_namespaces(tmp_path):
    """As in most containers: what is named is found where it is, and /tmp is a folder that goes again."""
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        pytest.skip("needs unshare and setpriv")
    (tmp_path / "visible").mkdir()
    (tmp_path / "visible" / "given").write_text("given\n")
    (tmp_path / "other").write_text("secret\n")
    marker = f"86392.{os.getpid()}"
    bare = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", bare, "sh", sys.executable, "-c", BARE_HOST, str(tmp_path), marker],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "max_user_namespaces" in done.stderr:
        pytest.skip("this host grants no user namespace to play in")
    assert done.returncode == 0, done.stderr
    end, isolation, temporary = json.loads(done.stdout)
    assert end == "exited with code 0" and "private root" not in isolation
    lines = (tmp_path / "output").read_text().splitlines()
    assert lines[:5] == [str(tmp_path / "visible"), "given", "given", "text", "text"]
    assert not [name for name in temporary if name.startswith("gristmill-scratch-")]
    if "landlock" in isolation:
        assert len(lines) == 5, "nothing else could be read"
    if "pids group" in isolation or "memory group" in isolation:
        assert _eventually(lambda: not _running(marker))


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


def test_time_spent_waiting_for_a_core_is_known():
    core = {min(os.sched_getaffinity(0))}
    busy = ("/bin/sh", "-c", "while :; do :; done")
    rivals = [sandbox.start(sandbox.Confinement(), argv=busy, environment={}) for _ in range(2)]
    try:
        for rival in rivals:
            rival.wait_ready()
            os.sched_setaffinity(rival.process_id, core)
        before_s = rivals[0].starved_s()
        time.sleep(0.5)
        assert rivals[0].starved_s() - before_s > 0.05
    finally:
        for rival in rivals:
            rival.close()
    assert rivals[0].starved_s() == 0, "a process that is gone waits for nothing"
