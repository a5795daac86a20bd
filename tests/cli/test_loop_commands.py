"""`./mill revalidate`, `renew`, `report` and `worker`: what is scheduled on a server is there without one."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli import __main__ as command_line
from gristmill.directory_store import DirectoryStore
from tasks import promotion, proving, traffic
from tasks.settings import Settings
from tests.registry.world import shared_keys
from tests.tasks.world import FormulaBench, candidate, profile, rms_norm, settings


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith(("MILL_", "PREFECT_API", "MLFLOW_TRACKING"))]:
        monkeypatch.delenv(name)
    chosen = settings(tmp_path / "home", tmp_path / "store")
    (tmp_path / "store").mkdir()
    shutil.copytree(shared_keys(), chosen.keys_dir)
    for name, value in (("HOME", str(chosen.home)), ("STORE", chosen.store_url), ("FLEET", "chat"), ("MODEL", "tiny")):
        monkeypatch.setenv(f"MILL_{name}", value)
    return chosen


def published(chosen: Settings) -> DirectoryStore:
    store, sampled = DirectoryStore(Path(chosen.store_url.removeprefix("file://"))), profile(rms_norm(1))
    proof = promotion.prove(FormulaBench(lambda one, workload: 2.0), sampled, [candidate(1)])
    artifacts, files = proving.artifacts_of([(proof, {"torch": "2.12.0"})], chosen, print)
    promotion.publish_artifacts(store, chosen, "canary", artifacts, files, sampled, "search abc")
    return store


def test_revalidate_shows_and_then_revokes(mill: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["revalidate"]) == 0
    assert capsys.readouterr().out == "0 tables are served, 0 kernels were judged again\n"
    newer = replace(profile(rms_norm(1), end=datetime.now(UTC).isoformat()), versions={"torch": "2.13.0"})
    traffic.keep_profile(published(mill), mill, newer)
    assert command_line.main(["revalidate", "--dry-run", "--sample", "0"]) == 0
    assert "to be revoked: rms_norm.float32" in capsys.readouterr().out
    assert command_line.main(["revalidate", "--sample", "0", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["served"] == 1 and "torch 2.12.0" in done["demotions"][0]["reason"]
    assert command_line.main(["revalidate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["served"] == 0


def test_renew_and_report(mill: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    published(mill)
    assert command_line.main(["renew", "--json"]) == 0
    expires = datetime.fromisoformat(json.loads(capsys.readouterr().out)["timestamp_expires_utc"])
    assert expires > datetime.now(UTC)
    assert command_line.main(["renew"]) == 0 and "until" in capsys.readouterr().out
    assert command_line.main(["report"]) == 0
    plain = capsys.readouterr().out
    assert command_line.main(["report", "--week"]) == 0
    shown = capsys.readouterr().out
    assert shown == plain
    assert "search abc" in shown and Path(shown.rstrip().rpartition("page: ")[2]).exists()
    assert command_line.main(["report", "--days", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["channels"][0]["why"] == "search abc"


@pytest.mark.parametrize(
    "wrong",
    [
        ["revalidate", "--sample", "-1"],
        ["revalidate", "--proof-s", "0"],
        ["report", "--days", "0"],
        ["report", "--week", "--days", "3"],
        ["worker", "--pool"],
    ],
)
def test_bad_input_is_one_line(mill: Settings, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(wrong)
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("server", ["banana", "http://127.0.0.1:1/api", "http://[::1/api", "http://127.0.0.1:x"])
def test_a_worker_does_not_wait_for_a_server_that_is_not_there(
    mill: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    assert command_line.main(["worker", "--no-deploy"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mill: PREFECT_API_URL is {server!r}: no server answers there (")


def test_the_pages_have_a_port_each(mill: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["ui", "--mlflow-port", "4200"]) == 2
    assert "MLflow and Prefect cannot share port 4200" in capsys.readouterr().err


def test_a_worker_needs_a_server_to_join(mill: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["worker"]) == 2
    told = capsys.readouterr().err
    assert "PREFECT_API_URL" in told and told.count("\n") == 1
