"""Provider keys on their way: out of the environment into a file that has no name, which only its heir can read.

What a process was started with stays readable in /proc/PID/environ, and what it has in memory may end in a core dump.
So `./mill` takes the keys out before it becomes the command; the search carries a descriptor and never reads it.
Standard library only: the door uses it before any environment is there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

DESCRIPTOR_VARIABLE = "MILL_KEYS_DESCRIPTOR"
NAME = "provider keys"
PROVIDER_VARIABLE = re.compile(
    r"\w+_API_KEY|\w+_API_BASE|\w+_API_VERSION|OPENAI_BASE_URL|OPENAI_ORGANIZATION"
    r"|ANTHROPIC_(BASE_URL|AUTH_TOKEN)|AZURE_AD_TOKEN|VERTEXAI_(PROJECT|LOCATION)|GOOGLE_APPLICATION_CREDENTIALS"
    r"|AWS_BEARER_TOKEN_BEDROCK|HF_TOKEN"
)
OTHERS = re.compile(r"(PREFECT|MLFLOW|MILL)_.*")
"""Keys of services that the search itself speaks with."""


@dataclass(frozen=True)
class Keys:
    """Provider keys and addresses, by variable, behind a descriptor."""

    descriptor: int

    def values(self) -> dict[str, str]:
        """Reads them: in the provider process."""
        size = os.fstat(self.descriptor).st_size
        values: dict[str, str] = json.loads(os.pread(self.descriptor, size, 0))
        return values


def taken_from(environ: MutableMapping[str, str]) -> Keys:
    """Moves the keys out of an environment. What this process inherited, or moved before, stays with them."""
    inherited = _inherited(environ.pop(DESCRIPTOR_VARIABLE, ""))
    fresh = [name for name in environ if PROVIDER_VARIABLE.fullmatch(name) and not OTHERS.fullmatch(name)]
    if inherited is not None and not fresh:
        os.set_inheritable(inherited.descriptor, False)
        return inherited
    values = inherited.values() if inherited is not None else {}
    if inherited is not None:
        os.close(inherited.descriptor)
    values |= {name: environ.pop(name) for name in fresh}
    descriptor = os.memfd_create(NAME)
    os.write(descriptor, json.dumps(values).encode())
    return Keys(descriptor)


def _inherited(descriptor: str) -> Keys | None:
    """The variable may have come further than the descriptor, which then is closed or another file."""
    try:
        target = str(Path(f"/proc/self/fd/{int(descriptor)}").readlink())
    except (ValueError, OSError):
        return None
    return Keys(int(descriptor)) if target.startswith(f"/memfd:{NAME}") else None


def bequeathed(environ: MutableMapping[str, str]) -> None:
    """The same, for the program that this process is about to become."""
    keys = taken_from(environ)
    os.set_inheritable(keys.descriptor, True)
    environ[DESCRIPTOR_VARIABLE] = str(keys.descriptor)
