"""Keys leave the environment for good, and reach the provider process alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.models import keys

CHECKOUT = Path(__file__).resolve().parents[3]
KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AZURE_API_BASE", "AZURE_API_VERSION", "HF_TOKEN", "MY_API_KEY"]
)
def test_provider_variables_are_taken_out(name: str) -> None:
    environ = {name: KEY, "PATH": "/bin"}
    taken = keys.taken_from(environ)
    assert environ == {"PATH": "/bin"}
    assert taken.values() == {name: KEY}


@pytest.mark.parametrize("name", ["PREFECT_API_KEY", "MLFLOW_API_KEY", "AWS_SECRET_ACCESS_KEY", "PATH", "API_KEY_X"])
def test_what_the_search_itself_needs_stays(name: str) -> None:
    environ = {name: KEY}
    assert keys.taken_from(environ).values() == {}
    assert environ == {name: KEY}


def test_keys_pass_from_program_to_program_and_new_ones_join_them() -> None:
    environ = {"OPENAI_API_KEY": KEY}
    keys.bequeathed(environ)
    assert KEY not in str(environ)
    environ["ANTHROPIC_API_KEY"] = "another"
    taken = keys.taken_from(environ)
    assert environ == {}
    assert taken.values() == {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": "another"}
    assert not os.get_inheritable(taken.descriptor)


@pytest.mark.parametrize("descriptor", ["", "x", "-1", "0", "99999"])
def test_a_variable_that_came_without_its_descriptor_is_nothing(descriptor: str) -> None:
    assert keys.taken_from({keys.DESCRIPTOR_VARIABLE: descriptor}).values() == {}


LOOK = """
import os, sys
from agents.models import keys
taken = keys.taken_from(os.environ)
everything = open('/proc/self/environ').read() + repr(dict(os.environ))
assert 'PATH' in everything
assert {key!r} not in everything
child = __import__('subprocess').run(['env'], capture_output=True, text=True).stdout
assert 'PATH' in child and {key!r} not in child
from harness import sandbox, session
theirs, ours = os.pipe()
runner = sandbox.start(
    sandbox.Confinement(), argv=('/bin/sh', '-c', 'env; cat /proc/*/environ'),
    environment=session.environment(1), stdout=ours,
)
os.close(ours)
seen = open(theirs).read()
assert 'OMP_NUM_THREADS' in seen and {key!r} not in seen
runner.close()
print(len(taken.values()))
"""


def test_a_search_behind_the_door_has_no_key_in_any_environment() -> None:
    """Not even in /proc/PID/environ, which shows what a process was started with."""
    door = (
        "import os, sys\n"
        "from agents.models import keys\n"
        "environ = dict(os.environ)\n"
        "keys.bequeathed(environ)\n"
        f"os.execve(sys.executable, [sys.executable, '-c', {LOOK.format(key=KEY)!r}], environ)\n"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "OPENAI_API_KEY": KEY}
    told = subprocess.run([sys.executable, "-c", door], env=environ, capture_output=True, text=True, check=False)
    assert (told.stdout, told.returncode) == ("1\n", 0), told.stderr
