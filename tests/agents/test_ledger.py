"""The ledger holds its caps across threads, processes, days, restarts and deaths, and says when it cannot."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from agents import process_identity
from agents.caps import RESOURCES, BudgetCaps, Caps
from agents.errors import BudgetSpentError, LedgerError
from agents.ledger import Ledger, LedgerReservation
from agents.spending import Amount
from tests.agents.budget_contract import BudgetContract, MakeBudget

NONE = BudgetCaps(Caps(), Caps())
NOON_S = 20_000 * 86_400.0 + 43_200
MEMORY = Path("/dev/shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


class TestSearchBudget(BudgetContract):
    @pytest.fixture
    def make_budget(self, path: Path) -> Iterator[MakeBudget]:
        with Ledger(path) as ledger:
            yield lambda caps: ledger.budget("s1", caps)


def child(path: Path, search: str, amount: Amount, *, then_dies: bool) -> int:
    """Reserves in another process, which then dies or waits to be killed; returns its id."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            Ledger(path).budget(search, NONE).reserve(amount, "a call of a child")
            os.write(writing, b"reserved")
            if not then_dies:
                signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.read(reading, 8) == b"reserved"
    os.close(reading)
    os.close(writing)
    if then_dies:
        os.waitpid(pid, 0)
    return pid


def test_a_dead_workers_reservation_counts_in_full_and_is_shown_as_abandoned(path: Path) -> None:
    child(path, "s1", Amount(usd=0.8), then_dies=True)
    with Ledger(path) as ledger:
        budget = ledger.budget("s1", BudgetCaps(search=Caps(usd=1.0)))
        with pytest.raises(BudgetSpentError):
            budget.reserve(Amount(usd=0.3), "a call")
        (account,) = ledger.searches()
        assert (account.spent, account.in_flight, account.abandoned) == (Amount(0.8), Amount(), Amount(0.8))
        assert (account.calls, account.calls_in_flight, account.calls_abandoned) == (0, 0, 1)
        assert account.remaining.usd == pytest.approx(0.2)
        assert [entry.abandoned for entry in ledger.open_reservations()] == [True]


def test_a_refusal_words_what_was_abandoned_as_the_accounts_do(path: Path) -> None:
    """It is spent: nobody has to wait for it to come back."""
    child(path, "s1", Amount(usd=0.8), then_dies=True)
    with Ledger(path) as ledger:
        budget = ledger.budget("s1", BudgetCaps(search=Caps(usd=1.0)))
        with pytest.raises(BudgetSpentError) as refused:
            budget.reserve(Amount(usd=0.3), "a call")
        assert "0.8 of 1 USD spent (0.8 of it by abandoned calls), 0 in flight" in str(refused.value)
        assert not refused.value.may_fit_later
        budget.reserve(Amount(usd=0.1), "a call")
        with pytest.raises(BudgetSpentError) as refused:
            budget.reserve(Amount(usd=0.2), "a call")
        assert "spent (0.8 of it by abandoned calls), 0.1 in flight" in str(refused.value)
        assert refused.value.may_fit_later


def test_a_living_worker_of_another_process_is_in_flight_until_it_is_killed(path: Path) -> None:
    with Ledger(path) as ledger:
        pid = child(path, "s1", Amount(tokens=7), then_dies=False)
        assert ledger.searches()[0].in_flight == Amount(tokens=7)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ledger.searches()[0].abandoned == Amount(tokens=7), "a zombie settles nothing any more"
        os.waitpid(pid, 0)
        assert ledger.searches()[0].abandoned == Amount(tokens=7)


def test_what_looked_abandoned_may_still_settle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(path) as ledger:
        reservation = ledger.budget("s1", NONE).reserve(Amount(usd=1.0), "a call from another namespace")
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(process_identity, "alive", lambda identity: False)
            assert ledger.searches()[0].abandoned == Amount(usd=1.0)
        reservation.settle(Amount(usd=0.25))
        assert (ledger.searches()[0].spent, ledger.searches()[0].abandoned) == (Amount(usd=0.25), Amount())


def test_a_restarted_search_goes_on_with_what_it_spent(path: Path) -> None:
    for _ in range(3):
        with Ledger(path) as ledger:
            ledger.budget("s1", BudgetCaps(search=Caps(usd=1.0))).reserve(Amount(usd=0.4), "a call").settle(
                Amount(usd=0.3)
            )
    with Ledger(path) as ledger, pytest.raises(BudgetSpentError, match=r"search s1: 0\.9 of 1 USD spent"):
        ledger.budget("s1", BudgetCaps(search=Caps(usd=1.0))).reserve(Amount(usd=0.4), "a call")


def test_searches_share_a_day_and_nothing_else(path: Path) -> None:
    caps = BudgetCaps(search=Caps(usd=1.0), day=Caps(usd=1.5))
    with Ledger(path) as ledger:
        ledger.budget("s1", caps).reserve(Amount(usd=1.0), "a call").settle(Amount(usd=1.0))
        with pytest.raises(BudgetSpentError, match="day"):
            ledger.budget("s2", caps).reserve(Amount(usd=1.0), "a call")
        ledger.budget("s2", caps).reserve(Amount(usd=0.5), "a call")
        assert [(a.name, a.spent.usd, a.in_flight.usd) for a in ledger.searches()] == [("s1", 1.0, 0), ("s2", 0, 0.5)]


def test_a_call_belongs_to_the_utc_day_on_which_it_was_reserved(path: Path) -> None:
    now_s = NOON_S + 43_199
    with Ledger(path, clock=lambda: now_s) as ledger:
        budget = ledger.budget("s1", BudgetCaps(day=Caps(usd=1.0)))
        late = budget.reserve(Amount(usd=0.9), "a call before midnight")
        now_s += 2
        early = budget.reserve(Amount(usd=0.9), "a call after midnight")
        late.settle(Amount(usd=0.8))
        early.settle(Amount(usd=0.7))
        assert [(a.name, a.spent.usd) for a in ledger.days()] == [("2024-10-04", 0.8), ("2024-10-05", 0.7)]
        now_s += 86_400
        assert ledger.days()[-1].name == "2024-10-06" and ledger.days()[-1].spent == Amount(), "today is always there"


def test_the_caps_that_were_set_last_are_shown(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.budget("s1", BudgetCaps(Caps(usd=1.0, tokens=5), Caps(device_s=9.0)))
        ledger.budget("s1", BudgetCaps(Caps(usd=2.0), Caps(wall_s=3.0)))
        assert ledger.searches()[0].caps == Caps(usd=2.0)
        assert ledger.days()[0].caps == Caps(wall_s=3.0)


def test_a_ledger_does_not_survive_a_fork(path: Path) -> None:
    with Ledger(path) as ledger:
        budget = ledger.budget("s1", NONE)
        pid = os.fork()
        if pid == 0:
            try:
                budget.reserve(Amount(usd=1.0), "a call")
            except RuntimeError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert ledger.open_reservations() == ()


def test_a_failure_in_a_transaction_changes_nothing(path: Path) -> None:
    """`settle` replaces a reservation or leaves it: the second of its two writes is refused here."""
    with Ledger(path) as ledger:
        reservation = ledger.budget("s1", NONE).reserve(Amount(usd=1.0), "a call")
        with sqlite3.connect(path) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON spent BEGIN SELECT raise(ABORT, 'disk full'); END")
        with pytest.raises(LedgerError, match="disk full"):
            reservation.settle(Amount(usd=0.5))
        assert ledger.searches()[0].in_flight == Amount(usd=1.0)
        with sqlite3.connect(path) as other:
            other.execute("DROP TRIGGER full")
        reservation.settle(Amount(usd=0.5))
        assert ledger.searches()[0].spent == Amount(usd=0.5)


class Interrupted:
    """A connection in whose n-th statement a Ctrl-C comes, once: as it begins, or when its work is done."""

    def __init__(self, connection: sqlite3.Connection, statement: int, *, done: bool) -> None:
        self._connection = connection
        self._left = statement
        self._done = done

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self._left -= 1
        if self._left == 0 and not self._done:
            raise KeyboardInterrupt
        cursor = self._connection.execute(*arguments)
        if self._left == 0:
            raise KeyboardInterrupt
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def interrupt(monkeypatch: pytest.MonkeyPatch, ledger: Ledger, statement: int, *, done: bool) -> None:
    connection = ledger._connection
    monkeypatch.setattr(ledger, "_connection", Interrupted(connection, statement, done=done))


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("statement", [1, 2, 3])
def test_an_interrupted_reservation_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: int, done: bool
) -> None:
    """BEGIN, INSERT, COMMIT."""
    with Ledger(path) as ledger:
        budget = ledger.budget("s1", NONE)
        interrupt(monkeypatch, ledger, statement, done=done)
        with pytest.raises(KeyboardInterrupt):
            budget.reserve(Amount(usd=1.0), "a call")
        assert ledger.open_reservations() == ()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("statement", [1, 2, 3, 4])
def test_an_interrupted_settlement_is_one_and_counts_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: int, done: bool
) -> None:
    """BEGIN, DELETE, INSERT, COMMIT."""
    with Ledger(path) as ledger:
        reservation = ledger.budget("s1", NONE).reserve(Amount(usd=1.0), "a call")
        interrupt(monkeypatch, ledger, statement, done=done)
        with pytest.raises(KeyboardInterrupt):
            reservation.settle(Amount(usd=0.5))
        assert ledger.open_reservations() == ()
        assert ledger.searches()[0].spent == Amount(usd=0.5)


def damaged(content: bytes, kind: str) -> bytes:
    return {
        "no database": b"this is no database, but a text of some length" * 9,
        "cut": content[: len(content) // 2],
        "overwritten pages": content[:4096] + b"\x5a" * (len(content) - 4096),
        "overwritten header": b"\x5a" * 100 + content[100:],
    }[kind]


@pytest.mark.parametrize("kind", ["no database", "cut", "overwritten pages", "overwritten header"])
def test_a_damaged_ledger_is_one_clear_line_and_allows_nothing(path: Path, kind: str) -> None:
    with Ledger(path) as ledger:
        for number in range(300):
            ledger.budget(f"search-{number}", NONE)
        ledger.budget("s1", NONE).reserve(Amount(usd=1.0), "a call").settle(Amount(usd=1.0))
    path.write_bytes(damaged(path.read_bytes(), kind))
    with pytest.raises(LedgerError, match=r"ledger\.db: .*move it away") as problem:
        Ledger(path)
    assert len(str(problem.value).splitlines()) == 1


def test_a_ledger_of_another_version_is_left_alone(path: Path) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="version 99"):
        Ledger(path)


def test_a_ledger_that_is_a_folder_is_one_clear_line(path: Path) -> None:
    path.mkdir()
    with pytest.raises(LedgerError, match="unable to open"):
        Ledger(path)


@dataclass
class Open:
    """A reservation that the model knows of."""

    reservation: LedgerReservation
    search: str
    day: int
    most: dict[str, int]


AMOUNTS = st.fixed_dictionaries({name: st.integers(0, 40) for name in RESOURCES})


class LedgerMachine(stateful.RuleBasedStateMachine):
    """Any order of calls, lives and days gives the sums of a model that adds up plain numbers."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.path = Path(self.folder.name) / "ledger.db"
        self.day = 0
        self.caps = BudgetCaps(Caps(*[100] * 4), Caps(*[150] * 4))
        self.open: list[Open] = []
        self.spent: list[tuple[str, int, dict[str, int]]] = []
        self.ledger = Ledger(self.path, clock=lambda: NOON_S + 86_400 * self.day)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    def taken(self, search: str | None, day: int | None, resource: str) -> int:
        entries = [*self.spent, *((o.search, o.day, o.most) for o in self.open)]
        return sum(
            amounts[resource] for name, when, amounts in entries if name == search or (search is None and when == day)
        )

    @stateful.rule(search=st.sampled_from("ab"), most=AMOUNTS, less=st.one_of(st.none(), AMOUNTS))
    def reserve(self, search: str, most: dict[str, int], less: dict[str, int] | None) -> None:
        needed = most if less is None else {name: min(most[name], less[name]) for name in RESOURCES}
        room = {
            name: max(0, min(100 - self.taken(search, None, name), 150 - self.taken(None, self.day, name)))
            for name in RESOURCES
        }
        fits = all(needed[name] <= room[name] for name in RESOURCES)
        least = None if less is None else Amount(**needed)
        try:
            reservation = self.ledger.budget(search, self.caps).reserve(Amount(**most), "a call", least)
        except BudgetSpentError:
            assert not fits
        else:
            assert fits
            granted = {name: min(most[name], room[name]) for name in RESOURCES}
            assert reservation.amount == Amount(**granted)
            self.open.append(Open(reservation, search, self.day, granted))

    @stateful.precondition(lambda self: self.open)
    @stateful.rule(data=st.data(), actual=AMOUNTS)
    def settle(self, data: st.DataObject, actual: dict[str, int]) -> None:
        ended = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        ended.reservation.settle(Amount(**actual))
        self.spent.append((ended.search, ended.day, actual))

    @stateful.precondition(lambda self: self.open)
    @stateful.rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.open.pop(data.draw(st.integers(0, len(self.open) - 1))).reservation.cancel()

    @stateful.rule()
    def tomorrow(self) -> None:
        self.day += 1

    @stateful.rule()
    def restart(self) -> None:
        """Reservations of the life before stay: this process is alive, and they may not be settled through it."""
        self.ledger.close()
        self.ledger = Ledger(self.path, clock=lambda: NOON_S + 86_400 * self.day)
        self.spent += [(o.search, o.day, o.most) for o in self.open]
        self.open = []

    @stateful.invariant()
    def sums_are_those_of_the_model(self) -> None:
        for account in self.ledger.searches():
            for name in RESOURCES:
                assert getattr(account.spent + account.in_flight, name) == self.taken(account.name, None, name)
        for number, account in enumerate(self.ledger.days()[-1:]):
            assert number == 0
            for name in RESOURCES:
                assert getattr(account.spent + account.in_flight, name) == self.taken(None, self.day, name)


LedgerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
