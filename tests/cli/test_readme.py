"""The README says what the commands say of themselves, and names nothing that is not there."""

from __future__ import annotations

import re

from cli import commands, home

README = (home.ROOT / "README.md").read_text()


def test_it_lists_every_command_as_the_door_does() -> None:
    listed = {line.strip() for line in README.splitlines()}
    for line in commands.overview().splitlines():
        if line.startswith("  "):
            assert line.strip() in listed


def test_the_commands_it_shows_exist() -> None:
    for name in re.findall(r"\./mill ([a-z]+)", README):
        assert commands.find(name), name


def test_the_paths_it_names_exist() -> None:
    for path in re.findall(r"`((?:gristmill|docs|requirements)/[\w./-]+)`", README):
        assert (home.ROOT / path).exists(), path


def test_the_variables_it_names_are_read_somewhere() -> None:
    folders = [home.ROOT / name for name in ("cli", "tasks", "flows", "gristmill")]
    files = [home.ROOT / "mill", *(path for folder in folders for path in folder.rglob("*.py"))]
    sources = "".join(path.read_text() for path in files)
    for name in re.findall(r"^\| (`[A-Z_`, ]+`) \|", README, flags=re.M):
        for variable in re.findall(r"[A-Z_]+", name):
            assert variable in sources, variable
