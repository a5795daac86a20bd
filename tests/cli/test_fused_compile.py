"""`./mill compile` of a fused operator, from a captured sequence through the real judge to what is not released."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli import __main__ as command_line
from cli.watch import Watch
from flows.promote import promote_steps
from flows.steps import plain
from gristmill import records
from gristmill.directory_store import DirectoryStore
from tasks import journal, promotion, results, traffic
from tasks.compilation import journal_path, search_id_of
from tasks.errors import NoWinnerError
from tasks.memory_shelves import MemoryShelves
from tasks.mlflow_store import open_store
from tasks.search_plan import NOT_RELEASED
from tasks.settings import Settings
from tests.conftest import MEMORY
from tests.registry.world import shared_keys
from tests.tasks.fused_world import FUSED, feeding
from tests.tasks.world import PEAKS, settings

TRAFFIC = feeding(1, 4)
ARGUMENTS = ("compile", "--operator", FUSED, "--budget-s", 5, "--agents", 0)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def chosen(template_home: Path) -> Iterator[Settings]:
    """A home and a store with the captured profile."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on the PATH: nothing can be compiled here")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        made = settings(Path(folder) / "home", Path(folder) / "store")
        (made.home / "peaks.json").write_bytes(records.canonical_json(PEAKS))
        shutil.copy(template_home / "mlflow.db", made.home)
        shutil.copytree(shared_keys(), made.keys_dir)
        (Path(folder) / "store").mkdir()
        traffic.keep_profile(DirectoryStore(Path(folder) / "store"), made, TRAFFIC)
        yield made


@pytest.fixture
def mill(chosen: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`(*arguments) -> exit code, output, errors`, in this process."""

    def mill(*arguments: object) -> tuple[int, str, str]:
        for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "MILL_MODELS", "MILL_MODELS_FILE"):
            monkeypatch.delenv(name, raising=False)
        variables = {"HOME": chosen.home, "STORE": chosen.store_url, "FLEET": chosen.fleet, "MODEL": chosen.model}
        for name, value in variables.items():
            monkeypatch.setenv(f"MILL_{name}", str(value))
        capfd.readouterr()
        code = command_line.main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return mill


def entries(chosen: Settings) -> list[journal.JournalEntry]:
    return journal.read(journal_path(chosen, search_id_of(TRAFFIC, 0)))


def test_1_an_interrupt_keeps_what_was_judged(chosen: Settings, mill: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "trial", interrupt)
        code, out, _ = mill(*ARGUMENTS)
    assert (code, out) == (130, "")
    (entry,) = entries(chosen)
    assert entry.candidate.operator == FUSED and entry.verdict.ratio is not None, entry.verdict.reason
    assert not list(chosen.searches_dir.glob("*/result.json"))


def test_2_the_same_command_goes_on_and_prints_one_object(chosen: Settings, mill: Run) -> None:
    (first,) = entries(chosen)
    code, out, errors = mill(*ARGUMENTS, "--json")
    assert code == 0, errors
    found = json.loads(out)
    assert [one["operator"] for one in found["fusions"]] == [one["operator"] for one in found["operators"]] == [FUSED]
    assert found["skipped"] == [] and found["operators"][0]["workloads"] == 2
    judged = [entry.candidate.digest for entry in entries(chosen)]
    assert judged[0] == first.candidate.digest and len(judged) == len(set(judged)) == found["operators"][0]["trials"]
    assert {entry.verdict.status.value for entry in entries(chosen)} <= {"faster", "slower"}, "every one is right"


def test_3_it_is_logged_and_remembered_under_its_name(chosen: Settings, mill: Run) -> None:
    client = open_store(chosen.home, f"sqlite:///{chosen.home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.kind = 'candidate' and tags.operator = '{FUSED}'")
    assert len(runs) == len(entries(chosen))
    shelves = MemoryShelves(DirectoryStore(Path(chosen.store_url.removeprefix("file://"))))
    records_of = [record for family in shelves.families() for record in shelves.read(family).contents.records]
    assert [(record.operator, record.tried) for record in records_of] == [(FUSED, len(entries(chosen)))]
    code, out, _ = mill("replay", search_id_of(TRAFFIC, 0))
    assert code == 0 and f"pattern:{FUSED}:producer-consumer-fusion" in out


def test_4_what_is_proven_is_shown_and_not_released(
    chosen: Settings, mill: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = mill(*ARGUMENTS)
    assert code == 0 and f"{FUSED} float32" in out
    proven = bool(results.load(chosen).result.operators[0].gains)
    assert (f"{FUSED} float32: {NOT_RELEASED}" in out) == proven
    monkeypatch.setattr(promotion, "HELD_OUT_LIMIT", 1)
    with pytest.raises(NoWinnerError, match=f"{NOT_RELEASED}|no gain survived|proved no candidate faster"):
        promote_steps(chosen, plain, channel="canary", proof_s=0.2)
    kept = results.load(chosen)
    without = replace(kept, result=replace(kept.result, fusions=()))
    results.keep(chosen, without)
    told: list[str] = []
    with pytest.raises(NoWinnerError):
        promote_steps(chosen, plain, channel="canary", tell=told.append)
    assert [line.partition(",")[0] for line in told] == [f"{FUSED} float32: passed over"] * proven
    assert not list(DirectoryStore(Path(chosen.store_url.removeprefix("file://"))).list("channels/"))


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (f"{FUSED}+", "part '' of operator"),
        ("skinny_linear+rotary_embedding", "cannot be made of its parts"),
        ("rms_norm+skinny_linear", f"of these could be fused {FUSED}"),
    ],
)
def test_5_what_cannot_be_fused_is_one_line(mill: Run, operator: str, said: str) -> None:
    code, out, errors = mill("compile", "--operator", operator, "--budget-s", 5)
    assert (code, out, len(errors.splitlines())) == (2, "", 1) and said in errors
