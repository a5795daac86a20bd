"""What a command is started with: provider keys never, and an environment for models only where some are asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.models import keys
from cli import commands, door, environment

ROOT = Path(__file__).parents[2]
KEY = "sk-0123456789abcdef"
LOOK = '''
import os, subprocess, sys
from pathlib import Path
from agents.models import configuration, keys
KEY = "sk-0123456789abcdef"
LINGER = "import sys; print(1, flush=True); sys.stdin.read()"


def configure(parser):
    parser.set_defaults(rest=())


def tree(root):
    """This process and all that it started, as processes of this machine."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def run(arguments):
    inherited = keys.DESCRIPTOR_VARIABLE in os.environ
    child = subprocess.Popen([sys.executable, "-c", LINGER], stdin=-1, stdout=-1)
    child.stdout.readline()
    with configuration.opened((), print):
        pids = tree(os.getpid())
        assert child.pid in pids
        for pid in pids:
            assert b"PATH=" in Path(f"/proc/{pid}/environ").read_bytes()
            assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes(), pid
        with os.scandir(f"/proc/{child.pid}/fd") as descriptors:
            assert not [one for one in descriptors if keys.NAME in os.readlink(one.path)]
    child.communicate()
    assert KEY not in repr(dict(os.environ))
    print(inherited)
    return 0
'''


WAYS = ("demo", "compile", "test", "doctor", "rank")
"""One command for each way from the door to its process: all others are told apart by their names alone."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher, with commands that do nothing but look at their processes."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "mill", folder / "mill")
    for name in ("cli", "agents", "gristmill", "requirements"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for command in map(commands.find, WAYS):
        assert command is not None
        (folder / f"{command.module.replace('.', '/')}.py").write_text(LOOK)
    return folder


def mill(checkout: Path, *arguments: str, models: str = "") -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILL_", "PYTHONPATH"))}
    named = {"MILL_VENV": sys.prefix, "MILL_AGENTS_VENV": sys.prefix, "MILL_MODELS": models, "OPENAI_API_KEY": KEY}
    command = [sys.executable, str(checkout / "mill"), *arguments]
    told = subprocess.run(command, env={**kept, **named}, text=True, capture_output=True, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


@pytest.mark.parametrize("models", ["", "openai/a"])
@pytest.mark.parametrize("name", WAYS)
def test_no_process_of_a_command_was_started_with_a_key(checkout: Path, name: str, models: str) -> None:
    """Not even one that shows it in /proc/PID/environ alone. Those that ask models inherit a descriptor."""
    assert mill(checkout, name, models=models) == str(bool(models) and name in door.CALL_MODELS)


@pytest.mark.parametrize(
    ("options", "inherited"),
    [
        (("--model", "openai/b"), True),
        (("--model=openai/b", "--agents=2"), True),
        (("--agents", "0"), False),
        (("--agents=0", "--model", "openai/b"), False),
        (("--agents", "2", "--budget-s", "10", "--agents", "00"), False),
        (("--agents", "0", "--agents", "2"), True),
        (("--agents",), True),
    ],
)
def test_nobody_to_ask_them_needs_no_keys(checkout: Path, options: Sequence[str], inherited: bool) -> None:
    assert mill(checkout, "compile", *options, models="openai/a") == str(inherited)


@pytest.fixture
def own_environment() -> Iterator[None]:
    """The door moves keys out of this process's."""
    kept = dict(os.environ)
    yield
    os.close(keys.taken_from(os.environ).descriptor)
    os.environ.clear()
    os.environ.update(kept)


class Entered(BaseException):
    """The command would begin now."""


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("models", ["", "openai/a"])
@pytest.mark.parametrize("name", [command.name for command in commands.COMMANDS])
def test_every_command_becomes_a_process_without_a_key(monkeypatch: pytest.MonkeyPatch, name: str, models: str) -> None:
    named = {"MILL_VENV": sys.prefix, "MILL_AGENTS_VENV": sys.prefix, "MILL_MODELS": models, "OPENAI_API_KEY": KEY}
    for variable, value in named.items():
        monkeypatch.setenv(variable, value)
    begun: list[tuple[Path, Sequence[str], dict[str, str]]] = []

    def become(*started_with: Any) -> None:
        begun.append(started_with)
        raise Entered

    monkeypatch.setattr(door, "_become", become)
    with pytest.raises(Entered):
        door.enter([name, "--option"])
    ((python, arguments, variables),) = begun
    assert python.parent.parent == Path(sys.prefix) and arguments == [name, "--option"]
    assert KEY not in repr(variables)
    assert (keys.DESCRIPTOR_VARIABLE in variables) == (bool(models) and name in door.CALL_MODELS)


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("compile",), True),
        (("compile", "--agents", "0"), False),
        (("ui",), True),
        (("demo",), True),
        (("doctor",), False),
        (("rank",), None),
    ],
)
def test_the_environment_of_models_is_made_only_where_some_are_asked(
    monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], wanted: bool | None
) -> None:
    monkeypatch.setenv("MILL_MODELS", "openai/a")
    asked: list[bool] = []
    monkeypatch.setattr(environment, "python_for", lambda requirements: Path(sys.executable))
    monkeypatch.setattr(environment, "name_agents_environment", lambda environ, wanted: asked.append(wanted))

    def become(*_: object) -> None:
        raise Entered

    monkeypatch.setattr(door, "_become", become)
    with pytest.raises(Entered):
        door.enter(arguments)
    assert asked == ([] if wanted is None else [wanted])


@pytest.mark.usefixtures("own_environment")
def test_what_sets_up_the_environment_sees_no_key_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def set_up(requirements: str) -> Path:
        told = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
        assert "PATH=" in told and KEY not in told
        raise Entered

    monkeypatch.setattr(environment, "python_for", set_up)
    with pytest.raises(Entered):
        door.enter(["rank"])
    assert KEY not in repr(dict(os.environ))
