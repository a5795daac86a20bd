"""`./mill model`, as its user runs it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from cli import model, model_draft
from cli.errors import ModelFileError
from gristmill.errors import GristmillError
from kernels.drafts import draft

CONFIG: dict[str, Any] = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
    "sliding_window": 4096,
}
EXAMPLE = """
import torch
from torch import nn

class Cube(nn.Module):
    def forward(self, x):
        return x * x * x + 1.0

def example(tokens):
    return Cube(), (torch.randn(1, tokens, 24, generator=torch.Generator().manual_seed(0)),)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "cube.py"
    path.write_text(EXAMPLE)
    return path


def _run(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    parser = argparse.ArgumentParser()
    model.configure(parser)
    assert model.run(parser.parse_args(options)) == 0
    return capsys.readouterr().out


def test_the_table_shows_operators_by_share_and_what_has_a_definition(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    lines = _run(capsys, str(config), "--device", "h100").splitlines()
    assert lines[0].startswith("gemma2, 2,614,341,888 parameters, bfloat16; 32 tokens")
    row = next(line.split() for line in lines if line.startswith("gemma_rms_norm"))
    assert row[-1] == "no"
    assert lines[-1].endswith("of it in operators that have a definition")


def test_json_has_every_operator_and_shares_that_sum_to_one(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    found = json.loads(_run(capsys, str(config / "config.json"), "--device", "h200", "--prefill", "256", "--json"))
    assert found["parameters"] == 2_614_341_888
    assert found["step"]["prefill_chunks"] == [[256, 0]]
    assert sum(row["time_share"] for row in found["operators"]) == pytest.approx(1.0)
    assert {row["defined"] for row in found["operators"]} == {True, False}


def test_a_module_is_recorded_drafted_and_its_check_is_tried(
    capsys: pytest.CaptureFixture[str], example: Path, tmp_path: Path
) -> None:
    options = ("--trace", str(example), "--device", "l4", "--draft", str(tmp_path / "drafts"), "--json")
    found = json.loads(_run(capsys, *options))
    (row,) = found["operators"]
    assert (row["operator"], row["calls"], row["defined"]) == ("cube", 1, False)
    (drafted,) = found["drafts"]
    source = Path(drafted["file"]).read_text()
    assert draft.executed(source).name == "cube"
    assert [result["dtype"] for result in drafted["sharpness"]] == ["float32", "bfloat16"]
    assert all(result["probes"] > 100 for result in drafted["sharpness"])
    (again,) = json.loads(_run(capsys, *options))["drafts"]
    assert "exists already" in again["reason"]


def test_a_check_that_is_not_sharp_is_shown() -> None:
    blunt = model_draft.Sharpness("float32", 10, ("zeros are accepted",))
    lines = model._told([model_draft.Drafted("cube", "drafts/cube.py", (blunt,)), model_draft.Drafted("x", reason="y")])
    assert lines[2:] == [
        "  drafts/cube.py: sharpness float32 9 of 10 right",
        "    zeros are accepted",
        "  x: not drafted: y",
    ]


REFUSED = {
    "no model": ((), "name a config.json"),
    "no such file": (("nowhere.json",), "nowhere.json: No such file"),
    "an unknown device": (("config.json", "--device", "abacus"), "device 'abacus': expected local"),
    "no JSON": (("cube.py",), "cube.py: not JSON"),
    "no end": (("/dev/zero",), "more than 16777216 bytes"),
    "no object": (("list.json",), "list.json: found list, expected an object"),
    "no request": (("config.json", "--requests", "0"), "step batch: no request in it"),
    "no module": (("--trace", "nowhere.py"), "nowhere.py: no such file"),
    "another kind of file": (("--trace", "list.json"), "list.json: expected a .py file"),
    "a damaged program": (("--trace", "damaged.pt2"), "damaged.pt2: torch.export.load cannot read it"),
    "no example": (("--trace", "empty.py"), "empty.py: expected a function example(tokens)"),
    "an odd example": (("--trace", "odd.py"), "odd.py: example(11) must return"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_one_line(
    what: str, config: Path, example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (config / "list.json").write_text("[]")
    (config / "damaged.pt2").write_bytes(b"PK\x03\x04 nothing")
    (config / "empty.py").write_text("")
    (config / "odd.py").write_text("def example(tokens):\n    return tokens\n")
    monkeypatch.chdir(config)
    options, message = REFUSED[what]
    with pytest.raises(GristmillError) as refused:
        _run(capsys, *("--device", "h100"), *options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_exported_program_alone_cannot_be_drafted_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    path = tmp_path / "relu.pt2"
    torch.export.save(torch.export.export(torch.nn.Hardswish(), (torch.randn(3, 5),)), path)
    assert "hardswish" in _run(capsys, "--trace", str(path), "--device", "h100")
    with pytest.raises(GristmillError, match="one recording tells no extents apart"):
        _run(capsys, "--trace", str(path), "--device", "h100", "--draft", str(tmp_path / "drafts"))


def test_a_folder_without_a_configuration_says_which_file_it_wants(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json"):
        model.read_config(tmp_path)


def test_requests_that_would_fill_the_memory_are_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _run(capsys, str(config / "config.json"), "--requests", "2000000000")
    assert "expected a whole number up to 1048576" in capsys.readouterr().err
