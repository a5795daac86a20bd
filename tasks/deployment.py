"""What prefect.yaml deploys, on the work pools of this machine: one for what reads and signs, one for what measures.

What measures has a pool per kind of hardware, whose worker runs one thing at a time. The device's lease holds besides
(`harness.lease`): whatever Prefect believes, two processes never measure at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from tasks.errors import ServerStartError, SettingsError
from tasks.local_server import cause
from tasks.object_store import OpenStore
from tasks.settings import REPOSITORY, Settings

POOL = "mill"
DATABASE_VARIABLE = "MILL_PREFECT_DATABASE"
DRIVER = "postgresql+asyncpg"
AT_ONCE = 4
"""Flows that read and sign, per worker."""


def device_pool(hardware: str) -> str:
    """The pool of what measures on this kind of hardware."""
    return f"{POOL}-{hardware}"


def limits(settings: Settings) -> dict[str, int]:
    """The pools that a worker of this machine serves, and how many flows of each it runs at once."""
    return {POOL: AT_ONCE, device_pool(settings.hardware): 1}


def variables(settings: Settings, opened: OpenStore) -> dict[str, str]:
    """What prefect.yaml and the flows that a worker starts take from the environment."""
    return {
        **opened.environ,
        "MILL_STORE": opened.url,
        "MILL_CHECKOUT": str(REPOSITORY),
        "MILL_DEVICE": settings.hardware,
        "MILL_FLEET": settings.fleet,
        "MILL_MODEL": settings.model,
    }


def deploy(settings: Settings, env: Mapping[str, str]) -> None:
    """Registers the pools and every deployment with the server of `env`; doing it again changes nothing.

    Raises:
        ServerStartError: Prefect refused; the message ends with what it said of the reason.
    """
    commands = [["work-pool", "create", pool, "--type", "process", "--overwrite"] for pool in limits(settings)]
    for command in (*commands, ["deploy", "--all"]):
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *command],
            cwd=REPOSITORY,
            env={**os.environ, **env},
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise ServerStartError(f"prefect {' '.join(command[:2])} failed: {cause(done.stdout)}")


def database_url(environ: Mapping[str, str] = os.environ) -> str:
    """The PostgreSQL that the Prefect server is to use (`MILL_PREFECT_DATABASE`); empty: SQLite in the home.

    Raises:
        SettingsError: it is none. What it says holds no password.
    """
    text = environ.get(DATABASE_VARIABLE, "")
    if not text:
        return ""
    expected = f"expected postgresql://USER:PASSWORD@HOST[:PORT]/DATABASE in {DATABASE_VARIABLE}"
    try:
        found = urlsplit(text)
        port, host = found.port, found.hostname
    except ValueError:
        raise SettingsError(f"the port or host cannot be read; {expected}") from None
    if found.scheme not in ("postgresql", "postgres", DRIVER):
        raise SettingsError(f"{found.scheme or 'no scheme'!r} is not PostgreSQL; {expected}")
    socket = "host=/" in found.query
    if not (host or socket) or not found.path.strip("/") or "/" in found.path.strip("/") or port == 0:
        raise SettingsError(f"host or database is missing; {expected}")
    return urlunsplit(found._replace(scheme=DRIVER))
