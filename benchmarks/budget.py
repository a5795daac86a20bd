"""`python -m benchmarks.budget`: does any cap ever break? Randomised searches, whose workers are killed at any moment.

Each run is two searches of several worker processes over one ledger, with caps on money and tokens per search and per
day. Workers reserve, are charged by a provider that keeps books of its own, and settle. The parent kills them (SIGKILL)
at random moments and starts them again, until every worker has been told that the budget is spent. What the provider
charged is then held against the caps. In half of the runs one call costs more than was reserved for it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.caps import BudgetCaps, Caps
from agents.errors import BudgetSpentError
from agents.ledger import Ledger
from agents.spending import Amount
from benchmarks.figures import Figure, Outcome, record

COMMAND = "python -m benchmarks.budget"
ISSUE = 4
RUNS = 1000
MEMORY = "/dev/shm"
"""Where the ledgers lie if it is there: killed processes lose nothing of it, and no disk is worn out."""
SEARCHES = ("first", "second")
DAY_S = 86_400
ROUNDING = 1e-9
PATIENCE = 200
"""How often a worker asks again while others' calls in flight may turn out cheaper."""
EXCESS = 3.0
"""The call that breaks its bound costs so many times what was reserved."""


@dataclass(frozen=True)
class Charge:
    """One line of the provider's books."""

    search: str
    day: str
    usd: float
    tokens: int
    usd_bound: float
    tokens_bound: int


@dataclass
class Run:
    """What one run gave."""

    seed: int
    kills: int = 0
    charges: list[Charge] = field(default_factory=list)
    passed: float = 0.0
    """By how much a cap was passed at most, as a share of the cap."""
    beyond: list[str] = field(default_factory=list)
    """Caps that were passed by more than the one call that cost more than its bound."""
    forgotten: list[str] = field(default_factory=list)
    """Accounts that hold less than was charged within its bounds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    started = time.monotonic()
    runs = []
    for number in range(arguments.runs):
        runs.append(perform(arguments.seed + number))
        if (number + 1) % 50 == 0:
            print(f"{number + 1:5}/{arguments.runs} runs, {time.monotonic() - started:.0f} s", flush=True)
    row = figure(runs)
    print(f"{row.name}: target {row.target}, measured {row.measured:.0f} {row.unit}: {row.verdict.value}; {row.note}")
    for run in runs:
        for text in (*run.beyond, *run.forgotten):
            print(f"seed {run.seed}: {text}")
    if not arguments.dry_run:
        record(row)
    return 0 if row.verdict is Outcome.MET else 1


def figure(runs: Sequence[Run]) -> Figure:
    """The row of the issue."""
    broken = sum(bool(run.beyond or run.forgotten) for run in runs)
    passed = [run.passed for run in runs if run.passed > 0]
    note = (
        f"{sum(len(run.charges) for run in runs)} calls, {sum(run.kills for run in runs)} SIGKILLs; "
        f"a cap was passed at all in {len(passed)} runs, each by the one call that cost more than was reserved for it"
    )
    name = f"overspend in {len(runs):,} randomised runs with kills and restarts, beyond one call"
    outcome = Outcome.MISSED if broken else Outcome.MET
    return Figure(name, ISSUE, "none", "runs", COMMAND, float(broken), verdict=outcome, note=note)


def perform(seed: int) -> Run:
    """One run: workers, kills, restarts, and the books at the end."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="mill-budget-", dir=MEMORY if Path(MEMORY).is_dir() else None) as name:
        folder = Path(name)
        caps = BudgetCaps(_random_caps(chance, 1.0), _random_caps(chance, 1.6))
        breaks = chance.random() < 0.5
        midnight_s = chance.choice([None, chance.uniform(0.0, 0.3)])
        Ledger(folder / "ledger.db").close()
        run = Run(seed)
        _supervise(folder, caps, chance, run, breaks, _clock(midnight_s))
        run.charges = _books(folder)
        _audit(folder, caps, run)
        return run


def _random_caps(chance: random.Random, factor: float) -> Caps:
    return Caps(
        usd=factor * chance.uniform(0.5, 3.0) if chance.random() < 0.8 else None,
        tokens=round(factor * chance.uniform(20_000, 60_000)),
    )


def _clock(midnight_s: float | None) -> tuple[float, float]:
    """When the run began, and what its workers take that for: so many seconds before midnight, or noon."""
    return time.time(), DAY_S * 20_000 + (DAY_S / 2 if midnight_s is None else -midnight_s)


def _supervise(
    folder: Path, caps: BudgetCaps, chance: random.Random, run: Run, breaks: bool, epoch: tuple[float, float]
) -> None:
    kills_left = chance.randrange(1, 9)
    mean_s = chance.choice([0.004, 0.015, 0.05])
    workers: dict[int, int] = {}
    waiting = list(range(chance.randrange(2, 6)))
    while waiting or workers:
        for number in waiting:
            workers[_start(folder, caps, number, chance.getrandbits(32), breaks, epoch)] = number
        waiting = []
        time.sleep(min(chance.expovariate(1 / mean_s), 0.2))
        if kills_left and workers:
            os.kill(chance.choice(sorted(workers)), signal.SIGKILL)
            kills_left -= 1
        for pid in list(workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            number = workers.pop(pid)
            if os.WIFSIGNALED(status):
                run.kills += 1
                waiting.append(number)
            elif os.WEXITSTATUS(status):
                raise RuntimeError(f"run {run.seed}: worker {number} failed")


def _start(folder: Path, caps: BudgetCaps, number: int, seed: int, breaks: bool, epoch: tuple[float, float]) -> int:
    """Forks a worker."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _work(folder, caps, SEARCHES[number % 2], random.Random(seed), breaks and number == 0, epoch)
        code = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _work(
    folder: Path, caps: BudgetCaps, search: str, chance: random.Random, breaks: bool, epoch: tuple[float, float]
) -> None:
    """Spends until the budget says that it is spent."""
    began, pretended = epoch
    budget = Ledger(folder / "ledger.db", clock=lambda: pretended + time.time() - began).budget(search, caps)
    calls = patience = 0
    break_at = chance.randrange(0, 6)
    while True:
        most = Amount(chance.uniform(0.01, 0.3), chance.randrange(100, 4000))
        try:
            reservation = budget.reserve(most, "a call")
        except BudgetSpentError as error:
            patience += 1
            if not error.may_fit_later or patience > PATIENCE:
                return
            time.sleep(0.001)
            continue
        share = chance.uniform(0.1, 1.0)
        if breaks and calls == break_at and _first(folder / "broken"):
            share = EXCESS
        actual = Amount(most.usd * share, int(most.tokens * share))
        if chance.random() < 0.1:
            reservation.cancel()
            continue
        _pause(chance)
        _charge(folder, Charge(search, reservation.day, actual.usd, actual.tokens, most.usd, most.tokens))
        _pause(chance)
        reservation.settle(actual)
        calls += 1


def _pause(chance: random.Random) -> None:
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0, 0.003))


def _first(path: Path) -> bool:
    """Whether nobody else was here before: one call of a run may break its bound."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _charge(folder: Path, charge: Charge) -> None:
    """The provider's books: one write per line, so that a kill leaves no part of one."""
    descriptor = os.open(folder / "books", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, json.dumps(vars(charge)).encode() + b"\n")
    os.close(descriptor)


def _books(folder: Path) -> list[Charge]:
    path = folder / "books"
    return [Charge(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _audit(folder: Path, caps: BudgetCaps, run: Run) -> None:
    """Holds what was charged against the caps, and the ledger's accounts against what was charged."""
    with Ledger(folder / "ledger.db") as ledger:
        accounts = {("search", a.name): a for a in ledger.searches()} | {("day", a.name): a for a in ledger.days()}
    scopes: dict[tuple[str, str], list[Charge]] = defaultdict(list)
    for charge in run.charges:
        scopes["search", charge.search].append(charge)
        scopes["day", charge.day].append(charge)
    for (kind, name), charges in scopes.items():
        limits = getattr(caps, kind)
        account = accounts[kind, name]
        for resource in ("usd", "tokens"):
            total = sum(getattr(charge, resource) for charge in charges)
            excess = sum(_excess(charges, resource))
            limit = getattr(limits, resource)
            room = ROUNDING * (len(charges) + 1)
            if limit is not None and total > limit + room:
                run.passed = max(run.passed, total / limit - 1)
                if total > limit + excess + room:
                    run.beyond.append(f"{resource} of {kind} {name}: {total} charged, the cap is {limit}")
            if getattr(account.spent + account.in_flight, resource) < total - excess - room:
                run.forgotten.append(f"{resource} of {kind} {name}: {total} charged, {account}")


def _excess(charges: Iterable[Charge], resource: str) -> list[float]:
    """Of the call, if any, that cost more than was reserved for it: by how much."""
    over = [getattr(charge, resource) - getattr(charge, f"{resource}_bound") for charge in charges]
    found = [excess for excess in over if excess > 0]
    assert len(found) <= 1, "one call of a run may break its bound"
    return found


if __name__ == "__main__":
    sys.exit(main())
