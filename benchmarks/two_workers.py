"""`python -m benchmarks.two_workers`: Prefect on a real PostgreSQL, two workers, deployments that run at the same time.

Starts a PostgreSQL of its own on loopback (Debian: apt-get install postgresql), a Prefect server on it as `./mill ui`
does (`MILL_PREFECT_DATABASE`), deploys prefect.yaml, and lets two workers of one pool run `check`, `week`, `renew` and
`watch` at once over one registry, round after round. Each run must complete, both workers must take part, the channel
must serve what it served, and no log may speak of a lock. The server must refuse parameters that make no sense.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Outcome, report
from gristmill.directory_store import DirectoryStore
from registry.repository import Repository
from tasks import deployment, local_server, promotion, proving
from tasks.object_store import OpenStore
from tasks.settings import Settings
from tests.registry.world import shared_keys
from tests.tasks.world import FormulaBench, candidate, profile, rms_norm, settings

COMMAND = "python -m benchmarks.two_workers"
ISSUE = 6
ROUNDS = 4
AT_ONCE = ("check", "week", "renew", "watch")
FOLDERS = "/usr/lib/postgresql/*/bin"
ACCOUNT = "postgres"
"""The server refuses to be root's."""
READY_S = 240.0
ROUND_S = 180.0
ENDED = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")


@dataclass(frozen=True)
class Seen:
    """What became of all runs."""

    states: dict[str, int]
    workers: int
    """That ran anything."""
    locked: int
    """Log lines that speak of a lock."""
    refused: bool
    """Whether parameters that make no sense were."""
    unchanged: bool
    """Whether the channel serves what it served."""
    version: str

    @property
    def problems(self) -> int:
        """Runs that did not complete, and whatever else is not as it should be."""
        lost = sum(count for state, count in self.states.items() if state != "Completed")
        return lost + self.locked + (self.workers < 2) + (not self.refused) + (not self.unchanged)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"{ROUNDS} count")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        print("no PostgreSQL server here: apt-get install postgresql", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        Path(folder).chmod(0o755)
        seen = run(Path(folder), binaries, arguments.rounds)
    return report([figure(seen)], keep=not arguments.dry_run and arguments.rounds >= ROUNDS)


def find_binaries() -> Path | None:
    """Where a PostgreSQL server's programs lie on this machine; the newest."""
    found = sorted(path.parent for path in Path("/").glob(f"{FOLDERS[1:]}/initdb"))
    return found[-1] if found else None


def run(folder: Path, binaries: Path, rounds: int) -> Seen:
    """All of it, in a fresh folder; nothing is left running."""
    chosen = settings(folder / "home", folder / "store")
    tables = _publish(chosen)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgresql(folder / "postgres", binaries))
        url = deployment.database_url({deployment.DATABASE_VARIABLE: database})
        server, env = local_server.prefect_server(chosen.home, local_server.free_port(), url)
        stack.enter_context(server)
        server.wait_ready(READY_S)
        opened = OpenStore(_store(chosen), chosen.store_url, {})
        env |= {**deployment.variables(chosen, opened), "MILL_HOME": str(chosen.home), "PREFECT_LOGGING_LEVEL": "INFO"}
        deployment.deploy(chosen, env)
        print("deployed", flush=True)
        os.environ.update(env)
        names = ("first", "second")
        for name in names:
            stack.enter_context(_worker(chosen, env, name))
        states, refused = _rounds(rounds)
        logs = {path.stem: path.read_text(errors="replace") for path in (chosen.home / "logs").glob("*.log")}
    return Seen(
        states=dict(states),
        workers=sum("Completed" in logs[name] for name in names),
        locked=sum("locked" in line or "deadlock" in line for log in logs.values() for line in log.splitlines()),
        refused=refused,
        unchanged=_serves(chosen) == tables,
        version=binaries.parent.name,
    )


@contextlib.contextmanager
def postgresql(folder: Path, binaries: Path) -> Iterator[str]:
    """A server on loopback until the block ends; its URL."""
    folder.mkdir()
    other = {"user": ACCOUNT, "group": ACCOUNT} if os.geteuid() == 0 else {}
    if other:
        account = pwd.getpwnam(ACCOUNT)
        os.chown(folder, account.pw_uid, account.pw_gid)
    port = local_server.free_port()
    at: Sequence[str] = ("-h", local_server.LOOPBACK, "-p", str(port))

    def call(name: str, *arguments: str, check: bool = True) -> int:
        command = [str(binaries / name), *arguments]
        return subprocess.run(command, cwd="/", check=check, stdout=subprocess.DEVNULL, **other).returncode  # type: ignore[call-overload, no-any-return]

    call("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "mill", "-N")
    command = [str(binaries / "postgres"), "-D", str(folder / "data"), *at, "-k", "", "-c", "fsync=off"]
    with (folder.parent / "postgres.log").open("wb") as log:
        process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, **other)  # type: ignore[call-overload]
    try:
        deadline_s = time.monotonic() + READY_S
        while call("pg_isready", *at, check=False) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        call("createdb", *at, "-U", "mill", "prefect")
        yield f"postgresql://mill@{local_server.LOOPBACK}:{port}/prefect"
    finally:
        process.terminate()
        process.wait()


def _worker(chosen: Settings, env: Mapping[str, str], name: str) -> local_server.LocalServer:
    argv = [sys.executable, "-m", "prefect", "worker", "start", "--pool", deployment.POOL, "--type", "process"]
    return local_server.LocalServer(
        name, [*argv, "--limit", "2", "--name", name], chosen.home / "logs" / f"{name}.log", env=env
    )


def _rounds(rounds: int) -> tuple[Counter[str], bool]:
    from prefect.client.orchestration import get_client

    states: Counter[str] = Counter()
    with get_client(sync_client=True) as client:
        ids = {one.name: one.id for one in client.read_deployments()}
        for number in range(rounds):
            runs = [client.create_flow_run_from_deployment(ids[name]).id for name in AT_ONCE]
            found = _wait(client, runs)
            states.update(found)
            print(f"round {number + 1}: {', '.join(found)}", flush=True)
        try:
            client.create_flow_run_from_deployment(ids["check"], parameters={"window_h": -1.0})
        except Exception as error:  # Prefect's own, of several kinds
            return states, "window_h" in str(error)
    return states, False


def _wait(client: Any, runs: Sequence[Any]) -> list[str]:
    deadline_s = time.monotonic() + ROUND_S
    while True:
        found = [str(client.read_flow_run(one).state.name) for one in runs]
        if all(name in ENDED for name in found) or time.monotonic() > deadline_s:
            return found
        time.sleep(1.0)


def _publish(chosen: Settings) -> dict[str, str]:
    shutil.copytree(shared_keys(), chosen.keys_dir)
    sampled = profile(rms_norm(1))
    proof = promotion.prove(FormulaBench(lambda one, workload: 2.0), sampled, [candidate(1)])
    artifacts, files = proving.artifacts_of([(proof, {"torch": "2"})], chosen, print)
    return promotion.publish_artifacts(
        _store(chosen), chosen, "canary", artifacts, files, sampled, "for two workers"
    ).manifests


def _serves(chosen: Settings) -> dict[str, str]:
    entry = Repository(_store(chosen), promotion.keyring_of(chosen)).current(promotion.channel_of(chosen, "canary"))
    return dict(entry.index.tables) if entry else {}


def _store(chosen: Settings) -> DirectoryStore:
    return DirectoryStore(Path(chosen.store_url.removeprefix("file://")))


def figure(seen: Seen) -> Figure:
    """The row."""
    runs = ", ".join(f"{count} {state}" for state, count in sorted(seen.states.items()))
    note = (
        f"PostgreSQL {seen.version}; {', '.join(AT_ONCE)} at once, {runs}; workers that took part: {seen.workers}; "
        f"lock errors in logs: {seen.locked}; parameters without sense {'refused' if seen.refused else 'taken'} by the "
        f"server; the channel serves {'what it served' if seen.unchanged else 'something else'}"
    )
    return Figure(
        "Prefect on PostgreSQL, two workers, four deployments at once: runs lost, lock errors and other problems",
        ISSUE,
        "none",
        f"of {sum(seen.states.values())} runs",
        COMMAND,
        float(seen.problems),
        verdict=Outcome.MISSED if seen.problems else Outcome.MET,
        note=note,
    )


if __name__ == "__main__":
    sys.exit(main())
