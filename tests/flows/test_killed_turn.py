"""A whole turn, killed before every step and every durable write in turn: the next life ends where a whole one would.

Search session, agents, strategy, journal, ledger, promotion, signatures and store are real; a formula judges, so that
two lives can be compared. From its death on, a process writes nothing: what `finally` blocks would still save is lost,
as with SIGKILL. (`benchmarks/kill_cycle.py` sends real ones.)
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agents.caps import BudgetCaps
from agents.ledger import Ledger
from flows.continuous import continuous_steps
from gristmill import durable_file
from gristmill.directory_store import DirectoryStore
from gristmill.kernel_table import KernelTable
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.profile import TrafficProfile
from registry.errors import RegistryStateError
from registry.publication import read_manifest
from registry.repository import Repository
from tasks import budgeting, cycle_report, promotion, record_lines, recruitment, search_session
from tasks.compilation import SearchResult, journal_path, run_searches, search_id_of
from tasks.journal import read as read_journal
from tasks.settings import Settings
from tests.registry.world import shared_keys
from tests.tasks.world import PEAKS, Clock, FormulaBench, ListLog, profile, rms_norm, settings

TRAFFIC = profile(rms_norm(1), rms_norm(4))
CANDIDATES = 3
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SEED = 5


class Killed(BaseException):
    """What a process does that was killed: nothing more."""


@dataclass
class Death:
    """Counts moments at which a process may die, and kills it at one of them."""

    at: int = -1
    moments: int = 0
    dead: bool = False

    def moment(self) -> None:
        if self.moments == self.at:
            self.dead = True
        self.moments += 1
        if self.dead:
            raise Killed


def ratio_of(candidate: Candidate, workload: Workload) -> float:
    return 1.1 + int(candidate.digest[:6], 16) / 0xFFFFFF


@dataclass
class Turn:
    """One home and one store, through as many lives as it takes."""

    settings: Settings
    judged: list[str] = field(default_factory=list)
    """By all lives together."""

    def live(self, death: Death) -> bool:
        """Whether a life came to its end by itself."""
        bench = FormulaBench(ratio_of, Clock())
        bench.judged = self.judged

        def search(chosen: Settings, traffic: TrafficProfile, *_: Any) -> SearchResult:
            search_id = search_id_of(traffic, 0)
            with budgeting.open_ledger(chosen) as ledger:
                budget = ledger.budget(search_id, BudgetCaps())
                return run_searches(bench, ListLog(), chosen, traffic, PEAKS, budget_s=float(CANDIDATES), budget=budget)

        def prove(chosen: Settings, traffic: Any, winners: Any, *_: Any) -> Any:
            proofs = FormulaBench(ratio_of)
            return tuple((promotion.prove(proofs, traffic, found), {"torch": "2"}) for found in winners.values())

        replaced: dict[str, Callable[..., Any]] = {
            "capture_profile": lambda *_: TRAFFIC,
            "cached_peaks": lambda _: PEAKS,
            "search_operators": search,
            "prove_winners": prove,
        }

        def step(function: Callable[..., Any]) -> Callable[..., Any]:
            chosen = replaced.get(function.__name__, function)

            def run(*arguments: Any, **keywords: Any) -> Any:
                death.moment()
                result = chosen(*arguments, **keywords)
                death.moment()
                return result

            return run

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            mortal(patch, death)

            class OnClock(search_session.SearchSession):
                def __init__(self, *arguments: Any, **keywords: Any) -> None:
                    super().__init__(*arguments, clock=bench.clock, **keywords)

            patch.setattr(recruitment, "SearchSession", OnClock)
            patch.setattr(cycle_report.report, "render", lambda shown: "drawing takes most of the time")
            patch.setattr(promotion.secrets, "randbits", lambda bits: SEED)
            continuous_steps(self.settings, step, window_h=1.0, budget_s=10.0, channel="canary")
            return True
        return False

    @property
    def store(self) -> DirectoryStore:
        return DirectoryStore(Path(self.settings.store_url.removeprefix("file://")))

    def promoted(self) -> list[KernelTable]:
        repository = Repository(self.store, promotion.keyring_of(self.settings))
        try:
            entry = repository.current(promotion.channel_of(self.settings, "canary"))
        except RegistryStateError:
            return []
        return [read_manifest(self.store, one).table for one in entry.index.tables.values()] if entry else []

    def generations(self) -> int:
        repository = Repository(self.store, promotion.keyring_of(self.settings))
        return len(list(repository.history(promotion.channel_of(self.settings, "canary"))))


def mortal(patch: pytest.MonkeyPatch, death: Death) -> None:
    """Every durable write of the tasks may be the one before which the process dies; the dead write nothing."""

    def before(owner: Any, name: str) -> None:
        write = getattr(owner, name)

        def guarded(*arguments: Any, **keywords: Any) -> Any:
            death.moment()
            return write(*arguments, **keywords)

        patch.setattr(owner, name, guarded)

    before(durable_file, "write")
    before(record_lines, "_append")
    for name in ("put_new", "replace_if", "delete"):
        before(DirectoryStore, name)
    before(Ledger, "reserve")
    before(Ledger, "end")


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry that is there already: how one is made is tested where it is made."""
    folder = tmp_path_factory.mktemp("initialised")
    made = settings(folder / "home", folder / "store")
    shutil.copytree(shared_keys(), made.keys_dir)
    (folder / "store").mkdir()
    Repository(DirectoryStore(folder / "store"), promotion.keyring_of(made)).initialise()
    return folder


@pytest.fixture
def fresh(initialised: Path) -> Iterator[Callable[[str], Turn]]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:

        def fresh(name: str) -> Turn:
            shutil.copytree(initialised, Path(folder) / name)
            return Turn(settings(Path(folder) / name / "home", Path(folder) / name / "store"))

        yield fresh


def test_killed_before_every_step_and_write_it_ends_as_a_whole_turn_does(fresh: Callable[[str], Turn]) -> None:
    whole, counted = fresh("whole"), Death()
    assert whole.live(counted)
    wanted, moments = whole.promoted(), counted.moments
    assert wanted and len(whole.judged) == CANDIDATES and moments > 40, moments
    for moment in range(moments):
        killed = fresh(str(moment))
        assert not killed.live(Death(at=moment)), moment
        assert killed.live(Death()), moment
        assert killed.promoted() == wanted, f"killed at moment {moment} of {moments}"
        kept = read_journal(journal_path(killed.settings, search_id_of(TRAFFIC, 0)))
        assert [one.candidate.digest for one in kept] == whole.judged, moment
        twice = len(killed.judged) - len(set(killed.judged))
        assert twice <= 1, "only the one whose verdict was not on disk yet"
        assert killed.generations() == 1, "published once"
        with budgeting.open_ledger(killed.settings) as ledger:
            (account,) = ledger.searches()
        assert account.calls + account.calls_in_flight >= len(killed.judged), "nothing was judged unpaid"
        shutil.rmtree(killed.settings.home.parent)
