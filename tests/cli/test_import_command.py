"""`./mill import`: what it prints, what it keeps, and what it refuses in one line."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill import records
from gristmill.directory_store import DirectoryStore
from kernels.profile import TrafficProfile
from tasks import traffic
from tests.cli import in_process
from tests.cli.in_process import Run
from tests.llama_config import CONFIG
from tests.tasks.world import settings

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,480,10
2023-11-16 18:17:04.0319600,110,27
"""
DEVICE = ("--device-tflops", "1", "--device-gb-s", "100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "azure.csv").write_text(AZURE)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "store").mkdir()
    return tmp_path


@pytest.fixture
def mill(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return in_process.mill(
        monkeypatch, capsys, ["import"], MILL_HOME=str(folder / "home"), MILL_STORE=f"file://{folder}/store"
    )


def kept(folder: Path, hardware: str) -> TrafficProfile:
    found = replace(settings(folder / "home", folder / "store"), fleet="demo", model="llama-8x1024", hardware=hardware)
    return traffic.latest_profile(DirectoryStore(folder / "store"), found)


def test_requests_become_the_newest_profile(mill: Run, folder: Path) -> None:
    options = ("--model-config", folder / "config.json", *DEVICE, "--hardware", "h200", "--json")
    code, output, _ = mill("azure", folder / "azure.csv", *options)
    assert code == 0
    told = json.loads(output)
    profile = kept(folder, "h200")
    assert told["profile"] == records.digest(profile)
    assert profile.requests.count == told["facts"]["requests"] == 2
    assert told["window"][0].startswith("2023-11-16T18:17:03")
    shares = sum(row["share"] for row in told["operators"])
    assert shares == pytest.approx(told["covered_share"], abs=1e-3)
    assert {row["operator"] for row in told["operators"]} >= {"skinny_linear", "rms_norm", "silu_and_mul"}
    assert {row["operator"].split()[0] for row in told["uncovered"]} >= {"attention_decode", "attention_prefill"}


def test_a_table_says_what_can_be_compiled(mill: Run, folder: Path) -> None:
    out = folder / "profile.json"
    code, output, _ = mill(
        "azure", folder / "azure.csv", "--model-config", folder / "config.json", *DEVICE, "--out", out
    )
    assert code == 0
    assert "requests 2" in output
    assert "attention_decode" in output
    assert records.parse(TrafficProfile, out.read_bytes()).requests.count == 2
    assert list((folder / "store").iterdir()) == []


def test_a_trace_that_does_not_say_when_it_began(mill: Run, folder: Path) -> None:
    trace = folder / "mooncake.jsonl"
    trace.write_text('{"timestamp": 1000, "input_length": 50, "output_length": 5}\n')
    options = ("--model-config", folder / "config.json", *DEVICE, "--json")
    _, output, _ = mill("mooncake", trace, *options, "--start", "2026-12-02T19:00")
    assert json.loads(output)["window"][0] == "2026-12-02T19:00:01.000000+00:00"
    os.utime(trace, (86_400, 86_400))
    _, output, _ = mill("mooncake", trace, *options)
    assert json.loads(output)["window"][0] == "1970-01-02T00:00:01.000000+00:00"


def test_engines_share_the_requests(mill: Run, folder: Path) -> None:
    options = ("--model-config", folder / "config.json", *DEVICE, "--engines", "2", "--json")
    _, output, _ = mill("azure", folder / "azure.csv", *options)
    assert json.loads(output)["facts"]["requests"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing", "azure.csv"], "invalid choice: 'nothing'"),
        (["azure"], "the following arguments are required: FILE"),
        (["azure", "azure.csv"], "--model-config"),
        (["azure", "absent.csv", "--model-config", "config.json"], "absent.csv: cannot be read"),
        (["azure", "azure.csv", "--model-config", "azure.csv"], "not JSON"),
        (["azure", "azure.csv", "--model-config", "absent.json"], "absent.json"),
        (["mooncake", "azure.csv", "--model-config", "config.json"], "row 1: not JSON"),
        (["torch", "config.json"], "holds no operator call"),
        (["torch", "azure.csv"], "expected an object or an array"),
        (["flashinfer", "config.json"], "workloads or traces"),
        (["flashinfer", "absent"], "absent"),
        (["azure", "azure.csv", "--device-tflops", "5"], "go together"),
        (["azure", "azure.csv", "--hardware", "a/b"], "--hardware"),
        (["azure", "azure.csv", "--start", "soon"], "--start"),
        (["azure", "azure.csv", "--max-tokens", "4"], "one each"),
        (["azure", "azure.csv", "--step-ms", "0"], "--step-ms"),
    ],
)
def test_what_cannot_be_imported_is_one_line(mill: Run, folder: Path, arguments: list[str], said: str) -> None:
    names = {"azure.csv", "absent.csv", "config.json", "absent.json", "absent"}
    placed = [str(folder / one) if one in names else one for one in arguments]
    if arguments[0] != "torch" and "--device-tflops" not in arguments:
        placed += DEVICE
    code, output, error = mill(*placed)
    assert code == 2
    assert said in error
    assert "Traceback" not in error
    assert output == ""
    assert list((folder / "store").iterdir()) == []


@pytest.mark.parametrize("out", ["nowhere/profile.json", ".", "azure.csv/profile.json"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_read(mill: Run, folder: Path, out: str) -> None:
    (folder / "config.json").unlink()
    code, output, error = mill(
        "azure", folder / "azure.csv", "--model-config", folder / "config.json", *DEVICE, "--out", folder / out
    )
    assert (code, output, len(error.splitlines())) == (2, "", 1)
    assert f"--out {folder / out}: " in error and "name a file that can be written" in error


def test_a_configuration_without_end_is_one_line(mill: Run, folder: Path) -> None:
    (folder / "bomb.gz").write_bytes(gzip.compress(b'{"a": "' + b"a" * (17 << 20) + b'"}'))
    for endless in (folder / "bomb.gz", "/dev/zero"):
        code, _, err = mill("azure", folder / "azure.csv", "--model-config", endless, *DEVICE)
        assert code == 2 and "more than 16777216 characters" in err.splitlines()[-1]
