"""Nothing that is committed names a machine, a person's folder, a package registry or a secret."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    # Written in pieces, so that this file does not hold what it looks for.
    "a package registry's host": r"\bpy" + r"pi\.org|python" + r"hosted\.org|npm" + r"js\.org|\.py" + r"torch\.org",
    "a folder of one machine": r"(?<![\w.])/(?:ho" + r"me/\w+|wo" + r"rk/\w+|Us" + r"ers/\w+|ro" + r"ot/\w+)",
    "a private key": r"-----BEGIN [A-Z ]*PRI" + r"VATE KEY-----",
    "an access key": r"\bAK" + r"IA[0-9A-Z]{16}\b",
}


@pytest.fixture(scope="module")
def tracked() -> dict[str, str]:
    """Text by path, of every file that git knows."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, text=True, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return {str(path.relative_to(ROOT)): path.read_text(errors="ignore") for path in paths if path.is_file()}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_holds(tracked: dict[str, str], what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [f"{path}: {match.group()}" for path, text in tracked.items() if (match := pattern.search(text))]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a package registry's host", "https://py" + "pi.org/simple"),
        ("a folder of one machine", "open('/ho" + "me/ann/x')"),
        ("a private key", "-----BEGIN RSA PRI" + "VATE KEY-----"),
        ("an access key", "AK" + "IA" + "A" * 16),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, text: str) -> None:
    assert re.search(FORBIDDEN[what], text)
