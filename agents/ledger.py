"""The ledger: what every search and every day has spent and has in flight, and the caps on it. One file per home.

SQLite (write-ahead log, synced at every commit) is the one thing here that is trusted with crashes: each step below is
one transaction, which begins by taking the file's write lock, so threads and processes of one host take turns.

What holds after a crash, at any moment:

* A reservation is on disk before `reserve` returns. If its process dies before it settles, it stays and counts in full.
* Nobody releases it. As soon as its process is gone (see `agents.process_identity`) it is shown as abandoned, which is
  spent in full. A process that only looked gone may still settle, and then what it says counts.
* `settle` replaces a reservation by what was spent, or leaves it as it was: never neither, never both.
* An interrupt in the middle of either leaves nothing reserved that its caller does not know of.
* A search that is started again goes on with what its earlier lives have spent.

So a cap is passed only by a call that costs more than was reserved for it, and by that much.

A call belongs to the UTC day on which it was reserved, whenever it settles.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from agents import process_identity
from agents.account import Account, Counted, account
from agents.caps import RESOURCES, UNITS, BudgetCaps, Caps
from agents.errors import BudgetSpentError, LedgerError
from agents.spending import Amount

VERSION = 1
LOCK_WAIT_S = 60.0
"""For the others' transactions, each of which takes milliseconds."""
SCALES = {"usd": 10**9, "tokens": 1, "device_s": 10**6, "wall_s": 10**6}
"""Amounts are counted in whole billionths of a dollar, tokens and microseconds, so that sums are exact."""
MOST = 1 << 53
"""Of those, in one call: what is beyond was no estimate."""
COLUMNS = ", ".join(RESOURCES)
COUNTS = ", ".join(f"{name} INTEGER NOT NULL CHECK ({name} >= 0)" for name in RESOURCES)
SCHEMA = f"""
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY AUTOINCREMENT, search TEXT NOT NULL, day TEXT NOT NULL, purpose TEXT NOT NULL,
    process TEXT NOT NULL, reserved_ms INTEGER NOT NULL, {COUNTS}
);
CREATE INDEX reservations_by_search ON reservations (search);
CREATE INDEX reservations_by_day ON reservations (day);
CREATE TABLE spent (
    search TEXT NOT NULL, day TEXT NOT NULL, calls INTEGER NOT NULL, {COUNTS}, PRIMARY KEY (search, day)
) WITHOUT ROWID;
CREATE INDEX spent_by_day ON spent (day);
CREATE TABLE caps (scope TEXT PRIMARY KEY, {", ".join(f"{name} REAL" for name in RESOURCES)}) WITHOUT ROWID;
"""
DAY = "day"
"""Scope of the daily caps; those of a search are `search ID`."""


class Ledger:
    """Thread-safe. Every process opens its own: a fork must not go on with its parent's.

    Raises:
        LedgerError: from any method; nothing was changed, and nothing may be spent.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._process = process_identity.own()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        with _clear_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            with _clear_errors(path):
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Reservations that are still open stay so, and count in full."""
        with self._lock:
            self._connection.close()

    def budget(self, search: str, caps: BudgetCaps) -> SearchBudget:
        """The budget of one search, and the caps that it is held to from now on."""
        with self._transaction() as connection:
            for scope, values in ((_scope(search), caps.search), (DAY, caps.day)):
                connection.execute(
                    f"INSERT OR REPLACE INTO caps (scope, {COLUMNS}) VALUES (?, ?, ?, ?, ?)", (scope, *_values(values))
                )
        return SearchBudget(self, search, caps)

    def searches(self) -> tuple[Account, ...]:
        """Every search that has caps or has spent anything, by id."""
        with self._transaction() as connection:
            spent, open_ = _spent(connection, "search"), _open(connection)
            caps = _caps(connection)
            names = {scope.removeprefix(_scope("")) for scope in caps if scope != DAY}
        names |= set(spent) | {entry.search for entry in open_}
        return tuple(
            account(name, caps.get(_scope(name), Caps()), spent, [e for e in open_ if e.search == name])
            for name in sorted(names)
        )

    def days(self) -> tuple[Account, ...]:
        """Every day on which anything was spent, and today; the oldest first."""
        with self._transaction() as connection:
            spent, open_ = _spent(connection, "day"), _open(connection)
            caps = _caps(connection).get(DAY, Caps())
        names = {self.today(), *spent, *(entry.day for entry in open_)}
        return tuple(account(name, caps, spent, [e for e in open_ if e.day == name]) for name in sorted(names))

    def open_reservations(self) -> tuple[Counted, ...]:
        """The oldest first."""
        with self._transaction() as connection:
            return tuple(_open(connection))

    def today(self) -> str:
        """The UTC day."""
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()

    def reserve(
        self, search: str, caps: BudgetCaps, most: Amount, purpose: str, least: Amount | None = None
    ) -> LedgerReservation:
        """See `Budget.reserve`."""
        counts, needed, day = _counts(most, purpose), _counts(least or most, purpose), self.today()
        number = None
        try:
            with self._transaction() as connection:
                for column, name, limits in (("search", search, caps.search), ("day", day, caps.day)):
                    room = _room(connection, column, name, limits, needed, purpose)
                    counts = tuple(map(min, counts, room))
                number = connection.execute(
                    f"INSERT INTO reservations (search, day, purpose, process, reserved_ms, {COLUMNS})"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (search, day, purpose, self._process, round(self._clock() * 1000), *counts),
                ).lastrowid
        except KeyboardInterrupt:
            if number is not None:  # it may be on disk, and nobody will hear of it
                self.end(number, search, day, None)
            raise
        assert number is not None
        return LedgerReservation(self, number, search, day, _amount(counts))

    def end(self, number: int, search: str, day: str, actual: Amount | None) -> None:
        """Replaces a reservation by what was spent; by nothing if that is None. Doing it again changes nothing."""
        counts = None if actual is None else _counts(actual, "a call that was made")
        with self._transaction() as connection:
            found = connection.execute("DELETE FROM reservations WHERE id = ?", (number,)).rowcount
            if found and counts is not None:
                sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in RESOURCES)
                connection.execute(
                    f"INSERT INTO spent (search, day, calls, {COLUMNS}) VALUES (?, ?, 1, ?, ?, ?, ?)"
                    f" ON CONFLICT DO UPDATE SET calls = calls + 1, {sums}",
                    (search, day, *counts),
                )

    def _prepare(self) -> None:
        """Makes the tables, one process at a time, and looks whether those that are there can be read."""
        connection = self._connection
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
            elif version != VERSION:
                raise LedgerError(
                    f"{self._path}: a ledger of version {version}, this Gristmill reads version {VERSION}; use the "
                    "Gristmill that wrote it, or move the file away, which begins a new ledger"
                )
            found = connection.execute("PRAGMA quick_check").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, on disk at the end, after everybody who came before."""
        if os.getpid() != self._pid:
            raise RuntimeError("a ledger does not survive a fork: open it in the child")
        with self._lock, _clear_errors(self._path):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@dataclass(frozen=True)
class SearchBudget:
    """See `agents.spending.Budget`: one search's part in a ledger."""

    ledger: Ledger
    search: str
    caps: BudgetCaps

    def reserve(self, most: Amount, purpose: str, least: Amount | None = None) -> LedgerReservation:
        return self.ledger.reserve(self.search, self.caps, most, purpose, least)


class LedgerReservation:
    """See `agents.spending.Reservation`."""

    def __init__(self, ledger: Ledger, number: int, search: str, day: str, amount: Amount) -> None:
        self.day = day
        """Which is charged."""
        self.amount = amount
        self._ledger = ledger
        self._place = number, search, day
        self._ended = False

    def settle(self, actual: Amount) -> None:
        self._end(actual)

    def cancel(self) -> None:
        self._end(None)

    def _end(self, actual: Amount | None) -> None:
        if self._ended:
            raise RuntimeError("this reservation has been settled or cancelled before")
        try:
            self._ledger.end(*self._place, actual)
        except KeyboardInterrupt:
            self._ledger.end(*self._place, actual)
            self._ended = True
            raise
        self._ended = True


def _room(
    connection: sqlite3.Connection, column: str, name: str, caps: Caps, needed: tuple[int, ...], purpose: str
) -> tuple[int, ...]:
    """What the caps of a search or a day leave of each resource, at least what is needed.

    Raises:
        BudgetSpentError: that does not fit.
    """
    if caps == Caps():
        return (MOST,) * len(needed)
    sums = ", ".join(f"coalesce(sum({resource}), 0)" for resource in RESOURCES)
    spent, open_ = (
        connection.execute(f"SELECT {sums} FROM {table} WHERE {column} = ?", (name,)).fetchone()
        for table in ("spent", "reservations")
    )
    room = []
    for resource, limit, used, flying, more in zip(RESOURCES, _values(caps), spent, open_, needed, strict=True):
        left = MOST if limit is None else math.floor(limit * SCALES[resource] + 0.5) - used - flying
        # What costs nothing of a resource may go on when that resource is spent.
        room.append(max(left, 0))
        if 0 < more > left:
            assert limit is not None
            gone = _abandoned(connection, column, name, resource)
            charged, waiting = used + gone, flying - gone
            texts = [f"{count / SCALES[resource]:.6g}" for count in (charged, waiting, more, gone)]
            raise BudgetSpentError(
                f"budget of {column} {name}: {texts[0]} of {limit:.6g} {UNITS[resource]} spent"
                f"{f' ({texts[3]} of it by abandoned calls)' if gone else ''}, {texts[1]} in flight; "
                f"{texts[2]} more for {purpose} would pass the cap"
                f"{', which is smaller than that' if more > limit * SCALES[resource] else ''}"
                " (./mill budget shows all caps)",
                may_fit_later=waiting > 0 and charged + more <= limit * SCALES[resource],
            )
    return tuple(room)


def _abandoned(connection: sqlite3.Connection, column: str, name: str, resource: str) -> int:
    """What reservations of dead processes hold of a search or a day: nobody will end them, so it is spent."""
    rows = connection.execute(
        f"SELECT process, sum({resource}) FROM reservations WHERE {column} = ? GROUP BY process", (name,)
    )
    return sum(count for process, count in rows if not process_identity.alive(process))


def _spent(connection: sqlite3.Connection, column: str) -> dict[str, tuple[Amount, int]]:
    """What was settled, and in how many calls, by search or by day."""
    sums = ", ".join(f"sum({resource})" for resource in RESOURCES)
    rows = connection.execute(f"SELECT {column}, sum(calls), {sums} FROM spent GROUP BY {column}")
    return {name: (_amount(counts), calls) for name, calls, *counts in rows}


def _open(connection: sqlite3.Connection) -> list[Counted]:
    living: dict[str, bool] = {}
    entries = []
    rows = connection.execute(f"SELECT search, day, purpose, process, {COLUMNS} FROM reservations ORDER BY id")
    for search, day, purpose, process, *counts in rows:
        if process not in living:
            living[process] = process_identity.alive(process)
        entries.append(Counted(search, day, purpose, _amount(counts), abandoned=not living[process]))
    return entries


def _caps(connection: sqlite3.Connection) -> dict[str, Caps]:
    found = {}
    for scope, *values in connection.execute(f"SELECT scope, {COLUMNS} FROM caps"):
        caps = Caps(*values)
        found[scope] = replace(caps, tokens=None if caps.tokens is None else int(caps.tokens))
    return found


def _counts(amount: Amount, purpose: str) -> tuple[int, ...]:
    """An amount in whole units.

    Raises:
        BudgetSpentError: it has no bound.
        ValueError: it is negative.
    """
    values = [getattr(amount, name) * SCALES[name] for name in RESOURCES]
    if any(math.isnan(value) or value < 0 for value in values):
        raise ValueError(f"{amount} for {purpose}: amounts are 0 or more")
    for name, value in zip(RESOURCES, values, strict=True):
        if value > MOST:
            raise BudgetSpentError(f"{purpose} may cost any number of {UNITS[name]}: no budget allows that")
    return tuple(round(value) for value in values)


def _amount(counts: Iterable[int]) -> Amount:
    usd, tokens, device, wall = counts
    return Amount(usd / SCALES["usd"], tokens, device / SCALES["device_s"], wall / SCALES["wall_s"])


def _values(caps: Caps) -> tuple[float | None, ...]:
    return tuple(getattr(caps, name) for name in RESOURCES)


def _scope(search: str) -> str:
    return f"search {search}"


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """What SQLite and the file system complain about, as one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror}; the ledger must be a file that this user can write") from None
    except sqlite3.OperationalError as error:
        raise LedgerError(f"{path}: {error}; nothing is spent while the ledger cannot be written") from None
    except sqlite3.DatabaseError as error:
        raise LedgerError(
            f"{path}: damaged ({error}), so what was spent is unknown; restore the file, or move it away, which begins "
            "a new ledger at nothing spent"
        ) from None
