"""The door on a bare machine: help without an environment, one line for every fault, one environment for all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli import commands, environment
from cli.environment import Environment
from cli.errors import EnvironmentSetupError

ROOT = Path(__file__).parents[2]
LAUNCHER = ("mill", "cli", "agents", "gristmill", "requirements")


def mill(*arguments: str, launcher: Path = ROOT / "mill", cwd: Path | None = None, **variables: str):
    """Runs the door as a shell would, without this test run's own environment overrides."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILL_", "PYTHONPATH"))}
    command = [sys.executable, str(launcher), *arguments]
    return subprocess.run(command, cwd=cwd, env={**kept, **variables}, text=True, capture_output=True, check=False)


@pytest.fixture
def bare_checkout(tmp_path: Path) -> Path:
    """A copy of the launcher's files, where no environment exists yet."""
    for name in LAUNCHER:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command_without_an_environment(bare_checkout: Path, arguments: tuple[str, ...]) -> None:
    result = mill(*arguments, launcher=bare_checkout / "mill", cwd=Path("/"))
    assert result.returncode == 0
    for command in commands.COMMANDS:
        assert f"  {command.name} " in result.stdout
        assert command.summary in result.stdout
    assert not (bare_checkout / ".venv").exists()


def test_a_commands_help_needs_no_environment(bare_checkout: Path) -> None:
    result = mill("lint", "--help", launcher=bare_checkout / "mill")
    assert result.returncode == 0
    assert "usage: mill lint" in result.stdout
    assert not (bare_checkout / ".venv").exists()


def test_help_starts_in_a_small_multiple_of_pythons_own_start() -> None:
    """As a ratio, because the machine may be busy: the half second that is allowed is about 25 bare starts."""
    bare = min(_seconds([sys.executable, "-S", "-c", "pass"]) for _ in range(5))
    door = min(_seconds([sys.executable, str(ROOT / "mill")]) for _ in range(5))
    assert door < 25 * bare


def _seconds(command: list[str]) -> float:
    import time

    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def test_a_symbolic_link_opens_the_same_door(tmp_path: Path) -> None:
    link = tmp_path / "grind"
    link.symlink_to(ROOT / "mill")
    assert mill(launcher=link, cwd=tmp_path).stdout == mill().stdout


def test_an_unknown_command_is_one_line_and_2() -> None:
    result = mill("promot")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "mill: unknown command 'promot'; did you mean 'promote'? ./mill lists them all\n"


def test_a_prepared_environment_that_is_none_is_one_line_and_2(tmp_path: Path) -> None:
    result = mill("lint", MILL_VENV=str(tmp_path))
    assert result.returncode == 2
    python = tmp_path / "bin" / "python"
    assert result.stderr == f"mill: MILL_VENV: no Python at {python}; name a virtual environment, or unset it\n"


def test_a_chosen_python_that_is_none_is_one_line_and_2(tmp_path: Path) -> None:
    result = mill("lint", MILL_PYTHON=str(tmp_path / "python"))
    assert result.returncode == 2
    assert result.stderr.startswith(f"mill: cannot run the Python at {tmp_path}/python: ")
    assert result.stderr.count("\n") == 1


def test_an_option_that_is_none_is_2(tmp_path: Path) -> None:
    result = mill("figures", "--jsn", MILL_VENV=sys.prefix, MILL_HOME=str(tmp_path))
    assert result.returncode == 2
    assert "unrecognized arguments: --jsn" in result.stderr


def test_a_command_runs_in_the_callers_folder_and_not_on_its_modules(tmp_path: Path) -> None:
    (tmp_path / "cli.py").write_text("raise SystemExit('the wrong cli')")
    result = mill("figures", "--json", cwd=tmp_path, MILL_VENV=sys.prefix, MILL_HOME=str(tmp_path / "home"))
    assert result.returncode == 0, result.stderr
    assert isinstance(json.loads(result.stdout), list)


FAULTY = {
    "configured": "from gristmill.errors import GristmillError\nraise_ = GristmillError('no store at x;\\nstart one')",
    "full": "import errno\nraise_ = OSError(errno.ENOSPC, 'No space left on device', 'out.bin')",
    "interrupted": "raise_ = KeyboardInterrupt()",
    "broken": "raise_ = ZeroDivisionError('a bug')",
}


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("configured", 2, "mill: no store at x; start one\n"),
        ("full", 2, "mill: no space left on the disk while writing out.bin; "),
        ("interrupted", 130, "mill: interrupted\n"),
        ("broken", 1, "Traceback"),
    ],
)
def test_faults_are_one_line_and_bugs_keep_their_traceback(
    bare_checkout: Path, fault: str, code: int, message: str
) -> None:
    source = f"{FAULTY[fault]}\ndef configure(parser): pass\ndef run(arguments): raise raise_\n"
    (bare_checkout / "cli" / "operators.py").write_text(source)
    result = mill("operators", launcher=bare_checkout / "mill", MILL_VENV=sys.prefix)
    assert result.returncode == code
    assert result.stderr.startswith(message)
    assert fault == "broken" or result.stderr.count("\n") == 1


def test_pytest_gets_the_arguments_in_their_order(bare_checkout: Path) -> None:
    (bare_checkout / "test_one.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    arguments = ("-k", "test_b", "test_one.py", "-q", "-p", "no:cacheprovider")
    result = mill("test", *arguments, launcher=bare_checkout / "mill", MILL_VENV=sys.prefix)
    assert "1 passed, 1 deselected" in result.stdout, result.stdout + result.stderr


class TestEnvironment:
    """Set-ups of `.venv/` with a pip that does as told."""

    @pytest.fixture
    def checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
        requirements = tmp_path / "requirements"
        requirements.mkdir()
        for name in ("pipeline.txt", "dev.txt", "oracle.txt", "dask.txt"):
            (requirements / name).write_text("one==1 \\\n    --hash=sha256:00\n")
        monkeypatch.setattr(Environment, "_create", _create_with_scripted_pip)
        return Environment(tmp_path, tmp_path / ".mill")

    @pytest.fixture(autouse=True)
    def pip(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """What pip is to do, as shell; its calls are listed in `calls`."""
        script = tmp_path / "pip.sh"
        script.write_text("exit 0")
        monkeypatch.setenv("SCRIPTED_PIP", str(script))
        monkeypatch.setenv("SCRIPTED_CALLS", str(tmp_path / "calls"))
        return script

    def test_it_installs_the_locked_set_and_then_torch_once(
        self, checkout: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MILL_TORCH_INDEX", "file:///wheels")
        assert not checkout.holds("pipeline")
        checkout.set_up("pipeline")
        checkout.set_up("pipeline")
        first, second = (checkout.root / "calls").read_text().splitlines()
        assert "--require-hashes --no-deps -r" in first and "pipeline.txt" in first
        assert second.endswith(f"--index-url file:///wheels {environment.TORCH}")
        assert checkout.holds("pipeline") and not checkout.holds("dev")

    def test_the_dev_set_serves_both(self, checkout: Environment) -> None:
        checkout.set_up("dev")
        assert checkout.holds("dev") and checkout.holds("pipeline")

    def test_what_stands_apart_is_installed_beside_it_and_without_torch(self, checkout: Environment) -> None:
        (checkout.root / "requirements" / "agents.txt").write_text("one==1 \\\n    --hash=sha256:00\n")
        agents = Environment(checkout.root, checkout.home, ".venv-agents")
        agents.set_up("agents")
        (call,) = (checkout.root / "calls").read_text().splitlines()
        assert "--require-hashes --no-deps -r" in call and "agents.txt" in call
        assert agents.holds("agents") and not checkout.folder.exists()

    def test_the_agents_environment_is_made_where_it_is_wanted_and_named_where_it_is(
        self, checkout: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (checkout.root / "requirements" / "agents.txt").write_text("one==1 \\\n    --hash=sha256:00\n")
        monkeypatch.setattr(environment.home, "ROOT", checkout.root)
        monkeypatch.setattr(environment.home, "home", lambda: checkout.home)
        environ: dict[str, str] = {}
        environment.name_agents_environment(environ, wanted=False)
        assert environ == {}
        environment.name_agents_environment(environ, wanted=True)
        assert environ == {"MILL_AGENTS_VENV": str(checkout.root / ".venv-agents")}
        found: dict[str, str] = {}
        environment.name_agents_environment(found, wanted=False)
        assert found == environ
        prepared = {"MILL_AGENTS_VENV": "/elsewhere"}
        environment.name_agents_environment(prepared, wanted=True)
        assert prepared == {"MILL_AGENTS_VENV": "/elsewhere"}

    def test_changed_requirements_are_installed(self, checkout: Environment) -> None:
        checkout.set_up("pipeline")
        (checkout.root / "requirements" / "pipeline.txt").write_text("one==2 \\\n    --hash=sha256:00\n")
        assert not checkout.holds("pipeline")

    @pytest.mark.parametrize(
        ("said", "told"),
        [
            ("OSError: [Errno 28] No space left on device", "no space left on the disk"),
            ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "a package does not match its locked hash"),
            ("Temporary failure in name resolution", "the package index cannot be reached"),
            ("ERROR: something new", "something new"),
        ],
    )
    def test_what_pip_could_not_do_is_one_line(self, checkout: Environment, pip: Path, said: str, told: str) -> None:
        pip.write_text(f"echo '{said}'; exit 1")
        with pytest.raises(EnvironmentSetupError) as caught:
            checkout.set_up("pipeline")
        assert told in str(caught.value) and "install.log" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert said in checkout.log.read_text()
        assert not checkout.holds("pipeline")

    def test_an_environment_in_which_pip_died_writing_is_made_anew(self, checkout: Environment, pip: Path) -> None:
        pip.write_text("echo 'Installing collected packages: one'; kill -9 $$")
        with pytest.raises(EnvironmentSetupError):
            checkout.set_up("pipeline")
        half_written = checkout.folder / "lib" / "half"
        half_written.write_text("")
        pip.write_text("exit 0")
        checkout.set_up("pipeline")
        assert not half_written.exists()
        assert checkout.holds("pipeline")

    def test_an_environment_in_which_pip_died_fetching_is_kept(self, checkout: Environment, pip: Path) -> None:
        pip.write_text("echo 'Collecting one'; kill -9 $$")
        with pytest.raises(EnvironmentSetupError):
            checkout.set_up("pipeline")
        kept = checkout.folder / "lib" / "kept"
        kept.write_text("")
        pip.write_text("exit 0")
        checkout.set_up("pipeline")
        assert kept.exists()

    def test_two_at_once_install_once(self, checkout: Environment, pip: Path) -> None:
        pip.write_text("sleep 0.3")
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(checkout.set_up, ["pipeline", "pipeline"]))
        assert len((checkout.root / "calls").read_text().splitlines()) == 2

    def test_a_full_disk_is_refused_before_anything_is_made(
        self, checkout: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment, "NEEDED_BYTES", 1 << 60)
        with pytest.raises(EnvironmentSetupError, match="free some space"):
            checkout.set_up("pipeline")
        assert not checkout.folder.exists()


def _create_with_scripted_pip(self: Environment) -> None:
    """An environment whose `python -m pip` writes down its arguments and runs a shell script."""
    shutil.rmtree(self.folder, ignore_errors=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (self.folder / "lib" / version / "site-packages" / "pip").mkdir(parents=True)
    self.python.parent.mkdir()
    self.python.write_text('#!/bin/sh\necho "$@" >> "$SCRIPTED_CALLS"\nexec sh "$SCRIPTED_PIP"\n')
    self.python.chmod(0o755)


def test_a_python_without_venv_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho 'The virtual environment was not created because ensurepip is not available.'\nexit 1\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    with pytest.raises(EnvironmentSetupError, match="apt-get install python3-venv"):
        Environment(tmp_path, tmp_path / ".mill").set_up("pipeline")
