"""Keys reach a process whose parents pass on no descriptor, through no environment, as long as their holder lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.models import key_relay, keys

CHECKOUT = Path(__file__).resolve().parents[3]
KEY = "sk-0123456789abcdef"
SCHEDULER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]], close_fds=True))"
SEARCH = """
import os
from agents.models import key_relay, keys
key_relay.accept(os.environ)
held = keys.taken_from(os.environ)
assert not {name for name in os.environ if name.startswith("MILL_KEYS")}
assert not os.get_inheritable(held.descriptor)
print(sorted(held.values().items()))
"""


def search(environ: dict[str, str]) -> str:
    """What a search finds that a scheduler starts in this environment."""
    told = subprocess.run(
        [sys.executable, "-c", SCHEDULER, SEARCH],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


def test_keys_reach_a_scheduled_search_and_no_environment() -> None:
    environ = {"OPENAI_API_KEY": KEY}
    held = key_relay.offer(environ)
    assert list(environ) == [key_relay.VARIABLE] and KEY not in str(environ)
    assert search(environ) == f"[('OPENAI_API_KEY', '{KEY}')]"
    assert search(environ) == f"[('OPENAI_API_KEY', '{KEY}')]", "for the next one as well"
    os.close(held.descriptor)
    assert search(environ) == "[]", "whoever offered them holds them no longer"


@pytest.mark.parametrize("place", ["", "/etc/passwd", "/proc/1/../../etc/passwd", "/proc/0/fd/3", "/proc/self/fd/0"])
def test_a_place_that_is_none_is_nothing(place: str) -> None:
    environ = {key_relay.VARIABLE: place}
    key_relay.accept(environ)
    assert environ == {}


def test_what_is_there_and_is_no_key_is_nothing(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        environ = {key_relay.VARIABLE: f"/proc/{os.getpid()}/fd/{file.fileno()}"}
        key_relay.accept(environ)
        opened = int(environ[keys.DESCRIPTOR_VARIABLE])
        assert keys.taken_from(environ).values() == {}
        os.close(opened)
