"""The wheel holds the fleet side and nothing else."""

from __future__ import annotations

import configparser
import email
import importlib
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIRED = {"boto3", "tuf", "securesystemslib"}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built by the build backend itself: no isolated environment, so no network."""
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def test_it_holds_one_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gristmill"}
    assert len(tops) == 2


def test_it_holds_every_source_and_data_file(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gristmill").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= set(wheel.namelist())
    assert "gristmill/abi/gristmill_kernel.h" in sources


def test_what_it_requires_is_small(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    requires = email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist", [])
    always = {line for line in requires if "extra ==" not in line}
    assert {line.split("[")[0].split("<")[0].split(">")[0].split("=")[0].strip() for line in always} == REQUIRED


def test_it_installs_the_sidecar_and_the_plugin_of_vllm(wheel: zipfile.ZipFile) -> None:
    (points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    found = configparser.ConfigParser()
    found.read_string(wheel.read(points).decode())
    names = {group: set(found[group]) for group in found.sections()}
    plugins = {group: {"gristmill"} for group in ("vllm.general_plugins", "sglang.srt.plugins")}
    assert names == {"console_scripts": {"gristmill-sidecar"}, **plugins}
    for group in found.sections():
        for target in found[group].values():
            module, _, function = target.partition(":")
            assert callable(getattr(importlib.import_module(module), function))


def test_locked_requirements_satisfy_the_declared_ones() -> None:
    """`requirements/` is what runs, `pyproject.toml` what is promised: they must not drift apart."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["pipeline"]]
    locked = _locked("pipeline.txt")
    for requirement in map(Requirement, declared):
        if requirement.name != "torch":
            assert locked[requirement.name] in requirement.specifier, requirement


def test_the_dev_set_holds_the_pipeline_set() -> None:
    assert _locked("pipeline.txt").items() <= _locked("dev.txt").items()


def test_every_locked_package_has_hashes() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        pins = [block for block in path.read_text().split("\n") if "==" in block and not block.startswith((" ", "#"))]
        assert pins
        assert all(pin.endswith("\\") for pin in pins), path.name


def _locked(name: str) -> dict[str, str]:
    """Version by package for this interpreter."""
    from packaging.requirements import Requirement

    lines = (ROOT / "requirements" / name).read_text().splitlines()
    pins = [Requirement(line.rstrip(" \\")) for line in lines if line and not line.startswith((" ", "#"))]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in here}
